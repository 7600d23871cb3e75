"""`tss-bench domains route-test`: how well `router=knn` finds domains, and what it costs.

The index holds calibration rows. Test rows are routed without the name of their task, in the form
that it gives them and as plain text; each also as a stranger, with its domain left out of the
index. Some are answered, with and without routing in turn. The last line printed is JSON.

May import: tqdm, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from model_adapters.adapters import ADAPTERS
from model_adapters.arguments import ROUTER_SHAPE, Arguments, read_arguments, split_arguments
from model_adapters.base import SpeculativeLM
from model_adapters.prompts import Request
from model_adapters.router import CHAT, PLAIN, PromptRouter, check_rules
from model_adapters.router_prompts import DomainPrompt, domain_prompts
from tss_bench.bench import machine
from tss_bench.decoding.answer import Clock
from tss_bench.domains import DOMAINS, EVERY_OTHER_TASK, SkipChoice
from tss_bench.harness import interleave, prepare_adapters
from tss_bench.route_report import (
    SAME_KIND,
    Routed,
    Timed,
    accuracy,
    by_domain,
    cost,
    cost_line,
    shown,
    table,
)
from tss_bench.routing import POOLINGS, Router, RouterIndex, Vector
from tss_bench.types import SCOPES, GeneratedText, SkipSet

_FLAGS = {
    "pretrained": "--pretrained",
    "scope": "--scope",
    "router_pooling": "--pooling",
    "router_k": "--k",
    "router_threshold": "--threshold",
}
_REFUSED = ("skip_layers", "router")


@dataclass(frozen=True)
class Probe:
    """A test row of a domain in one form, and its pooled feature [H]."""

    domain: str
    form: str
    feature: Vector


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench domains route-test`."""
    sparse = [name for name, adapter in ADAPTERS.items() if adapter.sparse]
    parser.add_argument("--model", default="tss_eagle", choices=sparse, help="default tss_eagle")
    parser.add_argument("--pretrained", help="the target (default: the default target)")
    parser.add_argument("--model_args", default="", help="other arguments, as in lm_eval")
    parser.add_argument("--scope", choices=SCOPES, help="as the adapter's scope")
    parser.add_argument("--limit", type=int, default=16, help="test rows a domain (default 16)")
    parser.add_argument("--pooling", choices=POOLINGS, help="as router_pooling")
    parser.add_argument("--k", help="as router_k")
    parser.add_argument("--threshold", help="as router_threshold")
    parser.add_argument(
        "--timed", type=int, default=1, help="rows a domain that are answered (default 1)"
    )


def run(args: argparse.Namespace) -> None:
    """Print accuracy, confusions, strangers and cost, JSON last.

    Raises ValueError for bad input before any weight is loaded.
    """
    adapter, shape = _prepare(args)
    sets = _sets(adapter)
    known, tests = domain_prompts(sets), domain_prompts(sets, "test")
    check_rules(known, adapter.prompter, shape)
    for note in known.notes:
        print(note)
    adapter.load()
    router = adapter.new_router(known, sets, shape)
    index = router.index()
    print(machine({args.model: adapter}), flush=True)
    print(f"index: {', '.join(f'{name} {source}' for name, source in index.sources.items())}")
    probes = list(_probes(router, _first_rows(tests.prompts, args.limit)))
    results = {}
    for form in dict.fromkeys(probe.form for probe in probes):
        routed = _route(index.of_form(form), [one for one in probes if one.form == form], router)
        results[form] = {"domains": by_domain(routed), **accuracy(routed, sets)}
        print(f"\n{_headline(form, results[form])}\n{table(results[form]['domains'])}", flush=True)
    found = cost(_time(adapter, router, _first_rows(tests.prompts, args.timed)))
    print(f"\n{cost_line(found)}")
    setting = {"limit": args.limit, "scope": adapter.scope, "router": router.record()}
    record = {"bench": "route-test", "model": args.model, "target": adapter.info.id, **setting}
    print(json.dumps({**record, "results": results, "cost": found}))


def _prepare(args: argparse.Namespace) -> tuple[SpeculativeLM, Arguments]:
    """The adapter, checked but not loaded, and the arguments that shape the router."""
    for name in ("limit", "timed"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    given = split_arguments(args.model_args)
    for name in given:
        if name in _FLAGS:
            raise ValueError(f"--model_args may not hold {name}; use {_FLAGS[name]}")
        if name in _REFUSED:
            raise ValueError(f"--model_args may not hold {name}: the map's domains are routed to")
    own = {"pretrained": args.pretrained, "scope": args.scope}
    given |= {name: value for name, value in own.items() if value is not None}
    adapter = prepare_adapters([args.model], given)[args.model]
    values = (args.pooling, args.k, args.threshold)
    shape = {**given, **dict(zip(ROUTER_SHAPE, values, strict=True))}
    return adapter, read_arguments(args.model, shape, adapter.allowed_arguments())


def _sets(adapter: SpeculativeLM) -> dict[str, SkipSet]:
    """The map's sets; without a map every domain there is, dense."""
    sets = adapter.controller.sets
    named = {name: skip for name, skip in sets.items() if name != EVERY_OTHER_TASK}
    return named or dict.fromkeys(DOMAINS, SkipSet.dense(adapter.info.num_layers))


def _first_rows(prompts: Sequence[DomainPrompt], limit: int) -> list[DomainPrompt]:
    """The first rows of each domain."""
    taken: Counter[str] = Counter()
    rows = []
    for prompt in prompts:
        taken[prompt.domain] += 1
        if taken[prompt.domain] <= limit:
            rows.append(prompt)
    return rows


def _nameless(prompt: DomainPrompt) -> Request:
    """The request of a row without its task and domain."""
    return replace(prompt.request, task="route-test", domain=None)


def _probes(router: PromptRouter, rows: Sequence[DomainPrompt]) -> Iterator[Probe]:
    with tqdm(rows, desc="test rows", unit="row") as bar:
        for prompt in bar:
            for form, ids in router.forms(prompt):
                yield Probe(prompt.domain, form, router.pool(router.read(ids)))


def _route(index: RouterIndex, probes: Sequence[Probe], router: PromptRouter) -> list[Routed]:
    """Where the rows go, and where they would with their own domain left out of the index."""
    whole = router.rule(index)
    without = {
        domain: _rule_without(domain, index, router)
        for domain in dict.fromkeys(probe.domain for probe in probes)
    }
    routed = []
    for probe in probes:
        route = whole(probe.feature)
        rest = without[probe.domain]
        stranger = None if rest is None else rest(probe.feature).domain is None
        routed.append(Routed(probe.domain, route.nearest, route.domain, stranger))
    return routed


def _rule_without(domain: str, index: RouterIndex, router: PromptRouter) -> Router | None:
    """The rule on the other domains; None where they have too few prompts for one."""
    if set(index.domains) <= {domain}:
        return None
    try:
        return router.rule(index.without(domain))
    except ValueError:
        return None


def _headline(form: str, found: Mapping[str, Any]) -> str:
    how = {CHAT: "with the chat template", PLAIN: "as plain text"}[form]
    got = ""
    if "right_set" in found:
        got = f"; {shown(found['right_set'])} got the skip set of their domain"
    same = ", ".join(" and ".join(group) for group in SAME_KIND)
    return (
        f"{found['right']['rows']} test rows {how}: {shown(found['right'])} went to their domain "
        f"({shown(found['right_kind'])} with {same} as one, "
        f"{shown(found['nearest_right'])} before the threshold), {shown(found['dense'])} to "
        f"dense{got}"
    )


class _Stopwatch:
    """A router whose choices are timed; `seconds` is what the last one took."""

    def __init__(self, router: PromptRouter, device: Any) -> None:
        self._router, self._device = router, device
        self.seconds = 0.0

    @property
    def sets(self) -> set[SkipSet]:
        return self._router.sets

    def choose(self, request: Request, prompt: str, features: Any) -> SkipChoice:
        clock = Clock(self._device)
        choice = self._router.choose(request, prompt, features)
        self.seconds = clock.wall()
        return choice


def _time(
    adapter: SpeculativeLM, router: PromptRouter, rows: Sequence[DomainPrompt]
) -> list[Timed]:
    """Answer rows routed and under the same set given, in turn."""
    watch = _Stopwatch(router, adapter.target.device)
    jobs = [adapter.routed_job(_nameless(row), row.options, router) for row in rows]
    given = []
    for job in jobs:
        choice = router.choose(job.request, job.first, router.read(adapter.prompt_ids(job)))
        given.append(job.under(choice.skip, "given by hand"))

    def routed(place: int) -> tuple[GeneratedText, float]:
        answer = adapter.answer(replace(jobs[place], router=watch))
        return answer, watch.seconds

    methods: dict[str, Callable[[int], tuple[GeneratedText, float]]] = {
        "routed": routed,
        "given": lambda place: (adapter.answer(given[place]), 0.0),
    }
    answers = interleave(methods, range(len(jobs)), "answers", lambda: adapter.begin_run(jobs))
    return [
        Timed(seconds, answer, plain)
        for (answer, seconds), (plain, _) in zip(*answers.values(), strict=True)
    ]
