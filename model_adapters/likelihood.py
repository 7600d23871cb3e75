"""Loglikelihoods of continuations under a skip set (scope `all`: no later pass could differ).

May import: torch, tss_bench.{types,decoding}, model_adapters.arguments.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from model_adapters.arguments import AdapterError
from tss_bench.decoding.target import Target
from tss_bench.types import SkipSet


class Scorer:
    """Scores (context, continuation) pairs; `max_length` is the most ids of one pass.

    `truncated` counts the pairs whose context lost its beginning.
    """

    def __init__(self, target: Target, max_length: int, on_overflow: str) -> None:
        self._target = target
        self._max_length = max_length
        self._on_overflow = on_overflow
        self._last: tuple[tuple[int, ...], SkipSet, Tensor] | None = None
        self.truncated = 0

    def score(
        self, context: Sequence[int], continuation: Sequence[int], skip: SkipSet, where: str
    ) -> tuple[float, bool]:
        """Sum of log-probabilities of the continuation, and whether greedy decoding gives it.

        Raises AdapterError naming `where` for an empty continuation and for a pair that does
        not fit (a continuation never does; a context under on_overflow=error).
        """
        if not context or not continuation:
            raise AdapterError(f"{where} has an empty continuation, which has no likelihood")
        if len(continuation) > self._max_length:
            raise AdapterError(
                f"the continuation of {where} has {len(continuation)} tokens, the context of the "
                f"model {self._max_length}; shorten it"
            )
        ids = [*context, *continuation]
        if len(ids) > self._max_length + 1:
            self._overflow(len(ids) - 1, where)
        inputs = tuple(ids[-(self._max_length + 1) : -1])
        rows = self._logits(inputs, skip)[-len(continuation) :].log_softmax(dim=-1)
        wanted = torch.tensor(list(continuation), device=rows.device)
        total = rows.gather(1, wanted[:, None]).sum()
        # argmax returns the first of equal maxima: the lowest id wins.
        return float(total), bool((rows.argmax(dim=-1) == wanted).all())

    def _logits(self, inputs: tuple[int, ...], skip: SkipSet) -> Tensor:
        """Logits [n, V]; the pass before is kept, since the choices of a question share it."""
        if self._last is None or self._last[:2] != (inputs, skip):
            self._last = (inputs, skip, self._target.score(inputs, skip))
        return self._last[2]

    def _overflow(self, length: int, where: str) -> None:
        if self._on_overflow == "error":
            raise AdapterError(
                f"{where} has {length} tokens, the context of the model {self._max_length}; "
                f"shorten it, or cut its beginning with on_overflow=flag"
            )
        self.truncated += 1
