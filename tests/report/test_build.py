"""The whole report: pages, pictures, cases, and that nothing in a file can act as markup.

May import: pytest, tss_bench, tests.report.{helpers,test_searches} and the standard library.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.report.helpers import line, stats, write_run
from tests.report.test_searches import write_ledger, write_map
from tss_bench import cli
from tss_bench.report.board import Board
from tss_bench.report.build import LIST, write_report
from tss_bench.report.cases import case_groups
from tss_bench.report.files import find
from tss_bench.report.main_table import main_tables, time_tables
from tss_bench.report.run_plots import _told_apart, run_plots

EVIL = "\"><script>alert(1)</script><img src=x onerror='alert(2)'> größer 日本語 \ud800 ```\n# x"


def rows(values: list[float], steps: int = 2, **given: Any) -> list[dict[str, Any]]:
    return [
        line(n, {"f1": value}, turns=[stats([steps] * 3, wall_s=1 + n / 10)], **given)
        for n, value in enumerate(values)
    ]


def write_all(folder: Path) -> None:
    """Two protocols, a map, a ledger, an empty domain, and texts that try to be markup."""
    together = {"native_ar", "native_eagle", "tss_eagle"}
    for protocol in ("strict", "paper"):
        for adapter in sorted(together):
            skip = [1, 2] if adapter.startswith("tss") else []
            config = {"skip": skip, "protocol": protocol, "scope": "verify"}
            steps = 1 if adapter == "native_ar" else 2 + len(skip)
            lines = rows([0.2, 0.4, 0.6], steps, config=config, answer=EVIL if skip else "fine")
            others = sorted(together - {adapter})
            told = {"interleaved_with": others, "machine": EVIL, "model_args": {"evil": EVIL}}
            write_run(folder / protocol, adapter, lines, skip=skip, protocol=protocol, **told)
    write_run(folder / "odd", "native_eagle", [], task="empty_task", model=EVIL)
    write_map(folder / "maps" / "bfs.json", [1, 2], "tss_bfs")
    write_ledger(folder / "maps" / "bfs.ledger" / "qa.jsonl")


class Page(HTMLParser):
    """Tags, attributes and scripts of a page; texts outside scripts and styles."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts = 0
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        self.scripts += tag == "script"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The input folder, and the folder of its report."""
    folder = tmp_path_factory.mktemp("report")
    write_all(folder / "in")
    write_report([folder / "in"], folder / "out", resamples=99)
    return folder / "in", folder / "out"


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(files)}


def test_the_same_files_give_the_same_bytes(made: tuple[Path, Path], tmp_path: Path) -> None:
    given, out = made
    write_report([given], tmp_path / "again", resamples=99)
    assert contents(tmp_path / "again") == contents(out)


def test_every_page_table_and_picture_is_there(made: tuple[Path, Path]) -> None:
    found = contents(made[1])
    assert sorted(found) == json.loads(found[LIST])
    pages = {"main.md", "strategies.md", "tolerance.md", "cases.md", "index.html"}
    tables = {"main", "strategies", "tolerance", "cases", "times"}
    tables |= {"audit_texts", "audit_protocols", "audit_lossless"}
    assert pages | {f"tables/{name}.{kind}" for name in tables for kind in ("csv", "json")} <= {
        *found
    }
    pictures = {
        name.removeprefix("plots/").rpartition("-")[0] for name in found if "plots/" in name
    }
    assert {name.split("-mini")[0] for name in pictures} >= {"accept-len", "steps", "speed"}
    assert {name.split("-")[0] for name in pictures} >= {"pareto", "ablation"}
    for name, data in found.items():
        if name.endswith(".png"):
            assert data.startswith(b"\x89PNG")
        if name.endswith(".svg"):
            assert b"<svg" in data
            assert b"<dc:date>" not in data


def test_the_page_stands_alone_and_escapes_texts_and_attributes(made: tuple[Path, Path]) -> None:
    source = (made[1] / "index.html").read_text(encoding="utf-8")
    page = Page(source)
    assert page.scripts == 1
    assert not {"b", "iframe", "link"} & page.tags - {"b", "link"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    places = [value or "" for name, value in page.attributes if name in ("src", "href")]
    assert places
    assert all(place.startswith(("data:", "#")) for place in places)
    assert "größer 日本語" in source
    titles = {value for name, value in page.attributes if name == "data-label"}
    assert {"accept_len", "speed-up", "distinct-2", "A, test"} <= titles


def test_markdown_shows_answers_as_text_only(made: tuple[Path, Path]) -> None:
    for name in ("main", "cases", "strategies", "tolerance"):
        text = (made[1] / f"{name}.md").read_text(encoding="utf-8")
        outside = re.sub(r"(`{3,})text\n.*?\n\1\n", "", text, flags=re.DOTALL)
        assert "<script" not in outside
        assert "<img" not in outside
    cases = (made[1] / "cases.md").read_text(encoding="utf-8")
    assert "````text\n" in cases
    assert "größer 日本語" in cases


def test_every_row_of_a_markdown_table_has_as_many_cells_as_its_head(
    made: tuple[Path, Path],
) -> None:
    for page in made[1].glob("*.md"):
        for block in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
            lines = block.splitlines()
            assert len({len(re.findall(r"(?<!\\)\|", one)) for one in lines}) == 1


def test_what_a_report_no_longer_makes_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path / "in", "native_eagle", rows([0.5]))
    out = tmp_path / "out"
    (out / "plots").mkdir(parents=True)
    (out / "plots" / "mine.png").write_bytes(b"mine")
    (out / "plots" / "former.png").write_bytes(b"old")
    (tmp_path / "beside.md").write_text("kept", encoding="utf-8")
    listed = ["plots/former.png", "../beside.md", "plots/gone.svg", 3]
    (out / LIST).write_text(json.dumps(listed), encoding="utf-8")
    write_report([tmp_path / "in"], out, resamples=99)
    assert (out / "plots" / "mine.png").exists()
    assert not (out / "plots" / "former.png").exists()
    assert (tmp_path / "beside.md").exists()


def test_the_main_table_names_metric_flags_and_repeats(tmp_path: Path) -> None:
    for repeat, wall in enumerate((1.0, 2.0)):
        lines = [line(0, {"f1": 0.5}, turns=[stats([2, 2], wall_s=wall)]), line(1, {})]
        date = f"2026-11-30T06-44-5{repeat}"
        write_run(tmp_path, "native_eagle", lines, date=date, repeat=repeat)
    board = Board(find([tmp_path]), resamples=99)
    (table,) = main_tables(board, {board.entries[0]: ("1 failed", "x")})
    (record,) = table.records
    # 10 ids in 2 s, then 10 in 3 s.
    assert record["tokens_per_second_mean"] == pytest.approx((5 + 10 / 3) / 2)
    assert record["tokens_per_second_sd"] == pytest.approx((5 - 10 / 3) / 2**0.5)
    markdown = table.markdown()
    assert "4.2 ± 1.2 (n=2)" in markdown
    assert "f1 0.500" in markdown
    assert "1 of 2" in markdown
    assert "1 failed; x" in markdown


def test_pictures_leave_out_labelled_methods_only_where_colours_run_out(tmp_path: Path) -> None:
    def sections(labels: int) -> Board:
        folder = tmp_path / str(labels)
        sets = {f"tss_eagle@{number}": [number % 4] for number in range(labels)}
        write_run(folder / "main", "native_eagle", rows([0.5] * 2))
        write_run(folder / "main", "tss_eagle", rows([0.5] * 2), skip=[1, 2])
        write_run(folder / "sets", "native_eagle", rows([0.5] * 2))
        for name, skip in sets.items():
            write_run(folder / "sets", name, rows([0.5] * 2), skip=skip, drafter="eagle")
        return Board(find([folder]), resamples=99)

    def methods(board: Board) -> set[str]:
        (entries,) = board.sections.values()
        return {f"{e.run.session}/{e.run.adapter}" for e in _told_apart(entries)}

    few, many = sections(5), sections(6)
    assert {"5/sets/native_eagle", "5/sets/tss_eagle@4", "5/main/tss_eagle"} <= methods(few)
    assert methods(many) == {"6/main/native_eagle", "6/main/tss_eagle"}
    assert not any("ADAPTER@LABEL" in plot.caption for plot in run_plots(few))
    accept, steps, speed = run_plots(many)
    for plot in (accept, steps):
        assert "7 runs beside labels (ADAPTER@LABEL) are in the tables only" in plot.caption
    # The folder is told only where a picture has two of one method.
    (legend,) = accept.draw().legends
    assert [text.get_text() for text in legend.get_texts()] == ["native_eagle", "tss_eagle"]
    figure = speed.draw()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["native_eagle", "tss_eagle"]
    # Two native runs, one of the map, six sets.
    assert len(figure.axes[0].containers) == 9


def test_times_are_percentiles_over_requests(tmp_path: Path) -> None:
    lines = [
        line(n, {}, turns=[stats(wall_s=n), stats(wall_s=n)], first_token_s=[0.1 * n, None])
        for n in range(1, 4)
    ]
    write_run(tmp_path, "native_eagle", lines, peak_memory_bytes=3 * 2**20)
    (table,) = time_tables(Board(find([tmp_path]), resamples=99))
    (record,) = table.records
    assert record["latency_p50"] == 4.0
    assert record["latency_p90"] == pytest.approx(5.6)
    assert record["first_token_p50"] == pytest.approx(0.2)
    assert record["peak_memory_mib"] == 3.0


def test_cases_know_metrics_of_which_less_is_better(tmp_path: Path) -> None:
    given = {"higher_is_better": {"f1": False, "exact_match": True}}
    write_run(tmp_path, "native_eagle", rows([0.2] * 8), **given)
    write_run(tmp_path, "tss_eagle", rows([0.9] * 6 + [0.1] * 2), skip=[1], **given)
    (group,) = case_groups(Board(find([tmp_path]), resamples=99), shown=1)
    assert group.counts == {"improved": 2, "unchanged": 0, "worse": 6}


def test_cases_show_as_many_better_as_equal_and_worse_rows(tmp_path: Path) -> None:
    native = [0.5] * 12
    sparse = [0.6] * 6 + [0.5] * 4 + [0.4] * 2
    write_run(tmp_path, "native_eagle", rows(native))
    write_run(tmp_path, "tss_eagle", rows(sparse), skip=[1])
    board = Board(find([tmp_path]), resamples=99)
    (group,) = case_groups(board, shown=3)
    assert group.counts == {"improved": 6, "unchanged": 4, "worse": 2}
    assert [case.kind for case in group.cases] == [
        *("improved", "improved", "unchanged", "unchanged", "worse", "worse")
    ]
    worse = group.cases[-1]
    assert (worse.native.metric, worse.sparse.metric) == (0.5, 0.4)
    assert worse.references == (f"reference {worse.row.removeprefix('row-')}",)
    assert (worse.sparse.accept_len, worse.prompt[:9]) == (2.0, "question ")


@pytest.mark.parametrize("skip", [[], [1]])
def test_no_docs_and_a_dense_set_give_no_cases(tmp_path: Path, skip: list[int]) -> None:
    write_run(tmp_path, "native_eagle", rows([0.5, 0.5], docs=bool(not skip)))
    write_run(tmp_path, "tss_eagle", rows([0.4, 0.6], docs=bool(not skip)), skip=skip)
    assert case_groups(Board(find([tmp_path]), resamples=99)) == []


def test_a_strangers_directory_makes_a_whole_report(tmp_path: Path) -> None:
    lines = [line(n, {"f1": n / 4}, ours=False) for n in range(4)]
    write_run(tmp_path / "r", "native_eagle", lines, ours=False)
    written = write_report([tmp_path / "r"], tmp_path / "out", resamples=99)
    assert "plots/accept-len-mini-test-strict.svg" in written
    text = (tmp_path / "out" / "main.md").read_text(encoding="utf-8")
    assert "f1 0.375 [" in text
    assert "4 of 4" in text


def test_the_commands_end_well_and_tell_bad_input_in_a_line(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = str(made[0] / "odd")
    assert cli.main(["leaderboard", given, "--out", str(tmp_path / "out")]) == 0
    assert "index.html" in capsys.readouterr().out
    assert cli.main(["leaderboard", given, "--out", str(tmp_path / "out" / "main.md")]) == 2
    assert "is a file; give a folder" in capsys.readouterr().err
    assert cli.main(["leaderboard", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert cli.main(["leaderboard", given, "--cases", "-1"]) == 2
    assert "--cases must be 0 or more" in capsys.readouterr().err


def test_the_audit_prints_its_tables_and_flags(
    made: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["audit", str(made[0])]) == 0
    printed = capsys.readouterr().out
    assert "Text after the end" in printed
    assert "flagged: in/odd/native_eagle, empty_task: no answered rows" in printed
    assert cli.main(["audit", str(made[0]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["audit_texts"]) == 7
    assert found["flags"]["in/odd/native_eagle, empty_task"] == ["no answered rows"]
