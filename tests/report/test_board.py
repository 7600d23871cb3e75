"""Figures, paired tests and which entries belong together.

May import: numpy, pytest, scipy, model_adapters, tss_bench, tests.report.helpers and the standard
library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap

from model_adapters.arguments import SPARSE
from tests.report.helpers import line, stats, write_run
from tss_bench.report.board import Board
from tss_bench.report.entries import Entry
from tss_bench.report.files import find
from tss_bench.report.runs import _IN_ROW, _OF_SPARSE

RNG = np.random.default_rng(7)
STEPS = RNG.integers(1, 6, size=(40, 2))
"""Steps of each row, native and sparse; a step emits 2 ids in one and 3 in the other."""
F1 = RNG.random((40, 2))


def rows(side: int, wall: float = 1.0, f1: Any = None) -> list[dict[str, Any]]:
    values = F1[:, side] if f1 is None else f1
    return [
        line(n, {"f1": float(value)}, turns=[stats([2 + side] * int(steps), wall_s=wall)])
        for n, (value, steps) in enumerate(zip(values, STEPS[:, side], strict=True))
    ]


def pair(folder: Path, *, say: bool = True, **given: Any) -> tuple[Board, Entry, Entry]:
    native, sparse = given.get("native", rows(0)), given.get("sparse", rows(1, 0.8))
    together = {"interleaved_with": ["tss_eagle"]} if say else {}
    write_run(folder, "native_eagle", native, **together)
    write_run(folder, "tss_eagle", sparse, skip=[1], interleaved_with=["native_eagle"])
    board = Board(find([folder]))
    found = {entry.run.adapter: entry for entry in board.entries}
    return board, found["native_eagle"], found["tss_eagle"]


def test_intervals_are_those_of_scipy(tmp_path: Path) -> None:
    board, native, _ = pair(tmp_path)
    emitted, steps = 2.0 * STEPS[:, 0], STEPS[:, 0].astype(float)
    seconds = np.ones(40)
    cases = {
        "metric": (F1[:, 0], np.ones(40)),
        "tokens_per_second": (emitted + 1, seconds),
        "verify_ms": (np.full(40, 500.0), steps),
    }
    for name, (above, below) in cases.items():
        found = board.figure(native, name)
        assert found is not None
        expected = bootstrap(
            (above, below),
            lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
            paired=True,
            vectorized=True,
            method="percentile",
            n_resamples=9999,
            rng=np.random.default_rng(1),
        ).confidence_interval
        assert found.value == pytest.approx(above.sum() / below.sum())
        width = expected.high - expected.low
        assert found.low == pytest.approx(expected.low, abs=0.04 * width)
        assert found.high == pytest.approx(expected.high, abs=0.04 * width)


def test_a_paired_p_value_agrees_with_scipys_bootstrap_of_the_differences(tmp_path: Path) -> None:
    board, native, sparse = pair(tmp_path)
    change = board.change(native, sparse, "metric")
    assert change is not None
    difference = F1[:, 1] - F1[:, 0]
    resampled = bootstrap(
        (difference,), np.mean, method="percentile", rng=np.random.default_rng(1)
    ).bootstrap_distribution
    observed = abs(difference.mean())
    expected = (np.abs(resampled - difference.mean()) >= observed).mean()
    assert change.p == pytest.approx(expected, abs=0.015)
    assert change.value == pytest.approx(F1[:, 1].mean() / F1[:, 0].mean() - 1)
    assert change.rows == 40


def test_speed_up_is_the_ratio_of_interleaved_runs_and_nothing_else(tmp_path: Path) -> None:
    board, _, sparse = pair(tmp_path / "both")
    found = board.speed_up(sparse)
    fast = (3 * STEPS[:, 1].sum() + 40) / (0.8 * 40)
    slow = (2 * STEPS[:, 0].sum() + 40) / 40
    assert found is not None
    assert found.value == pytest.approx(fast / slow)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high
    board, _, sparse = pair(tmp_path / "one", say=False)
    assert board.speed_up(sparse) is None


def test_runs_of_two_sessions_are_not_interleaved_whatever_they_say(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "native_eagle", rows(0), interleaved_with=["tss_eagle"])
    write_run(tmp_path / "b", "tss_eagle", rows(1), skip=[1], interleaved_with=["native_eagle"])
    board = Board(find([tmp_path]), resamples=99)
    sparse = next(entry for entry in board.entries if entry.sparse)
    native = board.native_of(sparse)
    assert native is not None
    assert board.change(native, sparse, "accept_len") is not None
    assert board.speed_up(sparse) is None


def test_files_of_two_runs_into_one_folder_are_not_interleaved(tmp_path: Path) -> None:
    """Each of the two was interleaved with the other adapter, but in a run of its own."""
    write_run(tmp_path, "native_eagle", rows(0), interleaved_with=["tss_eagle"])
    other = {"date": "2026-12-01T06-44-50", "interleaved_with": ["native_eagle"]}
    write_run(tmp_path, "tss_eagle", rows(1), skip=[1], **other)
    board = Board(find([tmp_path]), resamples=99)
    sparse = next(entry for entry in board.entries if entry.sparse)
    assert board.native_of(sparse) is not None
    assert board.speed_up(sparse) is None


def test_of_two_native_runs_the_one_of_the_same_run_is_taken(tmp_path: Path) -> None:
    """Adapter folders that are given one by one say nothing of the session above them."""
    for place, date in (("a", "2026-12-01T00-00-00"), ("b", "2026-12-02T00-00-00")):
        told = {"date": date, "machine": place, "skip": [1] if place == "b" else [2]}
        for name, other in (("native_eagle", "tss_eagle"), ("tss_eagle", "native_eagle")):
            own = {**told, "skip": ()} if name.startswith("native") else told
            write_run(tmp_path / place, name, rows(0), interleaved_with=[other], **own)
    names = ("a/native_eagle", "b/native_eagle", "a/tss_eagle", "b/tss_eagle")
    board = Board(find([tmp_path / name for name in names]), resamples=99)
    pairs = [(one, board.native_of(one)) for one in board.entries if one.sparse]
    assert len(pairs) == 2
    assert all(native and native.run.machine == one.run.machine for one, native in pairs)
    assert all(board.speed_up(one) is not None for one, _ in pairs)


def test_a_routed_run_is_compared_with_its_native_run(tmp_path: Path) -> None:
    router = {"router": "knn", "router_pooling": "mean", "router_k": 3, "router_threshold": 0.5}
    shared = {"total_token": 60}
    write_run(tmp_path, "native_eagle", rows(0), model_args=shared)
    given = {**shared, **router, "domain_map": "map.json"}
    write_run(tmp_path, "tss_eagle", rows(1), skip=[1], model_args=given)
    write_run(tmp_path, "native_samd", rows(0), model_args={"total_token": 30})
    board = Board(find([tmp_path]), resamples=99)
    sparse = next(entry for entry in board.entries if entry.sparse)
    native = board.native_of(sparse)
    assert native is not None
    assert native.run.adapter == "native_eagle"
    assert ("router", "knn") in sparse.run.arguments
    assert SPARSE == _OF_SPARSE | (_IN_ROW & SPARSE)


def test_a_pair_shares_the_rows_that_both_answered(tmp_path: Path) -> None:
    native, sparse = rows(0), rows(1)
    native[0] = line(0, {}, failed="stopped")
    sparse[1] = line(1, {"f1": float("nan")})
    board, dense, other = pair(tmp_path, native=native, sparse=sparse)
    metric = board.change(dense, other, "metric")
    lengths = board.change(dense, other, "accept_len")
    assert metric is not None
    assert lengths is not None
    assert (metric.rows, lengths.rows) == (38, 39)
    assert metric.value == pytest.approx(F1[2:, 1].mean() / F1[2:, 0].mean() - 1)


def test_two_metrics_are_not_compared_with_each_other(tmp_path: Path) -> None:
    """Each side shows its own; where f1 is not a number in any row, that is another one."""
    both = {"f1": 0.4, "exact_match": 0.0}
    write_run(tmp_path, "native_eagle", [line(n, both) for n in range(8)])
    nan = {**both, "f1": float("nan")}
    write_run(tmp_path, "tss_eagle", [line(n, nan) for n in range(8)], skip=[1])
    board = Board(find([tmp_path]), resamples=99)
    native, sparse = board.entries
    assert (native.run.metric, sparse.run.metric) == ("f1", "exact_match")
    assert board.change(native, sparse, "metric") is None
    assert board.change(native, sparse, "accept_len") is not None


def test_native_is_the_same_drafter_task_and_arguments_of_the_same_session(tmp_path: Path) -> None:
    for session, given in (("a", {}), ("b", {"total_token": 60})):
        for adapter in ("native_ar", "native_eagle", "tss_eagle"):
            write_run(tmp_path / session, adapter, rows(0), model_args=given)
    board = Board(find([tmp_path]), resamples=99)
    for entry in (one for one in board.entries if one.sparse):
        native = board.native_of(entry)
        assert native is not None
        assert native.run.place == entry.run.place.replace("tss_eagle", "native_eagle")
    assert all(board.native_of(entry) is None for entry in board.entries if not entry.sparse)


def test_plain_decoding_of_a_sparse_target_has_its_skip_set_and_scope(tmp_path: Path) -> None:
    write_run(tmp_path, "native_ar", rows(0))
    write_run(tmp_path, "tss_ar", rows(0), skip=[1])
    write_run(tmp_path, "native_eagle", rows(0))
    write_run(tmp_path, "tss_eagle", rows(0), skip=[1])
    write_run(tmp_path / "other", "tss_token_recycling", rows(0), skip=[1], scope="all")
    write_run(tmp_path / "float", "native_pld", rows(0), model_args={"dtype": "float32"})
    write_run(tmp_path / "tree", "native_samd", rows(0), model_args={"total_token": "60"})
    board = Board(find([tmp_path]), resamples=99)
    plain = {
        entry.run.adapter: found.run.adapter if (found := board.plain_of(entry)) else None
        for entry in board.entries
    }
    assert plain == {
        "native_ar": None,
        "tss_ar": None,
        "native_eagle": "native_ar",
        "tss_eagle": "tss_ar",
        "tss_token_recycling": None,
        "native_pld": None,
        "native_samd": "native_ar",
    }
