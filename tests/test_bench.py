"""Reports and tables of the benchmarks; the speeds themselves are never tested."""

from __future__ import annotations

import pytest

from tests import tiny
from tss_bench.bench import domains_table, engine_report, engine_table, hub_generate
from tss_bench.types import GenerationStats


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


def test_the_domains_table_names_the_metric_and_its_rows() -> None:
    rows = [
        {
            "task": "t",
            "model": "native_ar",
            "f1": 0.25,
            "scored": 3,
            "accept_len": 1.0,
            "tokens_per_second": 40.0,
        },
        {"task": "mt", "model": "native_ar", "scored": 0, "accept_len": 1.0},
    ]
    table = domains_table(rows)
    assert "f1 0.250 (3 rows)" in table
    assert "no metric" in table


def test_hub_generate_is_timed_and_counted_as_ours() -> None:
    stats = hub_generate(tiny.model(), [5, 6, 7], 6)
    assert stats.new_tokens <= 6
    assert stats.verify_steps == stats.new_tokens - 1
    assert 0 < stats.prefill_s < stats.wall_s
