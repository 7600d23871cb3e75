"""Pooled figures against the definitions, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.scoring.pooled import POOLED_NAMES, ratio, request_pairs
from tss_bench.types import GenerationStats


def record(accept_lengths: tuple[int, ...] = (), **fields: Any) -> GenerationStats:
    defaults: dict[str, Any] = {
        "prompt_tokens": 7,
        "new_tokens": 1 + sum(accept_lengths),
        "verify_steps": len(accept_lengths),
        "drafted": 0,
        "accepted": sum(accept_lengths) - len(accept_lengths),
        "accept_lengths": accept_lengths,
        "prefill_s": 0.0,
        "draft_s": 0.0,
        "verify_s": 0.0,
        "wall_s": 0.0,
        "stop": "eos",
    }
    return GenerationStats(**{**defaults, **fields})


def test_pooled_is_no_mean_of_means() -> None:
    requests = [record((5, 5)), record((2,) * 45)]
    pairs = [request_pairs([stats])["accept_len"] for stats in requests]
    assert pairs == [(10, 2), (90, 45)]
    assert ratio(pairs) == pytest.approx(2.127659574468085)


def test_bonus_in_and_out() -> None:
    pairs = request_pairs([record((3, 1, 2))])
    assert ratio([pairs["accepted_per_step"]]) == 1.0
    assert ratio([pairs["accept_len"]]) == 2.0


def test_all_steps_count() -> None:
    assert ratio([request_pairs([record((5, 1))])["accept_len"]]) == 3.0


def test_plain_decoding_is_exactly_one() -> None:
    pairs = request_pairs([record((1, 1, 1, 1), new_tokens=5)])
    assert ratio([pairs["accept_len"]]) == 1.0
    assert pairs["accept_len"] == (4, 4)


def test_without_drafts_there_is_no_accept_rate() -> None:
    assert ratio([request_pairs([record((1, 1))])["accept_rate"]]) is None


def test_a_one_token_answer_adds_nothing_and_alone_omits_the_row() -> None:
    one_token = request_pairs([record()])["accept_len"]
    assert ratio([one_token]) is None
    assert ratio([one_token, (6, 2)]) == 3.0


def test_each_formula_over_two_turns() -> None:
    turns = [
        record(
            (3, 2),
            new_tokens=6,
            drafted=12,
            accepted=3,
            prefill_s=0.5,
            draft_s=0.25,
            verify_s=0.75,
            wall_s=2.0,
        ),
        record(
            (4, 2),
            new_tokens=7,
            drafted=12,
            accepted=4,
            prefill_s=0.25,
            draft_s=0.5,
            verify_s=0.5,
            wall_s=1.0,
        ),
    ]
    assert request_pairs(iter(turns)) == {
        "accept_len": (11, 4),
        "accepted_per_step": (7, 4),
        "accept_rate": (7, 24),
        "tokens_per_second": (13, 3.0),
        "decode_tokens_per_second": (13, 2.25),
        "steps_per_second": (4, 2.0),
        "verify_ms": (1250.0, 4),
    }


def test_names_are_those_of_the_pairs_and_no_turn_gives_zeros() -> None:
    assert request_pairs([]) == dict.fromkeys(POOLED_NAMES, (0.0, 0.0))


def test_ratio_of_nothing_is_none() -> None:
    assert ratio([]) is None
    assert ratio([(1.0, 0.0)]) is None


@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.floats(0.001, 1e6)),
        min_size=1,
        max_size=20,
    )
)
def test_ratio_lies_between_the_rows(pairs: list[tuple[float, float]]) -> None:
    value = ratio(pairs)
    rows = [above / below for above, below in pairs]
    assert value is not None
    assert min(rows) * (1 - 1e-9) <= value <= max(rows) * (1 + 1e-9)
