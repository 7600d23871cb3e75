"""The skip set of each request: by its task and domain, or by a router where these tell nothing.

May import: tss_bench.{types,domains,routing}, model_adapters.{answering,arguments,prompts,router,
router_prompts,skip_plan}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from model_adapters.answering import Job
from model_adapters.arguments import Arguments, one_error
from model_adapters.prompts import Request
from model_adapters.router import PromptRouter
from model_adapters.router_prompts import domain_prompts
from model_adapters.skip_plan import SkipPlan
from tss_bench.domains import SkipChoice, SkipController
from tss_bench.types import SkipSet


class Chooser:
    """Chooses among the sets of a plan; `say` tells the user what was chosen, once each.

    `controller` may be replaced between two calls: then nothing is routed. `router` is None
    without `router=knn`, and until the target is loaded; `prompts` are those it compares with.
    `source` is where the sets come from, `notes` what the user should be told of them.
    """

    def __init__(self, plan: SkipPlan, arguments: Arguments, say: Callable[[str], None]) -> None:
        self.prompts = domain_prompts(plan.routed) if plan.routed else None
        self.source = plan.source
        self.notes = (*plan.notes, *(self.prompts.notes if self.prompts else ()))
        self._planned = plan.controller
        self._say = say
        self.controller: SkipController = plan.controller
        self.router: PromptRouter | None = None

    def router_for(self, request: Request) -> PromptRouter | None:
        """The router, for a request whose task and domain the map does not know."""
        if self.controller is not self._planned:
            return None
        return None if self.controller.knows(request.task, request.domain) else self.router

    def choose(self, request: Request, router: PromptRouter | None) -> SkipChoice:
        """The set of a request; with a router the one it has before its prompt is read."""
        if router is None:
            choice = self.controller.choose(request.task, request.domain)
            self._say(str(choice))
        else:
            choice = router.unread(request)
            self._say(f"{request.task}: {router}")
        return choice

    def choose_scored(self, request: Request, *, whole_text: bool = False) -> SkipSet | None:
        """The set of a scored request; None where the router chooses it from the context.

        A request without a context (`whole_text`, too) has nothing to be routed by: it is dense.
        """
        router = self.router_for(request)
        if router is not None and (whole_text or not request.context):
            self._say(str(router.unread(request)))
            return router.unread(request).skip
        choice = self.choose(request, router)
        return None if router else choice.skip

    def route_scored(self, request: Request, prompt: str, ids: Sequence[int]) -> SkipSet:
        """The set that the router chooses for continuations of a prompt with these ids.

        Raises AdapterError where the index of the router cannot be made.
        """
        assert self.router is not None
        with one_error():
            return self.router.choose_scored(request, prompt, ids)

    def ready(self, jobs: Sequence[Job]) -> None:
        """Read the prompts that the router compares with, if any of these jobs is routed.

        Raises AdapterError where the index of the router cannot be made.
        """
        if self.router is not None and any(job.router for job in jobs):
            with one_error():
                self.router.ready()

    def say_routes(self) -> None:
        """Tell where the requests were routed."""
        for note in self.router.notes() if self.router else ():
            self._say(note)

    def record(self) -> dict[str, Any]:
        """What was used: the set of each task, and where requests were routed."""
        used = {
            task: {"skip": list(choice.skip), "domain": choice.domain, "why": choice.why}
            for task, choice in self.controller.used.items()
        }
        return {"used": used, **({"routed": self.router.summary()} if self.router else {})}
