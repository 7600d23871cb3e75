"""Loglikelihoods of continuations under a skip set (scope `all`: no later pass could differ).

May import: lm_eval, torch, tqdm, tss_bench.{types,decoding}, model_adapters.{arguments,choosing,
prompts}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from torch import Tensor
from tqdm import tqdm

from model_adapters.arguments import AdapterError
from model_adapters.choosing import Chooser
from model_adapters.prompts import Prompter, Request
from tss_bench.decoding.target import Target
from tss_bench.types import SkipSet

Claim = Callable[[str, Instance, Request, SkipSet | None], None]
"""Called with the kind of each request and its set (None: routed) before anything is scored."""
Keep = Callable[[str, Any, Any], None]
"""Called with the kind, the arguments and the answer of each request, as soon as it is there."""
EncodePair = Callable[[str, str], tuple[list[int], list[int]]]


class Scorer:
    """Scores (context, continuation) pairs; `max_length` is the most ids of one pass.

    `truncated` counts the pairs whose context lost its beginning.
    """

    def __init__(self, target: Target, max_length: int, on_overflow: str) -> None:
        self._target = target
        self.max_length = max_length
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
        if len(continuation) > self.max_length:
            raise AdapterError(
                f"the continuation of {where} has {len(continuation)} tokens, the context of the "
                f"model {self.max_length}; shorten it"
            )
        ids = [*context, *continuation]
        if len(ids) > self.max_length + 1:
            self._overflow(len(ids) - 1, where)
        inputs = tuple(ids[-(self.max_length + 1) : -1])
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
                f"{where} has {length} tokens, the context of the model {self.max_length}; "
                f"shorten it, or cut its beginning with on_overflow=flag"
            )
        self.truncated += 1


class Likelihoods:
    """Scores lm-eval's requests under the sets that `chooser` gives.

    `encode_pair` are the ids of a context and of its continuation, as lm-eval splits them,
    `prefix` is the begin-of-text id.
    """

    def __init__(
        self,
        scorer: Scorer,
        prompter: Prompter,
        chooser: Chooser,
        encode_pair: EncodePair,
        prefix: int,
    ) -> None:
        self._scorer, self._prompter, self._chooser = scorer, prompter, chooser
        self._encode_pair = encode_pair
        self._prefix = prefix

    def pairs(
        self, requests: Sequence[Instance], claim: Claim, keep: Keep, disable_tqdm: bool
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether greedy decoding would give it."""
        pairs, places = [], []
        for instance in requests:
            context, continuation = instance.args
            request = Request.of(context, instance.doc, instance.task_name, instance.doc_id)
            skip = self._chooser.choose_scored(request)
            claim("loglikelihood", instance, request, skip)
            prompt = self._prompter.first(request)
            if prompt != context:
                # The template ends where the answer begins: no space belongs between them.
                continuation = continuation.lstrip(" ")
            pairs.append((instance.args, *self._encode(prompt, continuation)))
            places.append((request, skip))
        return self.tokens(pairs, places, keep, disable_tqdm)

    def rolling(
        self, requests: Sequence[Instance], claim: Claim, keep: Keep, disable_tqdm: bool
    ) -> list[float]:
        """Log-probability of each whole text, in windows of the context as lm-eval cuts them."""
        totals = []
        for instance in tqdm(requests, desc="Running rolling requests", disable=disable_tqdm):
            (text,) = instance.args
            request = Request.of(text, instance.doc, instance.task_name, instance.doc_id)
            skip = self._chooser.choose_scored(request, whole_text=True)
            claim("loglikelihood_rolling", instance, request, skip)
            windows = get_rolling_token_windows(
                token_list=self._prompter.encode(text),
                prefix_token=self._prefix,
                max_seq_len=self._scorer.max_length,
                context_len=1,
            )
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            scores = self.tokens(pairs, [(request, skip)] * len(pairs), keep, disable_tqdm=True)
            totals.append(float(sum(total for total, _ in scores)))
            keep("loglikelihood_rolling", instance.args, totals[-1])
        return totals

    def tokens(
        self,
        pairs: Sequence[tuple[Any, list[int], list[int]]],
        places: Sequence[tuple[Request, SkipSet | None]],
        keep: Keep,
        disable_tqdm: bool,
    ) -> list[tuple[float, bool]]:
        """Scores of pairs of ids; what has a key is kept under it. A set of None is routed."""
        answers = []
        bar = tqdm(pairs, desc="Running loglikelihood requests", disable=disable_tqdm)
        for (key, context, continuation), (request, skip) in zip(bar, places, strict=True):
            if skip is None:
                prompt = self._prompter.first(request)
                seen = context[-self._scorer.max_length :]
                skip = self._chooser.route_scored(request, prompt, seen)
            answers.append(self._scorer.score(context, continuation, skip, request.where))
            if key is not None:
                keep("loglikelihood", key, answers[-1])
        return answers

    def _encode(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of context and continuation; an empty context becomes the begin-of-text id."""
        if context:
            return self._encode_pair(context, continuation)
        ids = self._prompter.encode(continuation, add_special_tokens=False)
        if ids[:1] == [self._prefix]:
            return ids[:1], ids[1:]
        return [self._prefix], ids
