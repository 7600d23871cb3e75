"""Counting rules: where an answer ends inside a block of newly accepted ids.

May import: the standard library and tss_bench.types (layer L0 of the design). `strict` ends at
the first end-of-text id and never exceeds the token limit; `paper` counts as the TSS authors'
published code did (definitions.md, "Two protocols").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tss_bench.types import Protocol, StopReason


@dataclass(frozen=True)
class Cut:
    """The first `kept` ids of a block belong to the answer; `stop` says why it ends, if it does."""

    kept: int
    stop: StopReason | None


@dataclass(frozen=True)
class StopRule:
    """When an answer ends.

    `limit` counts the answer's ids; `limit_reason` is `context` when the context window, not the
    request, set it.
    """

    eos_ids: frozenset[int]
    limit: int
    limit_reason: StopReason
    protocol: Protocol

    def cut(self, block: Sequence[int], emitted: int, stops_at: Callable[[int], int | None]) -> Cut:
        """Where the answer ends in `block`, when `emitted` ids came before it.

        `stops_at(kept)` gives the number of ids of the block (at most `kept`) after which a stop
        string is complete, or None.
        """
        kept, stop = self._cut_ids(block, emitted)
        at = stops_at(kept)
        if at is not None and (at < kept or stop != "eos"):
            return Cut(at, "stop_string")
        return Cut(kept, stop)

    def _cut_ids(self, block: Sequence[int], emitted: int) -> tuple[int, StopReason | None]:
        if self.protocol == "paper":
            if block[-1] in self.eos_ids:
                return len(block), "eos"
            over = emitted + len(block) >= self.limit
            return len(block), self.limit_reason if over else None
        room = self.limit - emitted
        for index, token in enumerate(block[:room]):
            if token in self.eos_ids:
                return index + 1, "eos"
        if len(block) >= room:
            return room, self.limit_reason
        return len(block), None
