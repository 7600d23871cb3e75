"""`tss-bench domains make`: what it searches, shares, writes and refuses, on tiny models.

May import: pytest, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from model_adapters.base import SpeculativeLM
from tests.model_adapters.conftest import LAYERS, TEMPLATE, save_model
from tests.test_search_command import ANSWERING, SETTING, changed, metric, noted
from tss_bench import cli, domains, packaged_maps, search_command, search_plan
from tss_bench.domains import DOMAINS, DomainMap, find_packaged
from tss_bench.domains import packaged_maps as packaged_names
from tss_bench.harness import TaskRequests, load_tasks, prepare_adapters

ROWS = 2
CHAT = "specbench_summarization"
FEWSHOT = "specbench_qa_fewshot"
NAME = "tiny-token-recycling"
Answered = list[tuple[tuple[int, ...], str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATE)


@pytest.fixture(scope="module")
def loaded_tasks() -> dict[str, TaskRequests]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TSS_BENCH_DATA", "mini")
        tasks = load_tasks([CHAT, FEWSHOT, "specbench_qa"], ROWS, {"split": "calibration"})
    for task, name in zip(tasks, ("rougeL", "f1", "f1"), strict=True):
        for request in task.requests:
            request.args[1]["max_gen_toks"] = 8
        task.task.process_results = lambda doc, found, name=name: {name: metric(found[0])}
    return {task.name: task for task in tasks}


@pytest.fixture(autouse=True)
def mini_set(monkeypatch: pytest.MonkeyPatch, loaded_tasks: dict[str, TaskRequests]) -> None:
    """Calibration rows of the mini set, answers of at most eight ids, scored by `metric`."""

    def load(
        names: list[str],
        limit: int | None,
        metadata: dict[str, str],
        include_path: str | None = None,
    ) -> list[TaskRequests]:
        assert (metadata, include_path) == ({"split": "calibration"}, None)
        tasks = [loaded_tasks[name] for name in names]
        return [TaskRequests(t.name, t.task, t.requests[:limit]) for t in tasks]

    monkeypatch.setattr(search_plan, "load_tasks", load)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Answered:
    """Skip set and prompt of every answer that is computed."""
    seen: Answered = []
    for name in ANSWERING:
        monkeypatch.setattr(SpeculativeLM, name, noted(getattr(SpeculativeLM, name), seen.append))
    return seen


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("tss_bench.weights.load_model", load)


def make(model: Path, place: Path, *words: str) -> None:
    parser = argparse.ArgumentParser()
    packaged_maps.add_arguments(parser)
    base = ["--pretrained", str(model), "--model_args", SETTING, "--tasks", f"{FEWSHOT},{CHAT}"]
    base += ["--adapters", "tss_token_recycling", "--out", str(place / "maps"), "--mini"]
    packaged_maps.run(parser.parse_args([*base, "--work", str(place / "work"), *words]))


def maps(place: Path) -> tuple[DomainMap, DomainMap]:
    """The map of tss_beam and that of tss_bfs."""
    folder = place / "maps"
    beam, bfs = (folder / f"{NAME}.json", folder / "tss_bfs" / f"{NAME}.json")
    assert sorted(folder.rglob("*.json")) == [beam, bfs]
    return DomainMap.load(beam), DomainMap.load(bfs)


def test_both_maps_are_made_and_share_their_ledgers(
    model: Path, tmp_path: Path, answered: Answered
) -> None:
    make(model, tmp_path)
    beam, bfs = maps(tmp_path)
    # tss_beam leaves layers 0 and 1 alone, tss_bfs asks for every layer, and both for {2} and {3}.
    assert len(set(answered)) == len(answered)
    singles = {(), *((layer,) for layer in range(LAYERS))}
    assert {skip for skip, _ in answered} >= singles
    assert [skip for skip, _ in answered].count((2,)) == 2 * ROWS
    for found, strategy, candidates in ((beam, "tss_beam", [2, 3]), (bfs, "tss_bfs", [0, 1, 2, 3])):
        rest = [name for name in DOMAINS if name != "summarization"]
        assert list(found.domains) == ["summarization", FEWSHOT, *rest]
        assert all(not found.domains[name].skip for name in rest)
        records = found.provenance["search"]
        assert list(records) == ["summarization", FEWSHOT]
        for task, record in zip((CHAT, FEWSHOT), records.values(), strict=True):
            assert (record["task"], record["strategy"]) == (task, strategy)
            assert record["space"]["candidates"] == candidates
            assert record["space"]["depth"] == 2
            assert record["ledger"] == f"{task}.jsonl"
    ledgers = tmp_path / "work" / NAME
    assert sorted(path.name for path in ledgers.glob("*.jsonl")) == sorted(
        f"{task}.jsonl" for task in (CHAT, FEWSHOT)
    )


def test_a_map_says_what_made_it_and_nothing_of_this_machine_s_places(
    model: Path, tmp_path: Path
) -> None:
    make(model, tmp_path, "--strategies", "tss_beam", "--limit", "1")
    found = DomainMap.load(tmp_path / "maps" / f"{NAME}.json")
    assert found.provenance["source"] == packaged_maps.SOURCE
    (run,) = found.provenance["runs"]
    assert run["command"] == (
        f"tss-bench domains make --out OUT --pretrained tiny --model_args {SETTING} "
        f"--adapters tss_token_recycling --strategies tss_beam --tasks {FEWSHOT},{CHAT} "
        f"--limit 1 --mini"
    )
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
    assert run["machine"]["device"] == "cpu"
    assert set(run) == {"command", "commit", "date", "machine"}
    assert str(tmp_path) not in json.dumps(found.to_dict())
    assert model.parent.as_posix() not in json.dumps(found.to_dict())


def test_started_again_it_decodes_nothing_and_makes_the_same_maps(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answered: Answered
) -> None:
    search = search_command.run

    def killed(args: argparse.Namespace) -> None:
        if args.strategy == "tss_bfs":
            raise KeyboardInterrupt
        search(args)

    with monkeypatch.context() as patch:
        patch.setattr(search_command, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            make(model, tmp_path)
    by_beam = list(answered)
    assert not (tmp_path / "maps" / "tss_bfs").exists()
    answered.clear()
    make(model, tmp_path)
    assert answered
    assert not set(answered) & set(by_beam)
    first = maps(tmp_path)
    answered.clear()
    make(model, tmp_path)
    assert answered == []
    assert maps(tmp_path) == first
    make(model, tmp_path, "--limit", "1", "--work", str(tmp_path / "other"))
    fewer = maps(tmp_path)
    assert [one.provenance["search"]["summarization"]["rows"] for one in fewer] == [1, 1]


def test_another_strategy_replaces_all_of_a_domain_in_a_map(model: Path, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    search_command.add_arguments(parser)
    base = ["--model", "tss_token_recycling", "--model_args", f"pretrained={model},{SETTING}"]
    base += ["--tasks", CHAT, "--tolerance", "1", "--tau", "1"]

    def run(out: Path, *words: str) -> DomainMap:
        places = ["--out", str(out), "--ledger", str(tmp_path / "ledger")]
        search_command.run(parser.parse_args([*base, *words, *places]))
        return DomainMap.load(out)

    first = run(tmp_path / "map.json", "--strategy", "tss_bfs", "--depth", "1")
    second = run(tmp_path / "map.json", "--strategy", "tss_bfs", "--depth", "2")
    assert len(first.domains["summarization"].skip) == 1
    assert len(second.domains["summarization"].skip) == 2
    assert run(tmp_path / "new.json", "--strategy", "tss_bfs", "--depth", "2") == second
    third = run(tmp_path / "map.json", "--strategy", "tss_beam")
    assert third.provenance["search"]["summarization"]["strategy"] == "tss_beam"
    assert run(tmp_path / "newer.json", "--strategy", "tss_beam") == third


def test_adapters_take_the_beam_s_map_and_never_another_strategy_s(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(model, tmp_path, "--limit", "1")
    monkeypatch.setattr(domains, "MAPS_DIR", tmp_path / "maps")
    assert packaged_names() == (NAME, f"tss_bfs/{NAME}")
    beam, bfs = maps(tmp_path)
    assert find_packaged("tiny", "token_recycling") == (NAME, beam)
    assert DomainMap.load(f"tss_bfs/{NAME}") == bfs

    def taken(**more: str) -> SpeculativeLM:
        given = {"pretrained": str(model), **more}
        return prepare_adapters(["tss_token_recycling"], given)["tss_token_recycling"]

    assert taken().controller.choose(CHAT).why == f"domain summarization in packaged map {NAME}"
    assert taken().controller.choose(FEWSHOT).why == f"task {FEWSHOT} in packaged map {NAME}"
    assert taken().controller.choose("specbench_mt_bench").why.startswith("domain mt_bench in")
    by_name = taken(domain_map=f"tss_bfs/{NAME}").controller.choose(CHAT)
    assert by_name.why == f"domain summarization in map tss_bfs/{NAME}"
    (tmp_path / "maps" / f"{NAME}.json").unlink()
    assert find_packaged("tiny", "token_recycling") is None


@pytest.mark.usefixtures("no_loading")
def test_a_dry_run_counts_skip_sets_and_writes_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--adapters", "tss_ar,tss_token_recycling", "--model_args")
    make(model, tmp_path, *words, f"{SETTING},tree=token_recycling_8", "--dry-run")
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:-1]]
    # tss_beam has layers 2 and 3: dense, two singles, one pair; tss_bfs 1 + 4 + 6.
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [
        (f"{folder}tiny-{drafter}", key, str(ROWS), count)
        for drafter in ("ar", "token-recycling")
        for folder, count in (("", "4"), ("tss_bfs/", "11"))
        for key in ("summarization", FEWSHOT)
    ]
    assert lines[-1].startswith("4 maps, at most 60 skip sets")
    assert list(tmp_path.iterdir()) == []


def test_the_forms_of_one_domain_stand_side_by_side(model: Path, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    search_command.add_arguments(parser)
    words = ["--model", "tss_ar", "--model_args", f"pretrained={model},{SETTING}"]
    words += ["--tasks", f"specbench_qa,{FEWSHOT}", "--out", str(tmp_path / "map.json")]
    plan = search_plan.prepare(parser.parse_args([*words, "--by", "form"]))
    assert [domain.key for domain in plan.domains] == ["qa", FEWSHOT]
    with pytest.raises(ValueError, match=r"are of one domain, qa; .*--by form"):
        search_plan.prepare(parser.parse_args(words))


@pytest.mark.usefixtures("no_loading")
def test_rows_that_are_not_official_are_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded_tasks: dict[str, Any]
) -> None:
    parser = argparse.ArgumentParser()
    packaged_maps.add_arguments(parser)
    words = ["--pretrained", str(model), "--model_args", SETTING, "--tasks", f"{CHAT},{FEWSHOT}"]
    words += ["--adapters", "tss_ar", "--out", str(tmp_path / "maps"), "--dry-run"]
    mini = rf"official .*not from those of {CHAT} \(mini, calibration\), {FEWSHOT}.*or give --mini"
    with pytest.raises(ValueError, match=mini):
        packaged_maps.run(parser.parse_args(words))
    data = loaded_tasks[CHAT].task.config.metadata["data"]
    monkeypatch.setitem(data, "kind", "official")
    with pytest.raises(ValueError, match=rf"not from those of {FEWSHOT} "):
        packaged_maps.run(parser.parse_args(words))
    monkeypatch.setitem(data, "kind", "custom")
    with pytest.raises(ValueError, match=rf"not from those of {CHAT} "):
        packaged_maps.run(parser.parse_args([*words, "--mini"]))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--adapters", "tss_fly"), "no adapter 'tss_fly'"),
        (("--adapters", ""), "no adapter was named"),
        (("--adapters", "native_ar"), "native_ar always runs every layer"),
        (("--strategies", "tss_bem"), "no strategy 'tss_bem'; did you mean tss_beam?"),
        (("--strategies", ","), "--strategies names none; the default is tss_beam,tss_bfs"),
        (("--tasks", "specbench_mt_bench"), "--tasks must name tasks of specbench_summarization, "),
        (("--tasks", ""), "got none"),
        (("--limit", "0"), "--limit must be at least 1, got 0"),
        (("--model_args", "pretrained=x"), "--model_args may not hold pretrained"),
        (("--model_args", "skip_layers=1"), "--model_args may not hold skip_layers"),
        (("--model_args", "draft=x"), "'draft' has no meaning for tss_token_recycling"),
        (("--out", "FILE"), "the folder cannot be made"),
        (("--work", "FILE"), "--work FILE"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    model: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    flag, value = words
    with pytest.raises(ValueError, match=re.escape(message.replace("FILE", str(file)))) as refused:
        make(model, tmp_path / "place", flag, value.replace("FILE", str(file)))
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("no_loading")
def test_what_belongs_to_another_model_is_refused_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[argparse.Namespace] = []
    monkeypatch.setattr(search_command, "run", searched.append)
    monkeypatch.setattr(packaged_maps, "_completed", lambda made, before: made)
    make(model, tmp_path)
    assert [args.strategy for args in searched] == ["tss_beam", "tss_bfs"]
    other = changed(model, tmp_path / "other" / "tiny")
    with pytest.raises(ValueError, match=r"model.revision was .* \(--work names another folder\)"):
        make(other, tmp_path)
    path = tmp_path / "maps" / f"{NAME}.json"
    path.write_text(path.read_text("utf-8").replace('"tiny"', '"small"'), encoding="utf-8")
    with pytest.raises(ValueError, match="domain map is for model small, but the target is tiny"):
        make(model, tmp_path)
    assert len(searched) == 2


def test_the_command_is_there_with_the_defaults_of_the_packaged_maps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[argparse.Namespace] = []
    monkeypatch.setattr(packaged_maps, "run", seen.append)
    assert cli.main(["domains", "make"]) == 0
    (args,) = seen
    assert args.adapters == "tss_eagle,tss_token_recycling"
    assert args.strategies == "tss_beam,tss_bfs"
    assert args.pretrained == "smollm2-135m-instruct"
    assert args.tasks.split(",") == [
        "specbench_summarization",
        "specbench_rag",
        "specbench_math_reasoning",
        "tss_mmlu",
        "specbench_translation",
        "specbench_qa",
        "tss_nq_open",
        "specbench_translation_fewshot",
        "specbench_qa_fewshot",
        "tss_nq_open_fewshot",
        "tss_mmlu_fewshot",
    ]


def test_a_part_of_the_tasks_leaves_what_was_found_of_the_others(
    model: Path, tmp_path: Path
) -> None:
    make(model, tmp_path)
    before = maps(tmp_path)
    make(model, tmp_path, "--tasks", CHAT)
    for old, new in zip(before, maps(tmp_path), strict=True):
        assert new.domains == old.domains
        assert new.pareto == old.pareto
        assert new.provenance["search"] == old.provenance["search"]
        # The earlier runs stay on record beside this one.
        assert new.provenance["runs"][: len(old.provenance["runs"])] == old.provenance["runs"]
        assert "--tasks" in new.provenance["runs"][-1]["command"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model_args", f"{SETTING},protocol=paper"), "may not hold protocol: packaged maps"),
        (("--model_args", f"{SETTING},scope=all"), "may not hold scope: packaged maps"),
    ],
)
@pytest.mark.usefixtures("no_loading")
def test_scopes_and_protocols_of_no_packaged_map_are_refused(
    model: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(model, tmp_path, *words)
