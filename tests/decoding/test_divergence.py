"""Where two answers part, and which gaps rounding explains."""

from __future__ import annotations

import pytest
import torch

from tests import tiny
from tss_bench.decoding.divergence import (
    Divergence,
    find_divergence,
    first_difference,
    next_logits,
    rounding,
)
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.generate import DecodingOptions, generate
from tss_bench.types import Scope, SkipSet

PROMPT = [5, 6, 7, 8, 9]
SKIP = SkipSet.of([1, 2], tiny.LAYERS)


@pytest.mark.parametrize(
    ("first", "second", "place"),
    [
        ([], [], None),
        ([4, 5], [4, 5], None),
        ([4, 5, 6], [4, 7, 6], 1),
        ([4, 5], [4, 5, 6], 2),
        ([4, 5, 6], [], 0),
    ],
)
def test_the_first_difference(first: list[int], second: list[int], place: int | None) -> None:
    assert first_difference(first, second) == place
    assert first_difference(second, first) == place


@pytest.mark.parametrize("scope", ["verify", "all"])
def test_the_logits_are_those_that_decoding_saw(scope: Scope) -> None:
    options = DecodingOptions(12, eos_ids=frozenset(), scope=scope)
    target = tiny.target()
    ids = generate(target, NoDraft(), PROMPT, SKIP, options, tiny.tokenizer()).ids
    found = [
        int(next_logits(target, PROMPT, ids[:place], SKIP, scope).argmax())
        for place in range(len(ids))
    ]
    assert found == list(ids)
    assert len(set(ids)) > 1


def test_the_gap_is_that_of_the_two_ids_under_the_sparse_target() -> None:
    target = tiny.target()
    logits = target.score([*PROMPT, 11, 12], SKIP)[-1]
    found = find_divergence(target, PROMPT, [11, 12, 13, 14], [11, 12, 20, 14], SKIP, "all")
    assert found is not None
    assert (found.position, found.first, found.second) == (2, 13, 20)
    assert found.gap == pytest.approx(abs(float(logits[13] - logits[20])), rel=1e-4)
    dense = find_divergence(target, PROMPT, [11, 12, 13], [11, 12, 20], SKIP, "verify")
    assert dense is not None
    assert dense.gap != pytest.approx(found.gap, rel=1e-3)


def test_equal_answers_do_not_part() -> None:
    assert find_divergence(tiny.target(), PROMPT, [3, 4], [3, 4], SKIP, "all") is None


def test_an_answer_that_ended_early_is_no_rounding() -> None:
    found = find_divergence(tiny.target(), PROMPT, [3, 4], [3], SKIP, "all")
    assert found == Divergence(1, 4, None, None, 0.0)
    assert not found.is_rounding


def test_in_float32_every_difference_counts() -> None:
    found = find_divergence(tiny.target(), PROMPT, [3], [4], SKIP, "all")
    assert found is not None
    assert found.rounding == 0.0
    assert not found.is_rounding


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        # eps is 2 ** -7, 2 ** -10; the largest logit is 16 away from 0.
        (torch.bfloat16, 0.25),
        (torch.float16, 0.03125),
        (torch.float32, 0.0),
    ],
)
def test_two_units_in_the_last_place_are_rounding(dtype: torch.dtype, expected: float) -> None:
    assert rounding(torch.tensor([-16.0, 3.0, 0.5]), dtype) == expected


@pytest.mark.parametrize(("gap", "explained"), [(0.0, True), (0.25, True), (0.26, False)])
def test_only_a_gap_up_to_the_rounding_is_explained(gap: float, explained: bool) -> None:
    assert Divergence(3, 5, 6, gap, 0.25).is_rounding is explained
