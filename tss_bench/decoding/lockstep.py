"""Decode many answers side by side: the loop of `generate`, one target pass a step for all rows.

Each row has its own prompt, skip set and drafter, and proposes, verifies and observes as in
`generate`; rows that end make room for the next. Greedy only. A row's answer does not depend on
the rows beside it.

May import: torch, transformers (tokenizer type), decoding/, tss_bench.types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tss_bench.decoding.answer import Answer
from tss_bench.decoding.batch_cache import BatchCache, Prefix, move_last
from tss_bench.decoding.capture import Capture
from tss_bench.decoding.drafters.base import Drafter, Prompt, SharesTarget, Step
from tss_bench.decoding.generate import DecodingOptions, check_prompt, max_depth, new_answer
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import best_ids, follow
from tss_bench.types import SkipSet


@dataclass(frozen=True, eq=False)
class ReadPrompt:
    """A prompt after its prefill, the start of any number of answers: its keys and values, its
    features [n, F] for a drafter and the first id of the answer."""

    ids: tuple[int, ...]
    prefix: Prefix
    features: Tensor
    first: int

    def for_drafter(self, target: Target) -> Prompt:
        """What `Drafter.begin` gets."""
        return Prompt(self.ids, self.features, target.logits, self.first)


@dataclass(frozen=True, eq=False)
class Request:
    """One answer to decode; `drafter` has begun with `prompt` and is this request's own.

    `tag` is the caller's.
    """

    prompt: ReadPrompt
    skip: SkipSet
    drafter: Drafter
    options: DecodingOptions
    tag: Any = field(default=None)

    def __post_init__(self) -> None:
        if self.options.temperature > 0:
            raise ValueError("answers side by side are greedy; use generate to sample")
        if isinstance(self.drafter, SharesTarget):
            raise ValueError(
                f"{type(self.drafter).__name__} drafts in the cache of the one answer it serves; "
                f"decode its answers one by one with generate"
            )


@torch.inference_mode()
def read_prompt(
    target: Target, ids: Sequence[int], skip: SkipSet, feature_layers: tuple[int, ...] = ()
) -> ReadPrompt:
    """Prefill one prompt under `skip`, with features for a drafter that has these
    `feature_layers`. Raises ValueError for a prompt without room or ids."""
    check_prompt(ids, target.context_length)
    cache = target.new_cache(len(ids))
    capture = Capture(feature_layers)
    row = torch.tensor([list(ids)], device=target.device)
    hidden = target.prefill(row, cache, skip, capture)
    first = best_ids(target.logits(hidden[0, -1:]))[0]
    return ReadPrompt(tuple(ids), Prefix.of(cache), capture.features(hidden)[0], first)


def capacity_for(options: DecodingOptions, max_nodes: int, context_length: int) -> int:
    """Positions that a row needs for an answer under `options` with trees of `max_nodes`."""
    # Protocol `paper` overshoots by a tree; the next tree is written before that is seen.
    return min(options.max_new_tokens, context_length) + 2 * max_nodes + 1


def decode_together(
    target: Target,
    take: Callable[[], Request | None],
    tokenizer: PreTrainedTokenizerBase,
    *,
    rows: int,
    capacity: int,
) -> Iterator[tuple[Request, Answer]]:
    """Finished answers, as they finish, of all requests that `take` hands out.

    `take` is asked whenever a row is free and gives None where nothing waits; the end is where
    it gives None and no row is left. At most `rows` run at once, each of at most `capacity`
    positions (`capacity_for`).
    """
    batch = _Batch(target, tokenizer, rows, capacity)
    while True:
        with torch.inference_mode():
            ended = batch.fill(take)
            if not ended and batch.runs:
                ended = batch.step()
        if not ended and not batch.runs:
            return
        yield from ended


class _Batch:
    def __init__(
        self, target: Target, tokenizer: PreTrainedTokenizerBase, rows: int, capacity: int
    ) -> None:
        self._target, self._tokenizer, self._rows = target, tokenizer, rows
        self._cache = target.new_batch(rows, capacity)
        self._running: list[tuple[Request, Answer]] = []

    @property
    def runs(self) -> bool:
        return bool(self._running)

    def fill(self, take: Callable[[], Request | None]) -> list[tuple[Request, Answer]]:
        """Give free rows to waiting requests; returns those that end with their first id."""
        ended = []
        while len(self._running) < self._rows and (request := take()) is not None:
            room = self._target.context_length - len(request.prompt.ids)
            answer = new_answer(request.options, room, self._tokenizer)
            if answer.stop is None:
                answer.append_first(request.prompt.first)
            if answer.stop is None:
                self._cache.add(request.prompt.prefix)
                self._running.append((request, answer))
            else:
                ended.append((request, answer))
        return ended

    def step(self) -> list[tuple[Request, Answer]]:
        """One verification for every row; returns the answers that end with it."""
        trees = self._propose()
        capture = Capture(self._feature_layers())
        skips = [request.skip for request, _ in self._running]
        hidden = _forward_trees(self._target, trees, self._cache, skips, capture)
        features, logits = capture.features(hidden), self._target.logits(hidden)
        width = hidden.shape[1]
        best = best_ids(logits.flatten(0, 1))
        accepted = [
            follow(tree, best[row * width : row * width + len(tree)])
            for row, tree in enumerate(trees)
        ]
        self._cache.keep([acceptance.path for acceptance in accepted])
        ended: list[int] = []
        for row, (tree, acceptance) in enumerate(zip(trees, accepted, strict=True)):
            request, answer = self._running[row]
            nodes = slice(len(tree))
            step = Step(tree, features[row, nodes], logits[row, nodes], acceptance)
            answer.append_step(step.accepted, drafted=len(tree) - 1)
            if answer.stop is None:
                request.drafter.observe(step)
            else:
                ended.append(row)
        return [self._remove(row) for row in reversed(ended)]

    def _propose(self) -> list[DraftTree]:
        trees = []
        for (request, answer), past in zip(
            self._running, self._cache.positions().tolist(), strict=True
        ):
            depth = max_depth(request.options, len(answer.ids), past, self._target.context_length)
            trees.append(request.drafter.propose(answer.ids[-1], depth).cut(depth))
        return trees

    def _feature_layers(self) -> tuple[int, ...]:
        """Those of all drafters: one pass gives every row the same features."""
        asked = {request.drafter.feature_layers for request, _ in self._running}
        if len(asked) > 1:
            raise ValueError(
                f"answers side by side need drafters with the same features, got the layers "
                f"{sorted(asked)}"
            )
        return asked.pop()

    def _remove(self, row: int) -> tuple[Request, Answer]:
        self._cache.drop(row)
        return move_last(self._running, row)


def _forward_trees(
    target: Target,
    trees: Sequence[DraftTree],
    cache: BatchCache,
    skips: Sequence[SkipSet],
    capture: Capture,
) -> Tensor:
    """Hidden states [B, n, H] of the nodes of one tree a row, filled up to the largest tree.

    Filling nodes see the past and themselves, and nobody sees them. There are always two nodes:
    a product with one row of hidden states is rounded differently, so an answer would depend on
    having company.
    """
    width = max(2 if len(trees) == 1 else 1, *map(len, trees))
    ids = torch.zeros(len(trees), width, dtype=torch.long)
    depths = torch.zeros(len(trees), width, dtype=torch.long)
    among = torch.eye(width, dtype=torch.bool).repeat(len(trees), 1, 1)
    for row, tree in enumerate(trees):
        ids[row, : len(tree)] = torch.tensor(tree.tokens)
        depths[row, : len(tree)] = torch.tensor(tree.depths)
        among[row, : len(tree), : len(tree)] = tree.mask(0)
    cache.open(width)
    positions = depths.to(target.device) + cache.positions()[:, None]
    mask = cache.visible(among.to(target.device))
    return target.forward_rows(ids.to(target.device), positions, mask, cache, skips, capture)
