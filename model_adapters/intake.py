"""From lm-eval's requests to jobs: the skip set chosen, all checked, the cache's answer claimed.

May import: lm_eval, tss_bench.{types,domains}, model_adapters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance

from model_adapters.answering import Answerer, Job
from model_adapters.arguments import Arguments
from model_adapters.cache import CacheGuard
from model_adapters.choosing import Chooser
from model_adapters.prompts import Prompter, Request
from tss_bench.domains import SkipChoice
from tss_bench.types import SkipSet


class Intake:
    """Takes requests in for one adapter; `say` tells the user a line, once each.

    `guard` guards lm-eval's cache, where there is one.
    """

    def __init__(
        self,
        answerer: Answerer,
        chooser: Chooser,
        prompter: Prompter,
        arguments: Arguments,
        model: str,
        say: Callable[[str], None],
    ) -> None:
        self._answerer, self._chooser, self._prompter = answerer, chooser, prompter
        self._arguments = arguments
        self._model = model
        self._say = say
        self.guard: CacheGuard | None = None

    def jobs(self, requests: Sequence[Instance]) -> list[Job]:
        """The generation requests, all checked. Raises AdapterError naming the document."""
        repeats: Counter[int] = Counter()
        jobs = []
        for instance in requests:
            jobs.append(self._claimed(instance, repeats[id(instance)]))
            repeats[id(instance)] += 1
        self._chooser.ready(jobs)
        return jobs

    def job(self, request: Request, given: Mapping[str, Any], choice: SkipChoice | None) -> Job:
        """One request; the chooser chooses its skip set unless `choice` does."""
        if choice is None:
            job = self._chosen(request, given)
        else:
            job = self._answerer.job(request, given, choice)
        self._chooser.ready([job])
        return job

    def claim_scored(
        self, kind: str, instance: Instance, request: Request, skip: SkipSet | None
    ) -> None:
        """Claim the cached answer of a request that is scored under `skip` (None: routed)."""
        self._say_style(request)
        if self.guard is not None:
            self.guard.claim(kind, instance.args, request, skip, greedy=True)

    def _claimed(self, instance: Instance, repeat: int) -> Job:
        context, given = instance.args
        request = Request.of(context, instance.doc, instance.task_name, instance.doc_id)
        job = self._chosen(request, given, repeat)
        greedy = job.options.temperature == 0.0
        if greedy and self._arguments.temperature > 0.0:
            self._say(
                f"{request.task} asks for greedy decoding, which wins over temperature="
                f"{self._arguments.temperature} (--gen_kwargs do_sample=True,temperature=… wins "
                f"over the task)"
            )
        if self.guard is not None:
            skip = None if job.router else job.choice.skip
            self.guard.claim("generate_until", instance.args, request, skip, greedy)
        return job

    def _chosen(self, request: Request, given: Mapping[str, Any], repeat: int = 0) -> Job:
        router = self._chooser.router_for(request)
        choice = self._chooser.choose(request, router)
        self._say_style(request)
        return self._answerer.job(request, given, choice, repeat, router)

    def _say_style(self, request: Request) -> None:
        templated = self._prompter.chat or self._arguments.chat_template is not None
        if request.style == "chat" and not templated:
            self._say(
                f"{self._model} has no chat template: prompts made for chat models reach it as "
                f"plain text; the *_fewshot tasks suit it better"
            )
