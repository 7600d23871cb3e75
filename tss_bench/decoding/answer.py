"""An answer while it grows: emitted ids, counts, stop rules, clocks.

May import: torch (to synchronise devices), transformers (tokenizer type), tss_bench.types,
tss_bench.protocols.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Literal

import torch
from transformers import PreTrainedTokenizerBase

from tss_bench.protocols import StopRule
from tss_bench.types import GenerationStats, StopReason


class Clock:
    """Seconds by phase; the device is synchronised before every reading."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds = {"prefill": 0.0, "draft": 0.0, "verify": 0.0}
        self._start = self._last = self._now()

    def lap(self, phase: Literal["prefill", "draft", "verify"]) -> None:
        """Book the time since the last lap on `phase`."""
        now = self._now()
        self.seconds[phase] += now - self._last
        self._last = now

    def resume(self) -> None:
        """Leave out the time since the last lap: it was somebody else's."""
        away = self._now() - self._last
        self._start += away
        self._last += away

    def wall(self) -> float:
        """Seconds since the clock was made."""
        return self._now() - self._start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Answer:
    """Emitted ids and what they cost, cut by the stop rule; `stop` is set once it has ended."""

    def __init__(
        self, rule: StopRule, stop_strings: Sequence[str], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._rule = rule
        self._stop_strings = tuple(stop_strings)
        self._tokenizer = tokenizer
        self.ids: list[int] = []
        self.stop: StopReason | None = None if rule.limit > 0 else rule.limit_reason
        self._accept_lengths: list[int] = []
        self._drafted = 0
        self._accepted = 0

    def append_first(self, token: int) -> None:
        """The id that prefill gives: it counts as new, but belongs to no step."""
        self._append((token,))

    def append_step(self, block: Sequence[int], drafted: int) -> None:
        """The accepted drafts and the bonus of one verification of `drafted` drafts."""
        kept = self._append(block)
        self._accept_lengths.append(kept)
        self._drafted += drafted
        self._accepted += min(kept, len(block) - 1)

    def _append(self, block: Sequence[int]) -> int:
        cut = self._rule.cut(block, len(self.ids), lambda kept: self._stops_at(block[:kept]))
        self.ids.extend(block[: cut.kept])
        self.stop = cut.stop
        return cut.kept

    def _stops_at(self, block: Sequence[int]) -> int | None:
        """How many ids of `block` complete the first stop string, or None."""
        if not self._stop_strings or not self._has_stop([*self.ids, *block]):
            return None
        counts = range(1, len(block) + 1)
        return next(n for n in counts if self._has_stop([*self.ids, *block[:n]]))

    def _has_stop(self, ids: Sequence[int]) -> bool:
        # Special tokens stay in this text: a stop string may be one of them.
        text = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return any(stop in text for stop in self._stop_strings)

    def text(self) -> str:
        """The answer without end of text and special tokens, cut before the first stop string."""
        ids = self.ids[:-1] if self.stop == "eos" else self.ids
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True))
        starts = [text.find(stop) for stop in self._stop_strings]
        return text[: min((at for at in starts if at >= 0), default=len(text))]

    def stats(
        self, prompt_tokens: int, clock: Clock | None = None, wall: float = 0.0
    ) -> GenerationStats:
        """The record of a finished answer; without a clock nothing of it was timed."""
        assert self.stop is not None
        seconds = clock.seconds if clock else {"prefill": 0.0, "draft": 0.0, "verify": 0.0}
        return GenerationStats(
            prompt_tokens=prompt_tokens,
            new_tokens=len(self.ids),
            verify_steps=len(self._accept_lengths),
            drafted=self._drafted,
            accepted=self._accepted,
            accept_lengths=tuple(self._accept_lengths),
            prefill_s=seconds["prefill"],
            draft_s=seconds["draft"],
            verify_s=seconds["verify"],
            wall_s=wall,
            stop=self.stop,
            limit_clamped=self._rule.limit_reason == "context",
        )
