"""Strategies and tolerances from maps and ledgers, beside the test rows; the published rows.

May import: pytest, tss_bench, tests.report.helpers and the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.helpers import TASK, line, stats, write_run
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.report.board import Board
from tss_bench.report.files import find
from tss_bench.report.published import published_strategies, published_tables
from tss_bench.report.search_plots import search_plots
from tss_bench.report.searches import scores, strategy_tables, tolerance_tables
from tss_bench.report.tables import plain
from tss_bench.search import Evaluation
from tss_bench.search.ledger import Fingerprint, Ledger
from tss_bench.types import SkipSet

FIGURES = {
    (): (2.0, 0.5),
    (0,): (1.0, 0.5),
    (1,): (2.4, 0.48),
    (2,): (1.96, 0.5),
    (1, 2): (2.2, 0.5),
    (1, 3): (3.0, 0.1),
}
"""A and M of each set on the two calibration rows."""


FINGERPRINT = Fingerprint(
    model={"id": "four-layers", "dtype": "bfloat16", "max_length": None},
    drafter={"id": "eagle", "draft_fingerprint": "a head", "tree_shape": {"top_k": 3}},
    data={"rows": 2, "task": TASK},
    protocol="strict",
    scope="verify",
    versions={},
    other={"max_gen_toks": 256},
)


def write_ledger(path: Path, fingerprint: Fingerprint = FINGERPRINT) -> None:
    with Ledger(path, fingerprint, 4) as ledger:
        ledger.note({"run": "x", "strategy": "tss_bfs"})
        for layers, (accept, metric) in FIGURES.items():
            skip = SkipSet.of(layers, 4)
            pairs = ((accept * 10, 10), (accept * 20, 20))
            ledger.append(Evaluation(skip, (0, 1), accept=pairs, metric=(metric, metric)))
        # Known on one of the two prompts only: it has no figures.
        ledger.append(Evaluation(SkipSet.of([3], 4), (0,), accept=((90, 10),), metric=(1.0,)))


def write_map(
    path: Path, skip: list[int], strategy: str, front: Sequence[DomainConfig] = (), **record: Any
) -> None:
    accept, metric = FIGURES[tuple(skip)]
    told = {
        "task": TASK,
        "data": f"{TASK} (mini, calibration)",
        "metric_name": "f1",
        "strategy": strategy,
        "dense": {"accept": 2.0, "metric": 0.5, "cost": 1.0},
        "counts": {"evaluations": 6, "prompt_evaluations": 12},
        "fingerprint": {"sha256": FINGERPRINT.digest(), **FINGERPRINT.parts()},
        **record,
    }
    DomainMap(
        model="four-layers",
        drafter="eagle",
        num_layers=4,
        domains={"qa": DomainConfig(SkipSet.of(skip, 4), accept, metric)},
        pareto={"qa": tuple(front)},
        provenance={"search": {"qa": told}},
    ).save(path)


def write_tests(folder: Path) -> None:
    native = [line(n, {"f1": 0.4}, turns=[stats([2, 2])]) for n in range(4)]
    sparse = [line(n, {"f1": 0.3}, turns=[stats([3, 3])]) for n in range(4)]
    write_run(folder, "native_eagle", native)
    write_run(folder, "tss_eagle", sparse, skip=[1, 2])


@pytest.fixture
def board(tmp_path: Path) -> Board:
    write_tests(tmp_path / "runs")
    took = {"seconds": 120.04, "machine": "A CPU, 2 threads"}
    write_map(tmp_path / "maps" / "bfs.json", [1, 2], "tss_bfs", **took)
    write_map(tmp_path / "maps" / "none.json", [], "sleb", reason="dense kept: none is feasible")
    write_ledger(tmp_path / "maps" / "bfs.ledger" / f"{TASK}.jsonl")
    return Board(find([tmp_path]), resamples=99)


def test_a_strategy_stands_with_its_calibration_and_its_test_figures(board: Board) -> None:
    (table,) = strategy_tables(board)
    assert table.title == "mini data, protocol strict"
    rows = {record["strategy"]: record for record in table.records}
    assert list(rows) == ["dense", "sleb", "tss_bfs"]
    bfs = rows["tss_bfs"]
    assert (bfs["skip"], bfs["evaluations"]) == ("{1,2}", 6)
    assert bfs["accept_calibration_change"] == pytest.approx(0.1)
    assert bfs["metric_calibration_change"] == 0.0
    assert (bfs["accept_test"], bfs["metric_test"]) == (3.0, pytest.approx(0.3))
    assert bfs["accept_test_change"] == pytest.approx(0.5)
    assert bfs["metric_test_change"] == pytest.approx(-0.25)
    dense = rows["dense"]
    assert (dense["accept_calibration"], dense["accept_test"]) == (2.0, 2.0)
    assert rows["sleb"]["note"] == "dense kept: none is feasible"
    assert "0.50 (+0.0 %)" not in table.markdown()
    assert "f1 0.500 (+0.0 %)" in table.markdown()


def test_a_search_says_how_long_it_took_and_where(board: Board) -> None:
    (table,) = strategy_tables(board)
    records = [plain(record) for record in table.records]
    assert [record["seconds"] for record in records] == [None, None, 120.04]
    assert [record["machine"] for record in records] == [None, None, "A CPU, 2 threads"]
    (column,) = [column for column in table.shown() if column.title == "search, s"]
    assert [column.text(record) for record in table.records] == ["-", "-", "120.0"]
    assert "another one had paid for them first" in table.remarks()[-2]
    assert table.remarks()[-1] == "Searched on: A CPU, 2 threads"


def test_a_search_stands_once_however_many_maps_hold_it(tmp_path: Path) -> None:
    write_tests(tmp_path / "runs")
    write_map(tmp_path / "maps" / "first.json", [1, 2], "tss_bfs", seconds=3.0)
    write_map(tmp_path / "maps" / "copy.json", [1, 2], "tss_bfs", seconds=3.0)
    write_map(tmp_path / "maps" / "other.json", [1, 2], "tss_bfs", seconds=4.0)
    (table,) = strategy_tables(Board(find([tmp_path]), resamples=99))
    assert [row["strategy"] for row in table.records] == ["dense", "tss_bfs", "tss_bfs"]
    assert [row["seconds"] for row in table.records] == [None, 3.0, 4.0]


@pytest.mark.parametrize("seconds", [None, "soon", True])
def test_a_map_without_seconds_has_no_such_column(tmp_path: Path, seconds: object) -> None:
    write_tests(tmp_path / "runs")
    write_map(tmp_path / "map.json", [1, 2], "tss_bfs", seconds=seconds)
    (table,) = strategy_tables(Board(find([tmp_path]), resamples=99))
    assert [record["seconds"] for record in table.records] == [None, None]
    assert "search, s" not in table.markdown()
    assert not any("search, s" in remark for remark in table.remarks())


def test_a_run_on_other_data_rows_or_scope_is_no_test_of_a_search(tmp_path: Path) -> None:
    lines = [line(0, {"f1": 0.3})]
    write_run(tmp_path / "a", "tss_eagle", lines, skip=[1, 2], data="official")
    write_run(tmp_path / "b", "tss_eagle", lines, skip=[1, 2], scope="all")
    write_run(tmp_path / "c", "tss_eagle", lines, skip=[1, 2], split="calibration")
    write_run(tmp_path / "d", "tss_token_recycling", lines, skip=[1, 2])
    # One of the two rows that another run answered.
    write_run(tmp_path / "e", "tss_eagle", [*lines, line(1, {"f1": 0.3})], skip=[3])
    write_run(tmp_path / "f", "tss_eagle", lines, skip=[1, 2])
    write_map(tmp_path / "map.json", [1, 2], "tss_bfs")
    (table,) = strategy_tables(Board(find([tmp_path]), resamples=99))
    assert [record["test_run"] for record in table.records] == [None, None]


@pytest.mark.parametrize(
    ("changed", "generation", "is_test"),
    [
        ({}, {}, True),
        # The search left these to the model; where it ran is no setting.
        ({"max_length": 8192, "chat_template": True, "device": "cuda"}, {}, True),
        ({}, {"temperature": 0, "do_sample": "False"}, True),
        ({"temperature": 1.0}, {}, False),
        ({"dtype": "float32"}, {}, False),
        ({"max_gen_toks": 8}, {}, False),
        ({"draft_fingerprint": "another head"}, {}, False),
        ({"tree_shape": {"top_k": 4}}, {}, False),
        ({}, "temperature=0.7", False),
        ({}, "until=x", False),
    ],
)
def test_a_run_that_decoded_in_another_way_is_no_test_of_a_search(
    tmp_path: Path, changed: dict[str, Any], generation: Any, is_test: bool
) -> None:
    resolved = {
        "dtype": "bfloat16",
        "max_gen_toks": 256,
        "temperature": 0.0,
        "draft_fingerprint": "a head",
        "tree_shape": {"top_k": 3},
    }
    told = {"tss_bench": {**resolved, **changed}, "gen_kwargs": generation}
    write_run(tmp_path, "tss_eagle", [line(0, {"f1": 0.3})], skip=[1, 2], config=told)
    write_map(tmp_path / "map.json", [1, 2], "tss_bfs")
    (table,) = strategy_tables(Board(find([tmp_path]), resamples=99))
    assert (table.records[1]["test_run"] is not None) == is_test


def test_what_a_search_set_itself_a_run_must_have_too(tmp_path: Path) -> None:
    parts = FINGERPRINT.parts()
    parts["model"]["max_length"] = 512
    told = {"tss_bench": {"max_length": 8192}}
    write_run(tmp_path, "tss_eagle", [line(0, {"f1": 0.3})], skip=[1, 2], config=told)
    write_map(tmp_path / "map.json", [1, 2], "tss_bfs", fingerprint={"sha256": "x", **parts})
    (table,) = strategy_tables(Board(find([tmp_path]), resamples=99))
    assert table.records[1]["test_run"] is None


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_searches_with_another_dense_figure_have_a_dense_row_of_their_own(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    write_tests(tmp_path / "runs")
    write_map(tmp_path / "a.json", [1, 2], "tss_bfs")
    other = {"accept": 1.1, "metric": 0.25, "cost": 1.0}
    write_map(tmp_path / "b.json", [1, 2], "tss_beam", dense=other)
    places = [tmp_path / "runs", *(tmp_path / f"{name}.json" for name in names)]
    (table,) = strategy_tables(Board(find(places), resamples=99))
    # Each below its own, {1,2} with A 2.2 and M 0.5.
    assert [
        (row["strategy"], row["accept_calibration"], row["accept_calibration_change"])
        for row in table.records
    ] == [
        ("dense", 1.1, None),
        ("tss_beam", 2.2, pytest.approx(1.0)),
        ("dense", 2.0, None),
        ("tss_bfs", 2.2, pytest.approx(0.1)),
    ]


def test_scores_of_a_ledger_are_those_of_sets_known_on_every_row(board: Board) -> None:
    dense, others = scores(board.inputs.ledgers[0])
    assert dense is not None
    assert (dense.accept, dense.metric, dense.cost) == (2.0, 0.5, 1.0)
    found = {tuple(s.skip): (pytest.approx(s.accept), s.metric, s.cost) for s in others}
    assert found == {
        layers: (accept, metric, 1 - len(layers) / 4)
        for layers, (accept, metric) in FIGURES.items()
        if layers
    }


def test_each_tolerance_takes_the_cheapest_set_within_it(board: Board) -> None:
    (table,) = tolerance_tables(board)
    chosen = {record["tolerance"]: record["skip"] for record in table.records}
    # {1,2} is cheapest within 5 % and within 0; +5 % of M no set has.
    assert chosen == {0.05: "{1,2}", 0.0: "{1,2}", -0.05: "{}"}
    assert [record["sets"] for record in table.records] == [5, 5, 5]
    assert table.records[0]["accept_test"] == 3.0


def test_ledgers_of_other_or_unknown_data_stand_apart(tmp_path: Path) -> None:
    """Which data a ledger is of stands in the map of a search that used it."""
    write_tests(tmp_path / "runs")
    known, unknown = replace(FINGERPRINT, data={"rows": 2, "task": TASK, "sha256": "o"}), "unknown"
    write_ledger(tmp_path / "mini" / "a.jsonl")
    write_ledger(tmp_path / "official" / "a.jsonl", known)
    write_ledger(tmp_path / unknown / "a.jsonl", replace(FINGERPRINT, data={**known.data, "x": 1}))
    write_map(tmp_path / "mini.json", [1, 2], "tss_bfs")
    told = {"sha256": known.digest(), **known.parts()}
    write_map(
        tmp_path / "o.json", [1, 2], "tss_bfs", data=f"{TASK} (calibration)", fingerprint=told
    )
    board = Board(find([tmp_path]), resamples=99)
    tables = {table.title: table.records for table in tolerance_tables(board)}
    assert {title: rows[0]["accept_test"] for title, rows in tables.items()} == {
        "data not stated (no map of a search with this ledger), protocol strict": None,
        "mini data, protocol strict": 3.0,
        "official data, protocol strict": None,
    }
    stems = [plot.stem for plot in search_plots(board) if plot.stem.startswith("ablation")]
    assert stems == [
        f"ablation-four-layers-eagle-{middle}strict" for middle in ("", "mini-", "official-")
    ]


def test_a_front_is_the_searchs_own_and_grey_sets_are_of_its_machine(tmp_path: Path) -> None:
    def points(name: str) -> tuple[int, int]:
        places = [tmp_path / "runs", tmp_path / name, tmp_path / "ledger.jsonl"]
        board = Board(find(places), resamples=99)
        (plot,) = [p for p in search_plots(board) if p.stem.startswith("pareto")]
        shown = {
            str(each.get_label()): len(each.get_offsets())
            for each in plot.draw().axes[0].collections
        }
        return shown.get("Pareto front", 0), shown.get("other sets", 0)

    write_tests(tmp_path / "runs")
    write_ledger(tmp_path / "ledger.jsonl")
    front = [DomainConfig(SkipSet.of([0], 4), 1.0, 0.5)]
    write_map(tmp_path / "own.json", [1, 2], "tss_bfs", front)
    assert points("own.json") == (1, 5)
    write_map(tmp_path / "none.json", [1, 2], "sleb")
    assert points("none.json") == (0, 5)
    other = {"accept": 2.1, "metric": 0.5, "cost": 1.0}
    write_map(tmp_path / "other.json", [1, 2], "tss_bfs", front, dense=other)
    assert points("other.json") == (1, 0)


def test_a_ledger_is_read_without_its_lock(tmp_path: Path) -> None:
    write_tests(tmp_path)
    path = tmp_path / "search.jsonl"
    write_ledger(path)
    fingerprint = json.loads(path.read_text(encoding="utf-8").splitlines()[0])["parts"]
    with Ledger(path, Fingerprint(**fingerprint), 4):
        (ledger,) = find([tmp_path]).ledgers
    assert len(ledger.table.sets()) == 7
    path.write_text('{"ledger":9}\n', encoding="utf-8")
    assert "ledger of another version" in find([tmp_path]).notes[0]


def test_the_published_rows_stand_beside_the_same_model_and_drafter(tmp_path: Path) -> None:
    given: dict[str, Any] = {"model": "vicuna-7b-v1.3", "num_layers": 32}
    for task in ("tss_nq_open", "specbench_qa", "specbench_translation"):
        for adapter, skip in (("native_eagle", []), ("tss_eagle", [3])):
            write_run(
                tmp_path / task, adapter, [line(0, {"f1": 0.5})], task=task, skip=skip, **given
            )
    (table,) = published_tables(Board(find([tmp_path]), resamples=99))
    assert table.title.endswith("(published, protocol paper, RTX 4090)")
    assert [(row["domain"], row["task"]) for row in table.records] == [
        ("translation", "specbench_translation"),
        ("qa", "tss_nq_open"),
    ]
    row = table.records[0]
    # shared/published.json: translation of Vicuna-7B with EAGLE.
    assert (row["published_native_accept_len"], row["published_tss_accept_len"]) == (2.697, 4.528)
    assert (row["published_native_metric"], row["published_tss_metric"]) == (0.1312, 0.2370)
    assert row["published_tss_tokens_per_second"] == 127.26
    assert (row["published_skip"], row["skip"], row["tss_accept_len"]) == ("{3,25,30}", "{3}", 2.0)
    assert "2.70 → 4.53" in table.markdown()
    write_tests(tmp_path / "other")
    assert published_tables(Board(find([tmp_path / "other"]), resamples=99)) == []


def test_the_published_strategies_are_shown_to_their_target_only() -> None:
    (table,) = published_strategies([("lmsys/vicuna-7b-v1.3", "eagle")])
    rows = {(row["domain"], row["strategy"]): row for row in table.records}
    assert len(rows) == 12
    assert rows["mmlu", "tss"]["skip"] == "{3,7,9,14,20}"
    assert rows["translation", "sleb"]["evaluations"] == 114
    assert rows["translation", "random"]["evaluations"] is None
    assert published_strategies([("lmsys/vicuna-7b-v1.3", "samd"), ("other", "eagle")]) == []
