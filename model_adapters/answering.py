"""Answers generation requests one after the other: prompts of all turns, limits, statistics.

Knows neither lm-eval nor how skip sets are chosen.

May import: torch, tss_bench.{types,domains,decoding}, model_adapters.{arguments,gen_options,
loaded,prompts}.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from model_adapters.arguments import Arguments
from model_adapters.gen_options import GenOptions, read_options
from model_adapters.loaded import LoadedModel
from model_adapters.prompts import Prompter, Request, fit_prompt
from tss_bench.decoding.answer import Answer
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.generate import (
    DecodingOptions,
    Generation,
    SkipRule,
    finish,
    generate_steps,
)
from tss_bench.domains import SkipChoice
from tss_bench.types import GeneratedText, Scope, SkipSet

_WARM_UP_TOKENS = 8
_WARM_UP_PROMPT = 64


class Routing(Protocol):
    """Chooses the skip set of a request when its first prompt has been read."""

    @property
    def sets(self) -> set[SkipSet]:
        """Every set it may choose."""
        ...

    def choose(self, request: Request, prompt: str, features: Tensor) -> SkipChoice:
        """The choice for a prompt with these dense features [n, H]."""
        ...


@dataclass(frozen=True)
class Job:
    """One generation request, checked and ready to run; `first` is the prompt of turn 1.

    Where there is a `router`, it replaces `choice` once the first prompt is read.
    """

    request: Request
    options: GenOptions
    choice: SkipChoice
    first: str
    seed: int
    router: Routing | None = None

    def under(self, skip: SkipSet, why: str) -> Job:
        """The same request under a skip set that is given."""
        choice = dataclasses.replace(self.choice, skip=skip, why=why)
        return dataclasses.replace(self, choice=choice, router=None)


def check(
    request: Request,
    given: Mapping[str, Any],
    prompter: Prompter,
    arguments: Arguments,
    context_length: int,
) -> tuple[GenOptions, str]:
    """Options and first prompt of a request; needs the tokenizer, but no weights.

    Raises AdapterError as `Answerer.job` does.
    """
    request.check_texts()
    options = read_options(given, arguments)
    first = prompter.first(request)
    ids, limit = prompter.encode(first), options.max_gen_toks
    fit_prompt(ids, limit, context_length, arguments.on_overflow, request.where)
    return options, first


class Answerer:
    """Runs jobs with one model and drafter. `counts` tells what had to be cut in this run."""

    def __init__(
        self,
        model: LoadedModel,
        drafter: Drafter,
        prompter: Prompter,
        arguments: Arguments,
        scope: Scope,
    ) -> None:
        self._target = model.target
        self._drafter = drafter
        self._tokenizer = model.tokenizer
        self._prompter = prompter
        self._eos_ids = model.eos_ids
        self._arguments = arguments
        self._scope = scope
        self._warm: set[SkipSet] = set()
        self.counts: Counter[str] = Counter()

    def job(
        self,
        request: Request,
        given: Mapping[str, Any],
        choice: SkipChoice,
        repeat: int = 0,
        router: Routing | None = None,
    ) -> Job:
        """Check a request; each repeat of it draws from a seed of its own.

        Raises AdapterError naming the document: empty prompt, unknown generation argument,
        and a prompt that does not fit under on_overflow=error.
        """
        options, first = check(
            request, given, self._prompter, self._arguments, self._target.context_length
        )
        place = f"{request.task}/{request.name}/{repeat}"
        seed = self._arguments.seed + zlib.crc32(place.encode())
        return Job(request, options, choice, first, seed, router)

    def start(self, jobs: Sequence[Job]) -> None:
        """Begin a run: empty drafter and counts, and an untimed answer for each new skip set."""
        self.counts.clear()
        self._drafter.reset()
        options = DecodingOptions(_WARM_UP_TOKENS, eos_ids=frozenset(), scope=self._scope)
        for job in jobs:
            sets = {job.choice.skip} if job.router is None else job.router.sets
            for skip in sets - self._warm:
                self._warm.add(skip)
                prompt = self.prompt_ids(job)[-_WARM_UP_PROMPT:]
                finish(self._decode(prompt, skip, options))
                self._drafter.reset()

    def answer(self, job: Job) -> GeneratedText:
        """Answer every turn, each on top of the turns before; the first one alone is routed."""
        return finish(self.steps(job))

    def steps(self, job: Job) -> Generator[Answer, None, GeneratedText]:
        """As `answer`, but hands out each turn's answer while it grows."""
        turns: list[Generation] = []
        options = self.decoding_options(job)
        for _ in job.request.turns:
            ids, truncated = self.turn(job, [turn.text for turn in turns])
            routed = _Routed(job)
            skip = routed if job.router else job.choice.skip
            done = yield from self._decode(ids, skip, options)
            job = routed.job
            stats = dataclasses.replace(done.stats, prompt_truncated=truncated)
            turns.append(dataclasses.replace(done, stats=stats))
        return self.put_together(job, turns)

    def put_together(self, job: Job, turns: Sequence[Generation]) -> GeneratedText:
        """The answer that is made of these, one a turn."""
        texts = tuple(turn.text for turn in turns)
        stats = tuple(turn.stats for turn in turns)
        emitted = tuple(turn.ids for turn in turns)
        self.counts["turns"] += len(turns)
        for name in ("prompt_truncated", "limit_clamped"):
            self.counts[name] += sum(getattr(turn, name) for turn in stats)
        return GeneratedText(texts[-1], stats, texts, self._config(job.choice), emitted)

    def prompt_ids(self, job: Job, answers: Sequence[str] = ()) -> list[int]:
        """The ids of the turn after `answers` (none: the first), cut where they do not fit."""
        return self.turn(job, answers)[0]

    def turn(self, job: Job, answers: Sequence[str]) -> tuple[list[int], bool]:
        """Prompt ids of the turn after `answers`, and whether they had to be cut."""
        prompt = self._prompter.following(job.request, job.first, answers) if answers else job.first
        return fit_prompt(
            self._prompter.encode(prompt),
            job.options.max_gen_toks,
            self._target.context_length,
            self._arguments.on_overflow,
            job.request.where,
        )

    def overflow_notes(self) -> list[str]:
        """What the user should be told about prompts and answers that did not fit."""
        turns, context = self.counts["turns"], self._target.context_length
        notes = []
        if cut := self.counts["prompt_truncated"]:
            notes.append(
                f"{cut} of {turns} prompts did not fit the context of {context} tokens: their end "
                f"was kept (on_overflow=error refuses them)"
            )
        if clamped := self.counts["limit_clamped"]:
            notes.append(
                f"{clamped} of {turns} answers had less room in the context of {context} tokens "
                f"than max_gen_toks allows"
            )
        return notes

    def _decode(
        self, ids: Sequence[int], skip: SkipSet | SkipRule, options: DecodingOptions
    ) -> Generator[Answer, None, Generation]:
        return generate_steps(self._target, self._drafter, ids, skip, options, self._tokenizer)

    def decoding_options(self, job: Job) -> DecodingOptions:
        """How the turns of a job are decoded."""
        return DecodingOptions(
            max_new_tokens=job.options.max_gen_toks,
            eos_ids=self._eos_ids,
            stop_strings=job.options.stop_strings,
            temperature=job.options.temperature,
            seed=job.seed,
            scope=self._scope,
            protocol=self._arguments.protocol,
        )

    def _config(self, choice: SkipChoice) -> dict[str, Any]:
        return {
            "skip": list(choice.skip),
            "scope": self._scope,
            "protocol": self._arguments.protocol,
            "domain": choice.domain,
            "why": choice.why,
        }


class _Routed:
    """The rule that routes a job; `job` is the job with the choice once there is one."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def __call__(self, features: Tensor) -> SkipSet:
        assert self.job.router is not None
        choice = self.job.router.choose(self.job.request, self.job.first, features)
        self.job = dataclasses.replace(self.job, choice=choice, router=None)
        return choice.skip
