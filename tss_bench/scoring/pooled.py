"""Pooled speed and acceptance figures: sums over requests, never a mean of means.

A figure is kept as one (numerator, denominator) pair a request and divided once, at the end,
so that it can be aggregated by anyone who can add: lm-eval, a report, a bootstrap.

May import: the standard library and tss_bench.types (layer L1 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tss_bench.types import GenerationStats

Pair = tuple[float, float]

POOLED_NAMES = (
    "accept_len",
    "accepted_per_step",
    "accept_rate",
    "tokens_per_second",
    "decode_tokens_per_second",
    "steps_per_second",
    "verify_ms",
)

PRIMARY_METRICS = ("sentence_bleu", "rougeL", "f1", "acc")
"""Metrics that are means over rows; a task's first one of these is its primary metric."""


def request_pairs(stats: Iterable[GenerationStats]) -> dict[str, Pair]:
    """The (numerator, denominator) pair of each of `POOLED_NAMES` for one request.

    `stats` has one record a turn; the turns are added up. A request without a verification
    step (or a draft) has the pair (0, 0) in the figures per step (or draft) and so adds
    nothing to them. Units: emitted ids a step for the two lengths, a share for `accept_rate`,
    1/s for the rates, milliseconds a step for `verify_ms`. `accept_len` counts the bonus token.
    """
    turns = tuple(stats)
    steps = float(sum(turn.verify_steps for turn in turns))
    accepted = float(sum(turn.accepted for turn in turns))
    new_tokens = float(sum(turn.new_tokens for turn in turns))
    verify_s = math.fsum(turn.verify_s for turn in turns)
    return {
        "accept_len": (float(sum(sum(turn.accept_lengths) for turn in turns)), steps),
        "accepted_per_step": (accepted, steps),
        "accept_rate": (accepted, float(sum(turn.drafted for turn in turns))),
        "tokens_per_second": (new_tokens, math.fsum(turn.wall_s for turn in turns)),
        "decode_tokens_per_second": (
            new_tokens,
            math.fsum(turn.wall_s - turn.prefill_s for turn in turns),
        ),
        "steps_per_second": (steps, math.fsum(turn.verify_s + turn.draft_s for turn in turns)),
        "verify_ms": (1000 * verify_s, steps),
    }


def ratio(pairs: Iterable[Pair]) -> float | None:
    """sum(numerators) / sum(denominators), or None (omit the row) where the latter is 0."""
    listed = tuple(pairs)
    denominator = math.fsum(below for _, below in listed)
    if denominator == 0:
        return None
    return math.fsum(above for above, _ in listed) / denominator
