"""`router=knn`: the skip set of a request that no task name decides, by its prompt's features.

May import: numpy, torch, tqdm, tss_bench.{types,domains,paths,routing}, model_adapters.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from model_adapters.arguments import AdapterError, Arguments
from model_adapters.gen_options import read_options
from model_adapters.loaded import LoadedModel
from model_adapters.prompts import Prompter, Request, fit_prompt
from model_adapters.router_prompts import DomainPrompt, DomainPrompts
from tss_bench.domains import SkipChoice
from tss_bench.paths import CACHE_VARIABLE, cache_dir
from tss_bench.routing import (
    NEIGHBOURS,
    NO_THRESHOLD,
    IndexFileError,
    Pooling,
    Route,
    Router,
    RouterIndex,
    Vector,
)
from tss_bench.types import Scope, SkipSet

DEFAULT_POOLING: Pooling = "last"
CHAT, PLAIN = "chat", "plain"
"""Forms of a prompt: with the chat template around it, and without."""


def form_of(prompter: Prompter, prompt: str) -> str:
    """The form of a prompt's text."""
    return CHAT if prompter.is_templated(prompt) else PLAIN


def texts_of(prompter: Prompter, request: Request) -> list[str]:
    """The texts by which a row is in the index: its prompt as its task gives it, and as plain
    text, which is what foreign tasks give."""
    return list(dict.fromkeys((prompter.first(request), request.context)))


def check_rules(prompts: DomainPrompts, prompter: Prompter, arguments: Arguments) -> None:
    """Whether each form has what a rule needs; asks the tokenizer alone.

    Raises AdapterError for a form with fewer prompts than neighbours, and for one that no
    threshold can be calibrated by.
    """
    wanted = arguments.router_k or NEIGHBOURS
    rows: dict[str, list[tuple[str, str]]] = {}
    for one in prompts.prompts:
        for text in texts_of(prompter, one.request):
            rows.setdefault(form_of(prompter, text), []).append((one.domain, one.row))
    for form, known in rows.items():
        if wanted > len(known):
            raise AdapterError(
                f"router_k={wanted} is more than the {len(known)} calibration prompts of form "
                f"{form} that there are; give a smaller one"
            )
        if arguments.router_threshold is None and not any(
            domain == other and row != another
            for (domain, row), (other, another) in combinations(known, 2)
        ):
            raise AdapterError(NO_THRESHOLD.format(form=form))


@dataclass(frozen=True)
class _Entry:
    """A prompt of the index in one of its forms."""

    prompt: DomainPrompt
    form: str
    ids: list[int]


class PromptRouter:
    """Chooses among the skip sets of a map's domains; `say` tells the user one line.

    The index is read from the user's cache, or made and kept there, when it is first needed.
    `fingerprint` names all that it depends on. What was chosen is counted, each document and
    prompt once, for the record of the run; no prompt is kept.
    """

    def __init__(
        self,
        prompts: DomainPrompts,
        sets: Mapping[str, SkipSet],
        arguments: Arguments,
        loaded: LoadedModel,
        prompter: Prompter,
        scope: Scope,
        say: Callable[[str], None],
    ) -> None:
        self._loaded, self._prompter, self._say = loaded, prompter, say
        self._arguments = arguments
        self._dense = SkipSet.dense(loaded.info.num_layers)
        self._sources = prompts.sources
        self._sets = {domain: sets[domain] for domain in prompts.sources}
        self._reads_twice = scope == "all"
        self._pooling: Pooling = arguments.router_pooling or DEFAULT_POOLING
        self._neighbours = arguments.router_k or NEIGHBOURS
        self._threshold = arguments.router_threshold
        self._entries = [
            _Entry(prompt, form, ids)
            for prompt in prompts.prompts
            for form, ids in self.forms(prompt)
        ]
        self.fingerprint = self._make_fingerprint()
        self._routers: dict[str, Router] = {}
        self._scored: tuple[tuple[int, ...], SkipSet] | None = None
        self._seen: set[bytes] = set()
        self._counted: dict[str, Counter[tuple[str, SkipSet]]] = {}

    @property
    def sets(self) -> set[SkipSet]:
        """Every set that a request may get."""
        return {self._dense, *self._sets.values()}

    def record(self) -> dict[str, Any]:
        """What a choice depends on beside the prompt and the sets."""
        return {
            "rule": "knn",
            "pooling": self._pooling,
            "k": self._neighbours,
            "threshold": "calibrated" if self._threshold is None else self._threshold,
            "index": self.fingerprint,
            "data": dict(self._sources),
        }

    def __str__(self) -> str:
        extra = " and one dense prefill more" if self._reads_twice else ""
        return (
            f"router=knn chooses after each prompt{extra} among {', '.join(self._sets)}, by the "
            f"{self._neighbours} nearest calibration prompts"
        )

    def ready(self) -> None:
        """Read or make the index, unless it is there."""
        if not self._routers:
            index = self.index()
            self._routers = {
                form: self.rule(index.of_form(form)) for form in dict.fromkeys(index.forms)
            }

    def rule(self, index: RouterIndex) -> Router:
        """The rule on an index of one form."""
        return Router(index, self._neighbours, self._threshold)

    def index(self) -> RouterIndex:
        """The index, from the user's cache where it is there and whole."""
        path = cache_dir() / "router" / f"{self.fingerprint[:32]}.safetensors"
        try:
            return RouterIndex.load(path, self.fingerprint)
        except FileNotFoundError:
            pass
        except IndexFileError as error:
            self._say(f"{error}; it is made again")
        index = self._make_index()
        try:
            index.save(path)
        except OSError as error:
            self._say(
                f"{path} cannot be written ({error.strerror}), so the router index is made again "
                f"next time; {CACHE_VARIABLE} names another cache"
            )
        return index

    def read(self, ids: Sequence[int]) -> Tensor:
        """The dense features [n, H] of a prompt."""
        target = self._loaded.target
        with torch.inference_mode():
            row = torch.tensor([list(ids)], device=target.device)
            return target.prefill(row, target.new_cache(len(ids)), self._dense)[0]

    def unread(self, request: Request) -> SkipChoice:
        """The choice for a request that has no prompt."""
        return SkipChoice(request.task, None, self._dense, "router: no prompt was read: dense")

    def choose(self, request: Request, prompt: str, features: Tensor) -> SkipChoice:
        """The choice for a prompt with these dense features [n, H]."""
        self.ready()
        route = self._route(prompt, features)
        domain, skip, why = None, self._dense, "no calibration prompt has this form: dense"
        if route is not None:
            domain = route.domain
            why = f"nearest {route.nearest}, distance {_shown(route.distance)}"
            if domain is None:
                why += f" is above {_shown(route.threshold)}: dense"
            else:
                skip = self._sets[domain]
        # A dense choice goes on with the prefill that it was made from.
        extra = ", one dense prefill more" if self._reads_twice and skip else ""
        choice = SkipChoice(request.task, domain, skip, f"router: {why}{extra}")
        self._count(choice, request.name, prompt)
        return choice

    def _count(self, choice: SkipChoice, name: str, prompt: str) -> None:
        key = json.dumps([choice.task, name, prompt]).encode()
        digest = hashlib.blake2b(key, digest_size=16).digest()
        if digest not in self._seen:
            self._seen.add(digest)
            counts = self._counted.setdefault(choice.task, Counter())
            counts[choice.domain or "dense", choice.skip] += 1

    def _route(self, prompt: str, features: Tensor) -> Route | None:
        """None where the index has no prompt of this form."""
        router = self._routers.get(self.form(prompt))
        return None if router is None else router(self.pool(features))

    def choose_scored(self, request: Request, prompt: str, ids: Sequence[int]) -> SkipSet:
        """The set for continuations of a context; kept for the next one, which often shares it."""
        key = tuple(ids)
        if self._scored is None or self._scored[0] != key:
            self._scored = key, self.choose(request, prompt, self.read(ids)).skip
        return self._scored[1]

    def form(self, prompt: str) -> str:
        """See `form_of`."""
        return form_of(self._prompter, prompt)

    def pool(self, features: Tensor) -> Vector:
        """One float32 vector [H] of the features [n, H] of a prompt."""
        wide = features[-1].float() if self._pooling == "last" else features.float().mean(0)
        vector: Vector = wide.cpu().numpy()
        return vector

    def notes(self) -> Iterator[str]:
        """A line a task: how many of its requests went where."""
        for task, counts in self._counted.items():
            told = ", ".join(f"{count} {domain}" for (domain, _), count in counts.most_common())
            yield f"{task}: {counts.total()} requests routed: {told}"

    def summary(self) -> dict[str, dict[str, Any]]:
        """By task and domain (`dense` for strangers): the set, and how many requests got it."""
        return {
            task: {
                domain: {"skip": list(skip), "requests": count}
                for (domain, skip), count in counts.items()
            }
            for task, counts in self._counted.items()
        }

    def _make_index(self) -> RouterIndex:
        bar = tqdm(self._entries, desc="router index", unit="prompt")
        return RouterIndex(
            np.stack([self.pool(self.read(entry.ids)) for entry in bar]),
            tuple(entry.prompt.domain for entry in self._entries),
            tuple(entry.form for entry in self._entries),
            tuple(entry.prompt.row for entry in self._entries),
            self.fingerprint,
            self._sources,
        )

    def _make_fingerprint(self) -> str:
        info, target = self._loaded.info, self._loaded.target
        entries = [(one.prompt.domain, one.prompt.row, one.form, one.ids) for one in self._entries]
        depends = [info.revision, str(target.dtype), target.device.type, self._pooling, entries]
        return hashlib.sha256(json.dumps(depends).encode()).hexdigest()

    def forms(self, prompt: DomainPrompt) -> Iterator[tuple[str, list[int]]]:
        """Form and ids of each of `texts_of` a row.

        A prompt that is too long is cut as an answer's is, whatever on_overflow says of requests.
        """
        limit = read_options(prompt.options, self._arguments).max_gen_toks
        context, request = self._loaded.target.context_length, prompt.request
        for text in texts_of(self._prompter, request):
            ids = self._prompter.encode(text)
            yield self.form(text), fit_prompt(ids, limit, context, "flag", request.where)[0]


def _shown(distance: float) -> str:
    return f"{round(distance, 4):.2g}"
