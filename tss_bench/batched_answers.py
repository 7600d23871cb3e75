"""Answers the requests of an adapter under many skip sets, many answers at a time.

For a search, which decodes hundreds of skip sets on the same few prompts, and for all that needs
no times. Rows of different sets share a pass of the target. Under scope `verify` every prompt is
prefilled once. An answer is decoded plainly and the drafter replayed on it, unless the drafter
learns from rejected nodes or protocol `paper` counts what no plain answer has: then its trees are
verified.

May import: torch, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from model_adapters.answering import Job as AnswerJob
from model_adapters.base import SpeculativeLM
from tss_bench.decoding.answer import Answer
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.eagle_rows import HeadPrompt
from tss_bench.decoding.generate import Generation
from tss_bench.decoding.lockstep import (
    ReadPrompt,
    Request,
    capacity_for,
    decode_together,
    read_prompt,
)
from tss_bench.decoding.replay import Recorder, Trajectory, replay, replay_eagle
from tss_bench.decoding.target import Target
from tss_bench.types import GeneratedText, SkipSet

NODES = 512
"""Most tree nodes of all rows in one target pass: more gain nothing on a CPU."""

ROW_BYTES = 1 << 30
"""Most bytes for the keys and values of the rows; prompts that all sets share come on top."""

REPLAYED = 64
"""Plain answers that are collected before the drafter is run along them."""


@dataclass(frozen=True, eq=False)
class _Start:
    """A prefilled prompt, as the drafter that is to be forked or replayed has read it."""

    prompt: ReadPrompt
    drafter: Drafter
    head: HeadPrompt | None
    truncated: bool


@dataclass
class _Answering:
    """One request under its skip set: the turns that are done, and where the current one started.

    `place` is its place among the jobs asked for, `prompt` its place among all requests.
    """

    place: int
    prompt: int
    job: AnswerJob
    turns: list[Generation] = field(default_factory=list)
    start: _Start | None = None

    @property
    def skip(self) -> SkipSet:
        return self.job.choice.skip


def rows_at_once(target: Target, nodes: int, positions: int) -> int:
    """Answers of `positions` ids that grow side by side, with trees of `nodes` in every pass."""
    return max(1, min(NODES // nodes, ROW_BYTES // (positions * target.position_bytes())))


class SequentialAnswers:
    """`BatchedAnswers` one after the other, for adapters that are not `side_by_side`."""

    def __init__(self, adapter: SpeculativeLM, jobs: Sequence[AnswerJob], why: str) -> None:
        self._adapter, self._jobs, self._why = adapter, jobs, why

    def __call__(self, asked: Sequence[tuple[int, SkipSet]]) -> Iterator[tuple[int, GeneratedText]]:
        for place, (prompt, skip) in enumerate(asked):
            yield place, self._adapter.answer(self._jobs[prompt].under(skip, self._why))


def answers_of(
    adapter: SpeculativeLM, jobs: Sequence[AnswerJob], why: str
) -> BatchedAnswers | SequentialAnswers:
    """What answers `jobs` under any skip set the fastest; `why` goes into the records."""
    made = BatchedAnswers if adapter.side_by_side else SequentialAnswers
    return made(adapter, jobs, why)


class BatchedAnswers:
    """Answers to `jobs`, all requests of one task, under any skip set; greedy ones only.

    Raises ValueError for an adapter that is not `side_by_side`.

    Texts and counts are those of `SpeculativeLM.answer`, up to rounding: a pass over many rows and
    one over a single row differ in the last bits, and 16-bit logits are often equal or nearly so.
    Nothing is timed. A kill loses the answers that are being decoded or wait for their replay.

    Memory beside the model: about `ROW_BYTES` for the answers, the logits of `NODES` nodes, and
    the keys, values and features of prompts (SmolLM2-135M in bfloat16: 24 kB a token): of every
    first prompt under scope `verify`, else of those being answered or waiting for their replay.
    """

    def __init__(self, adapter: SpeculativeLM, jobs: Sequence[AnswerJob], why: str) -> None:
        if not adapter.side_by_side:
            raise ValueError(
                f"{adapter.name} decodes one answer at a time, not many side by side; a search "
                f"does so with --evaluator sequential"
            )
        self._adapter, self._jobs, self._why = adapter, jobs, why
        self._drafter = drafter = adapter.drafter.fork()
        strict = adapter.arguments.protocol == "strict"
        self._replays = strict and drafter.replayable and drafter.max_nodes > 1
        self._eagle: Eagle | None = None
        if self._replays and isinstance(drafter, Eagle) and isinstance(drafter.tree, DynamicTree):
            self._eagle = drafter
        self._nodes = 1 if self._replays else drafter.max_nodes
        self._capacity = max(
            capacity_for(adapter.decoding_options(job), self._nodes, adapter.max_length)
            for job in jobs
        )
        self._rows = self._count_rows()
        self._starts: dict[int, _Start] = {}

    def __call__(self, asked: Sequence[tuple[int, SkipSet]]) -> Iterator[tuple[int, GeneratedText]]:
        """Answers as they end, each with its place in `asked`: places of jobs, and skip sets."""
        waiting = deque(
            _Answering(place, prompt, self._jobs[prompt].under(skip, self._why))
            for place, (prompt, skip) in enumerate(asked)
        )
        while waiting:
            yield from self._decode(waiting)

    def _count_rows(self) -> int:
        positions = self._capacity
        if self._adapter.scope == "all":
            positions += max(len(self._adapter.prompt_ids(job)) for job in self._jobs)
        return rows_at_once(self._adapter.target, self._nodes, positions)

    def _decode(self, waiting: deque[_Answering]) -> Iterator[tuple[int, GeneratedText]]:
        """Decode what waits; further turns are put back into it."""
        known: list[tuple[_Answering, Trajectory]] = []
        for request, answer in decode_together(
            self._adapter.target,
            lambda: self._request(waiting.popleft()) if waiting else None,
            self._adapter.tokenizer,
            rows=min(self._rows, len(waiting)),
            capacity=self._capacity,
        ):
            answering: _Answering = request.tag
            if not self._replays:
                yield from self._end_turn(answering, answer, waiting)
                continue
            known.append((answering, Trajectory.of(request, answer)))
            if len(known) >= REPLAYED:
                yield from self._replay(known, waiting)
                known = []
        yield from self._replay(known, waiting)

    def _request(self, answering: _Answering) -> Request:
        """The next turn of a request, prefilled."""
        start = answering.start = self._start(answering)
        layers = self._drafter.feature_layers
        drafter = Recorder(layers) if self._replays else start.drafter.fork()
        options = self._adapter.decoding_options(answering.job)
        return Request(start.prompt, answering.skip, drafter, options, answering)

    def _start(self, answering: _Answering) -> _Start:
        """The prefilled prompt; that of a first turn under scope `verify` is kept for all sets."""
        if self._adapter.scope == "all" or answering.turns:
            return self._read(answering)
        if answering.prompt not in self._starts:
            self._starts[answering.prompt] = self._read(answering)
        return self._starts[answering.prompt]

    @torch.inference_mode()
    def _read(self, answering: _Answering) -> _Start:
        target = self._adapter.target
        skip = answering.skip
        prefill = skip if self._adapter.scope == "all" else SkipSet.dense(target.num_layers)
        texts = [turn.text for turn in answering.turns]
        ids, truncated = self._adapter.turn(answering.job, texts)
        prompt = read_prompt(target, ids, prefill, self._drafter.feature_layers)
        drafter = self._drafter.fork()
        head = None
        if self._eagle is None:
            drafter.begin(prompt.for_drafter(target))
        else:
            head = HeadPrompt.read(self._eagle.fork(), prompt.for_drafter(target))
        return _Start(prompt, drafter, head, truncated)

    def _replay(
        self, known: Sequence[tuple[_Answering, Trajectory]], waiting: deque[_Answering]
    ) -> Iterator[tuple[int, GeneratedText]]:
        """Run the drafter along plain answers."""
        target, tokenizer = self._adapter.target, self._adapter.tokenizer
        starts = [_started(answering) for answering, _ in known]
        paths = [path for _, path in known]
        ended: Iterator[tuple[int, Answer]]
        if self._eagle is not None:
            heads = [start.head for start in starts if start.head is not None]
            ended = replay_eagle(self._eagle, paths, heads, target, tokenizer)
        else:
            drafters = (start.drafter.fork() for start in starts)
            ended = enumerate(
                replay(drafter, path, target, tokenizer)
                for drafter, path in zip(drafters, paths, strict=True)
            )
        for place, answer in ended:
            yield from self._end_turn(known[place][0], answer, waiting)

    def _end_turn(
        self, answering: _Answering, answer: Answer, waiting: deque[_Answering]
    ) -> Iterator[tuple[int, GeneratedText]]:
        """The request's answer after its last turn; before, its next turn joins what waits."""
        start = _started(answering)
        stats = replace(answer.stats(len(start.prompt.ids)), prompt_truncated=start.truncated)
        answering.turns.append(Generation(tuple(answer.ids), answer.text(), stats))
        answering.start = None
        if len(answering.turns) < len(answering.job.request.turns):
            waiting.append(answering)
            return
        yield answering.place, self._adapter.put_together(answering.job, answering.turns)


def _started(answering: _Answering) -> _Start:
    assert answering.start is not None
    return answering.start
