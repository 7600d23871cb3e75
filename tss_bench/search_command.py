"""`tss-bench search`: finds a skip set for each domain on its calibration rows.

Everything measured goes into a ledger, so that a killed search goes on where it was; the domain
map is written after each domain.

May import: tqdm, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from tss_bench import __version__, executors
from tss_bench.domains import DomainMap
from tss_bench.executors import Evaluators
from tss_bench.harness import add_include_path
from tss_bench.search import (
    COST_UNITS,
    Budget,
    EvaluationTable,
    Ledger,
    Progress,
    Query,
    Rules,
    Search,
    SearchResult,
    SearchSpace,
    Strategy,
    StrategyFunction,
    all_strategies,
    run_search,
)
from tss_bench.search_plan import DomainPlan, SearchPlan, check_map, prepare
from tss_bench.search_report import (
    Found,
    joined,
    metric_floor,
    record,
    results_table,
    singles_table,
    strategies_table,
    sweep_table,
)
from tss_bench.types import PROTOCOLS, SCOPES
from tss_bench.verify_timing import ROWS

Listed = list[tuple[Found, EvaluationTable]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench search`."""
    parser.epilog = (
        "A search sees the calibration rows of a task, never its test rows. Start the same "
        "command again after a kill: no row is evaluated twice; only timings are taken anew."
    )
    parser.add_argument("--model", help="any tss_* model, such as tss_eagle")
    parser.add_argument("--model_args", default="", help="its arguments, as in lm_eval")
    parser.add_argument("--tasks", help="comma-separated tasks, a domain each")
    add_include_path(parser)
    parser.add_argument(
        "--strategy", default="tss_beam", help="its name (default tss_beam), or list to see all"
    )
    parser.add_argument(
        "--opt", nargs="+", action="extend", metavar="NAME=VALUE", help="options of the strategy"
    )
    parser.add_argument("--seed", type=int, help="the same as --opt seed=…")
    parser.add_argument("--scope", default="verify", choices=SCOPES, help="default verify")
    parser.add_argument("--protocol", default="strict", choices=PROTOCOLS, help="default strict")
    parser.add_argument("--out", type=Path, help="the domain map (.json), written or updated")
    parser.add_argument("--ledger", type=Path, help="folder of the ledgers (default beside --out)")
    parser.add_argument(
        "--by",
        default="domain",
        choices=("domain", "task", "form"),
        help="name of a set in the map (form: the domain, but the task of a few-shot form)",
    )
    parser.add_argument("--limit", type=int, help="calibration rows a task (default all)")
    _add_rules(parser)
    executors.add_arguments(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--ablate-singles",
        action="store_true",
        help="only show what skipping each layer alone changes; write no map",
    )
    shown.add_argument(
        "--sweep-tolerance",
        metavar="0.05,0,-0.05",
        help="only show the choice at each tolerance, from the ledger; write no map",
    )


def _add_rules(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="share of the dense A and M that a set may lose (default 0.05; negative: must gain)",
    )
    parser.add_argument(
        "--tau", type=float, default=0.05, help="what a layer may lose to enter the pool of tss_bfs"
    )
    parser.add_argument(
        "--absolute", action="store_true", help="tolerances are differences, not shares"
    )
    parser.add_argument(
        "--accept-alone",
        action="store_true",
        help="choose on A alone where the dense metric is at its floor or there is none",
    )
    parser.add_argument(
        "--cost",
        default="layers",
        choices=("layers", "measured"),
        help=f"layers: active / L (default); measured: ms a verification step, timed in every run "
        f"beside the dense target, on {ROWS} rows, for sets that keep A and M",
    )
    parser.add_argument(
        "--early", type=int, help="first layers that stay (default: the strategy's)"
    )
    parser.add_argument("--late", type=int, help="last layers that stay (default: the strategy's)")
    parser.add_argument("--depth", type=int, help="most layers of a set (default: the strategy's)")
    parser.add_argument("--pool", help="candidate layers, 3+10+25 (default: all between barriers)")
    parser.add_argument("--budget", type=int, help="most skip sets that may be evaluated")
    parser.add_argument("--prompt-budget", type=int, help="most (skip set, row) pairs")


def run(args: argparse.Namespace) -> None:
    """Search, or show. Raises ValueError for bad input before any weight is loaded."""
    if args.strategy == "list":
        print(strategies_table(all_strategies()))
        return
    ray = executors.settings(args)
    plan = prepare(args)
    if plan.out is not None:
        _require_place(plan.out)
    with ExitStack() as stack:
        layers = plan.adapter.info.num_layers
        ledgers = [
            stack.enter_context(Ledger(domain.ledger, domain.fingerprint, layers))
            for domain in plan.domains
        ]
        evaluators = stack.enter_context(executors.evaluators(plan, ray))
        print(headline(plan, args, evaluators.place), flush=True)
        found: Listed = []
        for domain, ledger in zip(plan.domains, ledgers, strict=True):
            print(_announcement(plan, domain, args), flush=True)
            found += _domain(plan, domain, ledger, evaluators, args)
    print(_table(args)(found))
    if plan.out is not None:
        print(f"written: {plan.out} (use it with --model_args domain_map={plan.out})")


def _require_place(out: Path) -> None:
    """Make the folder of the map. Raises ValueError where nothing can be written there."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: its folder cannot be made: {error.strerror}") from None
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"--out {out}: its folder cannot be written to; give another --out")


def headline(plan: SearchPlan, args: argparse.Namespace, place: str) -> str:
    """What every figure below it depends on."""
    adapter = plan.adapter
    return (
        f"tss_bench {__version__}: {adapter.info.id} {adapter.info.revision[:12]} with drafter "
        f"{adapter.drafter_id}; {place}; scope {adapter.scope}, "
        f"protocol {adapter.arguments.protocol}; calibration rows; "
        f"{'absolute' if args.absolute else 'relative'} tolerance {plan.rules.eps}, tau "
        f"{plan.rules.tau}; cost: {COST_UNITS[plan.rules.cost]}"
    )


def _announcement(plan: SearchPlan, domain: DomainPlan, args: argparse.Namespace) -> str:
    if args.ablate_singles:
        what = f"{1 + len(domain.space.candidates)} skip sets, each layer alone"
    elif domain.planned is None:
        most = domain.space.budget.evaluations
        bound = "" if most is None else f", at most {most}"
        what = f"{plan.strategy.name}, whose number of skip sets depends on what it finds{bound}"
    else:
        what = f"{plan.strategy.name}, at most {domain.planned} skip sets"
    return f"{domain.key}: {domain.space.num_prompts} rows of {domain.task.label}; {what}"


def _table(args: argparse.Namespace) -> Callable[[Listed], str]:
    if args.ablate_singles:
        return singles_table
    return results_table if args.sweep_tolerance is None else sweep_table


def _domain(
    plan: SearchPlan,
    domain: DomainPlan,
    ledger: Ledger,
    evaluators: Evaluators,
    args: argparse.Namespace,
) -> Listed:
    """The results of one domain; the map has them when this returns."""
    search = _DomainSearch(plan, domain, ledger, evaluators, accept_alone=args.accept_alone)
    try:
        if args.ablate_singles:
            return [(search.run(each_layer, plan.rules), ledger.table)]
        if args.sweep_tolerance is not None:
            return [
                (search.run(plan.strategy, rules, plan.options), ledger.table)
                for rules in plan.sweep
            ]
        found = search.run(plan.strategy, plan.rules, plan.options)
    except ValueError as error:
        raise ValueError(f"{domain.key}: {error}") from error
    if plan.out is not None:
        _write(plan, plan.out, domain, found)
    return [(found, ledger.table)]


def _write(plan: SearchPlan, out: Path, domain: DomainPlan, found: Found) -> None:
    """Put one domain into the map as it is on the disk now."""
    adapter = plan.adapter
    if out.exists():
        before = DomainMap.load(out.absolute())
        check_map(before, adapter, out)
    else:
        before = DomainMap(
            model=adapter.info.id,
            drafter=adapter.drafter_id,
            num_layers=adapter.info.num_layers,
            scope=adapter.scope,
            protocol=adapter.arguments.protocol,
        )
    told = record(found, domain.fingerprint, domain.ledger.name)
    joined(before, found, told).save(out)


class _DomainSearch:
    """One task with its executor; the dense set is measured first and decides about the metric."""

    def __init__(
        self,
        plan: SearchPlan,
        domain: DomainPlan,
        ledger: Ledger,
        evaluators: Evaluators,
        *,
        accept_alone: bool,
    ) -> None:
        self._domain, self._ledger, self._accept_alone = domain, ledger, accept_alone
        self._executor, self._machine = evaluators.make(domain.task), evaluators.machine
        self._space = replace(domain.space, limits=self._executor.limits())
        free = replace(self._space, budget=Budget())
        first = self._follow(dense_alone, free, replace(plan.rules, cost="layers"), {})
        # Costs that are to be measured are timed beside those they are compared with.
        self._dense = _without_costs(first) if plan.rules.cost == "measured" else first
        self._told = 0

    def run(
        self,
        strategy: Strategy | StrategyFunction,
        rules: Rules,
        options: Mapping[str, Any] | None = None,
    ) -> Found:
        """Run a strategy; dense is kept where there is nothing that a set could be held to."""
        floor = metric_floor(self._dense.best, self._domain.task)
        kept = None if strategy is each_layer else self._kept_dense(floor)
        if kept is None:
            rules = replace(rules, use_metric=floor is None)
            result = self._follow(strategy, self._space, rules, options or {})
        else:
            name = strategy.name if isinstance(strategy, Strategy) else strategy.__name__
            result = replace(
                self._dense,
                strategy=name,
                options=dict(options or {}),
                reason=f"dense kept: {kept}",
            )
        fresh = self._executor.answered - self._told
        self._told = self._executor.answered
        return Found(
            self._domain.key,
            self._domain.task,
            self._space,
            rules,
            _with_all_options(result, strategy),
            floor,
            fresh,
        )

    def _kept_dense(self, floor: str | None) -> str | None:
        if self._dense.best.accept is None:
            return "no calibration row takes a verification step, so there is no A to search for"
        if floor is not None and not self._accept_alone:
            return f"{floor}; --accept-alone chooses on A alone"
        return None

    def _follow(
        self,
        strategy: Strategy | StrategyFunction,
        space: SearchSpace,
        rules: Rules,
        options: Mapping[str, Any],
    ) -> SearchResult:
        with _Bar(self._domain.key) as bar:
            return run_search(
                strategy,
                space,
                rules,
                self._executor,
                options=options,
                ledger=self._ledger,
                progress=bar.show,
                machine=self._machine,
            )


def _without_costs(result: SearchResult) -> SearchResult:
    dense = None if result.dense is None else replace(result.dense, cost=None)
    return replace(result, best=replace(result.best, cost=None), dense=dense)


def _with_all_options(result: SearchResult, strategy: Strategy | StrategyFunction) -> SearchResult:
    """The result with the defaults of the options that were not given."""
    if not isinstance(strategy, Strategy):
        return result
    defaults = {option.name: option.default for option in strategy.options}
    return replace(result, options={**defaults, **result.options})


def dense_alone(space: SearchSpace, rules: Rules) -> Search:
    """The dense set alone."""
    (one,) = yield Query([space.dense], planned=1)
    return SearchResult(one.score(), dense=one.score())


def each_layer(space: SearchSpace, rules: Rules) -> Search:
    """Dense and every layer alone; nothing is chosen."""
    sets = [space.dense, *space.singles()]
    dense, *_ = (one.score() for one in (yield Query(sets, planned=len(sets))))
    return SearchResult(dense, dense=dense)


class _Bar:
    """Skip sets done and planned, and the best feasible set so far."""

    def __init__(self, label: str) -> None:
        self._bar = tqdm(desc=label, unit="set")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def show(self, now: Progress) -> None:
        if now.planned is not None:
            self._bar.total = max(now.planned, now.done)
        best = now.best
        if best is not None:
            metric = "" if best.metric is None else f" M {best.metric:.3f}"
            text = f"best {best.skip} A {best.accept or 0:.2f}{metric}"
            self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(now.done - self._bar.n)
