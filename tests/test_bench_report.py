"""Figures and tables of the benchmarks; the speeds themselves are never tested."""

from __future__ import annotations

from typing import Any

import pytest

from tss_bench.bench_report import (
    answer_pairs,
    domains_row,
    domains_table,
    engine_report,
    engine_table,
    summarize,
    summary_table,
)
from tss_bench.types import GeneratedText, GenerationStats


def record(new_tokens: int, steps: int, prefill_s: float, wall_s: float) -> GenerationStats:
    lengths = (1,) * (steps - 1) + (new_tokens - steps,) if steps else ()
    return GenerationStats(
        prompt_tokens=4,
        new_tokens=new_tokens,
        verify_steps=steps,
        drafted=0,
        accepted=0,
        accept_lengths=lengths,
        prefill_s=prefill_s,
        draft_s=0.0,
        verify_s=wall_s - prefill_s,
        wall_s=wall_s,
        stop="length",
    )


RECORDS = {
    "a": {
        "hf_generate": [record(11, 10, 1.0, 11.0), record(9, 8, 1.0, 11.0)],
        "native_ar": [record(11, 10, 1.0, 6.0), record(9, 8, 1.0, 6.0)],
        "native_eagle": [record(11, 5, 1.0, 3.0), record(9, 5, 1.0, 4.0)],
    },
    "b": {
        "hf_generate": [record(11, 10, 0.0, 11.0)],
        "native_ar": [record(11, 10, 0.0, 11.0)],
        "native_eagle": [record(11, 5, 0.0, 5.5)],
    },
}


def test_speed_ups_are_ratios_of_pooled_decode_speeds() -> None:
    report = engine_report(RECORDS)
    # a: 20 tokens in 20 s, 10 s and 5 s behind prefill; b: 11 tokens in 11, 11 and 5.5 s.
    assert report["a"]["native_ar"]["over_hub"] == pytest.approx(2.0)
    assert report["a"]["native_eagle"]["over_plain"] == pytest.approx(2.0)
    assert report["a"]["native_eagle"]["tokens_per_second"] == pytest.approx(20 / 7)
    assert report["a"]["native_eagle"]["accept_len"] == pytest.approx(18 / 10)
    assert report["mean"]["native_ar"]["over_hub"] == pytest.approx(1.5)
    assert report["mean"]["native_eagle"]["over_plain"] == pytest.approx(2.0)


def test_the_engine_table_has_a_row_a_method_and_the_mean() -> None:
    lines = engine_table(engine_report(RECORDS)).splitlines()
    assert len(lines) == 2 + 3 * 3
    assert lines[-1].split("|")[1].strip() == "mean"


def answer(stats: GenerationStats, *skip: int) -> GeneratedText:
    config = {"skip": list(skip), "scope": "verify", "protocol": "paper"}
    return GeneratedText("x", (stats,), config=config)


def row(
    answers: list[GeneratedText], samples: dict[str, list[Any]], metrics: dict[str, float]
) -> dict[str, Any]:
    return {"task": "t", "model": "m", **domains_row(answers, samples, metrics)}


def test_figures_carry_intervals_of_their_rows() -> None:
    # Rows of equal rates have no spread: 8 ids in 4 steps and 2 s, 4 in 2 and 1 s.
    answers = [answer(record(9, 4, 0.0, 2.25), 3, 10), answer(record(5, 2, 0.0, 1.25), 3, 10)]
    lengths = [sum(text.stats[0].accept_lengths) for text in answers]
    assert lengths == [8, 4]
    found = row(answers, {"f1": [0.0, 1.0]}, {"f1": 0.5, "exact_match": 0.0})
    assert (found["accept_len"], found["tokens_per_second"]) == (2.0, 4.0)
    assert found["intervals"]["accept_len"] == (2.0, 2.0)
    assert found["intervals"]["tokens_per_second"] == pytest.approx((4.0, 4.0))
    # Two rows, 0 and 1: a quarter of the resamples has mean 0, a quarter 1.
    assert found["intervals"]["f1"] == (0.0, 1.0)
    assert found["scored"] == 2
    assert (found["skip"], found["scope"], found["protocol"]) == ([[3, 10]], ["verify"], ["paper"])


def test_the_table_shows_setting_and_intervals() -> None:
    answers = [answer(record(9, 4, 0.0, 2.25), 3, 10), answer(record(5, 2, 0.0, 1.25), 3, 10)]
    table = domains_table([row(answers, {"f1": [0.0, 1.0]}, {"f1": 0.5})])
    cells = [cell.strip() for cell in table.splitlines()[-1].strip("|").split("|")]
    assert cells == [
        "t",
        "m",
        "{3,10} verify paper",
        "2.00 [2.00, 2.00]",
        "f1 0.500 [0.000, 1.000] (2 rows)",
        "4.0 [4.0, 4.0]",
    ]


def test_one_row_has_no_interval_and_a_task_without_judge_no_metric() -> None:
    found = row([answer(record(9, 4, 0.0, 2.25))], {}, {"scored": 0})
    table = domains_table([found])
    cells = [cell.strip() for cell in table.splitlines()[-1].strip("|").split("|")]
    assert cells[2:] == ["{} verify paper", "2.00", "no metric", "4.0"]


def test_every_skip_set_of_a_task_is_shown() -> None:
    answers = [answer(record(5, 2, 0.0, 1.0), 3), answer(record(5, 2, 0.0, 1.0))]
    assert "{3} or {} verify paper" in domains_table([row(answers, {}, {})])


def test_answers_without_a_step_have_no_accept_length() -> None:
    found = row([answer(record(1, 0, 0.5, 1.0))], {}, {})
    assert "accept_len" not in found
    assert found["tokens_per_second"] == 1.0


def task_pairs(**rows: list[tuple[int, int, float]]) -> dict[str, dict[str, list[Any]]]:
    """By adapter: rows of (new tokens, steps, seconds)."""
    return {
        name: answer_pairs([answer(record(new, steps, 0.0, wall)) for new, steps, wall in given])
        for name, given in rows.items()
    }


TASKS = {
    # The machine was five times slower on the second row, for both alike.
    "specbench_qa": task_pairs(
        native_ar=[(11, 10, 2.0), (11, 10, 10.0)], fast=[(11, 5, 1.0), (11, 5, 5.0)]
    ),
    "specbench_rag": task_pairs(
        native_ar=[(9, 8, 4.0), (9, 8, 4.0)], fast=[(9, 8, 1.0), (9, 8, 1.0)]
    ),
}


def test_a_speed_up_is_paired_row_by_row_and_the_mean_counts_each_task_once() -> None:
    fast = summarize(TASKS)["fast"]
    assert (fast["specbench_qa"]["accept_len"], fast["specbench_rag"]["accept_len"]) == (2.0, 1.0)
    assert fast["mean"]["accept_len"] == 1.5
    assert fast["specbench_qa"]["speed_up"] == pytest.approx(2.0)
    # Each row is twice as fast: drawn together, the rows have no spread.
    assert fast["specbench_qa"]["speed_up_interval"] == pytest.approx((2.0, 2.0))
    assert fast["mean"]["speed_up"] == pytest.approx(3.0)
    assert fast["mean"]["speed_up_interval"] == pytest.approx((3.0, 3.0))


def test_the_summary_has_a_row_a_method_and_a_column_a_domain() -> None:
    lines = summary_table(summarize(TASKS)).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["method", "qa", "rag", "mean"]
    assert cells[2] == ["native_ar", *["1.00 [1.00, 1.00], 1.00x"] * 3]
    assert cells[3] == [
        "fast",
        "2.00 [2.00, 2.00], 2.00x [2.00, 2.00]",
        "1.00 [1.00, 1.00], 4.00x [4.00, 4.00]",
        "1.50 [1.50, 1.50], 3.00x [3.00, 3.00]",
    ]


def test_without_plain_decoding_the_summary_has_no_speed() -> None:
    tasks = {"specbench_qa": task_pairs(fast=[(11, 5, 1.0)])}
    lines = summary_table(summarize(tasks)).splitlines()
    assert [cell.strip() for cell in lines[2].strip("|").split("|")] == ["fast", "2.00", "2.00"]


def test_a_task_without_a_step_has_no_accept_length_and_leaves_the_mean_without() -> None:
    tasks = {
        "specbench_qa": task_pairs(native_ar=[(1, 0, 1.0)], fast=[(1, 0, 0.5)]),
        "specbench_rag": TASKS["specbench_rag"],
    }
    fast = summarize(tasks)["fast"]
    assert fast["specbench_qa"]["accept_len"] is fast["mean"]["accept_len"] is None
    assert fast["mean"]["speed_up"] == pytest.approx(3.0)
    line = summary_table(summarize(tasks)).splitlines()[-1]
    assert line.split("|")[2].strip() == "2.00x"
