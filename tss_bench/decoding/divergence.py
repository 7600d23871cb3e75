"""Where two answers of one sparse target part, and whether rounding explains it.

Speculative decoding emits the ids of plain decoding. In 16-bit formats a pass over one id and
one over several may differ in the last bits, so two ids whose logits are that close may change
places.

May import: torch, decoding.target, tss_bench.types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tss_bench.decoding.target import Target
from tss_bench.types import Scope, SkipSet

_SIXTEEN_BIT = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Divergence:
    """The first place at which two answers differ.

    `position` counts the answers' ids from 0; an id is None where its answer has ended. `gap` is
    the distance of the two ids' logits under the target, None without two ids; `rounding` the
    largest gap that the target's dtype explains.
    """

    position: int
    first: int | None
    second: int | None
    gap: float | None
    rounding: float

    @property
    def is_rounding(self) -> bool:
        """Whether the two ids were as good as equal."""
        return self.gap is not None and self.gap <= self.rounding


def first_difference(first: Sequence[int], second: Sequence[int]) -> int | None:
    """Index of the first id that differs or that only one answer has; None for equal answers."""
    for place, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return place
    return None if len(first) == len(second) else min(len(first), len(second))


def find_divergence(
    target: Target,
    prompt_ids: Sequence[int],
    first: Sequence[int],
    second: Sequence[int],
    skip: SkipSet,
    scope: Scope,
) -> Divergence | None:
    """Where two answers to one prompt part, None if nowhere; `skip` and `scope` as decoded."""
    place = first_difference(first, second)
    if place is None:
        return None
    one, other = (ids[place] if place < len(ids) else None for ids in (first, second))
    if one is None or other is None:
        return Divergence(place, one, other, None, 0.0)
    logits = next_logits(target, prompt_ids, first[:place], skip, scope)
    gap = abs(float(logits[one] - logits[other]))
    return Divergence(place, one, other, gap, rounding(logits, target.dtype))


@torch.inference_mode()
def next_logits(
    target: Target, prompt_ids: Sequence[int], ids: Sequence[int], skip: SkipSet, scope: Scope
) -> Tensor:
    """float32 logits [V] of what follows `ids` in an answer; scope `verify` prefills densely."""
    cache = target.new_cache(len(prompt_ids) + len(ids))
    prefill_skip = skip if scope == "all" else SkipSet.dense(target.num_layers)
    hidden = target.prefill(_row(prompt_ids, target), cache, prefill_skip)
    if ids:
        hidden = target.prefill(_row(ids, target), cache, skip)
    return target.logits(hidden[0, -1]).float()


def rounding(logits: Tensor, dtype: torch.dtype) -> float:
    """The gap below which two logits of a row [V] count as equal in `dtype`; 0 in float32.

    Each of the two may be off by one unit in the last place of the row's largest logit. Errors of
    the layers before add up to more now and then (two bfloat16 passes of SmolLM2-135M over the
    same ids were 0.6 apart at logits of 22, allowed for: 0.34), so a larger gap is a reason to
    compare in float32, not yet a fault.
    """
    if dtype not in _SIXTEEN_BIT:
        return 0.0
    return 2 * torch.finfo(dtype).eps * float(logits.abs().max())


def _row(ids: Sequence[int], target: Target) -> Tensor:
    return torch.tensor([list(ids)], device=target.device)
