"""What `tss-bench search` is going to do: strategy, rules, adapter, rows, ledgers, all checked.

No weights are loaded here and nothing is measured.

May import: model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from model_adapters.adapters import ADAPTERS
from model_adapters.arguments import split_arguments
from model_adapters.base import SpeculativeLM
from tss_bench import __version__
from tss_bench.answer_records import digest
from tss_bench.calibration import require_calibration
from tss_bench.domains import DomainMap, MapError, domain_of
from tss_bench.evaluators import EvaluatorName, evaluator_for
from tss_bench.harness import TaskRequests, load_tasks, prepare_adapters, split_names
from tss_bench.search import (
    Budget,
    Evaluation,
    Fingerprint,
    Job,
    Progress,
    Rules,
    SearchSpace,
    Strategy,
    get,
    run_search,
)
from tss_bench.types import parse_layers
from tss_bench.weights.loading import resolve_device

_FLAGS = {
    "skip_layers": "--strategy",
    "domain_map": "--out",
    "scope": "--scope",
    "protocol": "--protocol",
}
# Of the drafter's own arguments: where it lies, which its fingerprint covers, and its memory.
_PLACES = frozenset({"draft", "draft_revision", "sam", "state", "tree"})


@dataclass(frozen=True)
class DomainPlan:
    """One task: under which key its set is stored, its space, and the ledger of its evaluations.

    `planned` is how many skip sets the strategy means to ask for, None where that depends on
    what it finds. `space` has no limits yet: they are known once the drafter is loaded.
    """

    key: str
    task: TaskRequests
    space: SearchSpace
    planned: int | None
    ledger: Path
    fingerprint: Fingerprint


@dataclass(frozen=True)
class SearchPlan:
    """A checked search; `sweep` holds the rules of `--sweep-tolerance`, loosest first.

    `arguments` are those the adapter was made from; `limit` is the number of rows a task;
    `include_path` a folder of more tasks; `evaluator` is a name of `evaluators`.
    """

    adapter: SpeculativeLM
    arguments: Mapping[str, Any]
    limit: int | None
    include_path: str | None
    evaluator: EvaluatorName
    strategy: Strategy
    options: Mapping[str, Any]
    rules: Rules
    sweep: tuple[Rules, ...]
    domains: tuple[DomainPlan, ...]
    out: Path | None


class _WouldMeasureError(Exception):
    """The strategy has asked its first question."""


def prepare(args: argparse.Namespace) -> SearchPlan:
    """Everything that can be known to be wrong is refused here, by ValueError."""
    strategy = get(args.strategy)
    seed = [] if args.seed is None else [f"seed={args.seed}"]
    options = strategy.parse_options([*(args.opt or ()), *seed])
    rules = _rules(args)
    sweep = tuple(replace(rules, eps=eps) for eps in _tolerances(args.sweep_tolerance))
    out, ledgers = _places(args)
    arguments = _adapter_arguments(args)
    adapter = prepare_adapters([args.model], arguments)[args.model]
    space = _space(args, strategy, adapter.info.num_layers)
    if out is not None and out.exists():
        check_map(DomainMap.load(out.absolute()), adapter, out)
    tasks = _tasks(args, adapter)
    evaluator = evaluator_for(adapter, args.evaluator)
    return SearchPlan(
        adapter,
        arguments,
        args.limit,
        args.include_path,
        evaluator,
        strategy,
        options,
        rules,
        sweep,
        tuple(
            _domain(
                key,
                task,
                space,
                (strategy, options, rules),
                ledgers,
                fingerprint(adapter, task, evaluator),
            )
            for key, task in zip(_keys(tasks, args.by), tasks, strict=True)
        ),
        out,
    )


def check_map(found: DomainMap, adapter: SpeculativeLM, out: Path) -> None:
    """Raises MapError unless new sets of this adapter may join this map."""
    found.require(adapter.info.id, adapter.info.num_layers)
    mine = {
        "drafter": adapter.drafter_id,
        "scope": adapter.scope,
        "protocol": adapter.arguments.protocol,
    }
    for name, value in mine.items():
        there = getattr(found, name)
        if there != value:
            raise MapError(
                f"{out} holds sets for {name} {there}, this search is for {value}; give another "
                f"--out"
            )


def fingerprint(
    adapter: SpeculativeLM, task: TaskRequests, evaluator: EvaluatorName
) -> Fingerprint:
    """All that an evaluation depends on; a prepared adapter knows it before it is loaded.

    Of two evaluators, because they round differently in 16-bit formats.
    """
    arguments = adapter.arguments
    sizes = sorted(adapter.own_arguments - _PLACES)
    return Fingerprint(
        model={
            "id": adapter.info.id,
            "revision": adapter.info.revision,
            "dtype": arguments.dtype,
            "device": resolve_device(arguments.device).partition(":")[0],
            **{name: getattr(arguments, name) for name in ("max_length", "chat_template")},
        },
        drafter={
            "id": adapter.drafter_id,
            **{name: getattr(arguments, name) for name in sizes},
            **adapter.drafter_record(),
        },
        data={
            "task": task.name,
            "version": str(task.task.VERSION),
            "rows": len(task.requests),
            "sha256": digest([[request.args, request.doc] for request in task.requests]),
        },
        protocol=arguments.protocol,
        scope=adapter.scope,
        versions={
            "tss_bench": __version__,
            **{name: version(name) for name in ("torch", "transformers")},
        },
        other={
            "evaluator": evaluator,
            **{name: getattr(arguments, name) for name in ("max_gen_toks", "on_overflow")},
        },
    )


def _rules(args: argparse.Namespace) -> Rules:
    if args.cost == "measured" and args.ablate_singles:
        raise ValueError(
            "--ablate-singles shows A and M and times nothing; leave out --cost measured"
        )
    return Rules(
        eps=args.tolerance,
        tau=args.tau,
        tolerance="absolute" if args.absolute else "relative",
        cost=args.cost,
    )


def _tolerances(text: str | None) -> list[float]:
    """The numbers of `--sweep-tolerance`, highest first, each once."""
    try:
        values = {float(word) for word in split_names(text)}
    except ValueError:
        raise ValueError(
            f"--sweep-tolerance takes numbers like 0.05,0,-0.05, got {text!r}"
        ) from None
    if text is not None and not values:
        raise ValueError("--sweep-tolerance names no tolerance; write for example 0.05,0,-0.05")
    return sorted(values, reverse=True)


def _places(args: argparse.Namespace) -> tuple[Path | None, Path]:
    """Where the map goes (None: none is written) and the folder of the ledgers."""
    only_shows = args.ablate_singles or args.sweep_tolerance is not None
    if args.out is None and (args.ledger is None or not only_shows):
        raise ValueError(
            "--out is missing: the file of the domain map, for example maps/my-map.json "
            "(--ledger DIR alone is enough for --ablate-singles and --sweep-tolerance)"
        )
    if args.out is not None and (args.out.suffix != ".json" or args.out.is_dir()):
        raise ValueError(f"--out must be a file that ends in .json, got {args.out}")
    ledgers = args.ledger or args.out.parent / f"{args.out.stem}.ledger"
    if ledgers.exists() and not ledgers.is_dir():
        raise ValueError(f"--ledger must be a folder, and {ledgers} is a file")
    return (None if only_shows else args.out), ledgers


def _adapter_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Those of the adapter, by name; ValueError for one without skip sets and for our own flags."""
    sparse = [name for name, adapter in ADAPTERS.items() if adapter.sparse]
    if args.model not in sparse:
        fault = "--model is missing" if args.model is None else f"no model {args.model!r} here"
        raise ValueError(f"{fault}; skip sets can be searched for {', '.join(sparse)}")
    given = split_arguments(args.model_args)
    for name in given.keys() & _FLAGS.keys():
        raise ValueError(f"--model_args may not hold {name}; use {_FLAGS[name]}")
    if given.get("state", "request") != "request":
        raise ValueError("state=run makes answers depend on their order; use state=request")
    shared = {"scope": args.scope, "protocol": args.protocol, "skip_layers": "dense"}
    return {**given, **shared}


def _space(args: argparse.Namespace, strategy: Strategy, layers: int) -> SearchSpace:
    """The space for one prompt; `_domain` puts in the number of rows.

    A depth that nobody asked for is cut to the candidates there are.
    """
    preset = {"early": 0, "late": 0, "depth": SearchSpace.depth, **strategy.preset}
    widest = SearchSpace(
        num_layers=layers,
        num_prompts=1,
        early=preset["early"] if args.early is None else args.early,
        late=preset["late"] if args.late is None else args.late,
        depth=1,
        pool=None if args.pool is None else frozenset(parse_layers(args.pool)),
        budget=Budget(args.budget, args.prompt_budget),
    )
    depth = min(preset["depth"], len(widest.candidates)) if args.depth is None else args.depth
    return replace(widest, depth=depth)


def _tasks(args: argparse.Namespace, adapter: SpeculativeLM) -> list[TaskRequests]:
    if not split_names(args.tasks):
        raise ValueError("--tasks is missing: name tasks, for example specbench_translation")
    if args.limit is not None and args.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {args.limit}")
    names = split_names(args.tasks)
    tasks = load_tasks(names, args.limit, {"split": "calibration"}, args.include_path)
    require_calibration(tasks)
    for task in tasks:
        if any(options.temperature > 0 for options in task.options(adapter.arguments)):
            raise ValueError(f"{task.name} is sampled; a search compares greedy answers")
    return tasks


def _keys(tasks: Sequence[TaskRequests], by: str) -> list[str]:
    """The name of each task's set in the map. Raises ValueError for one name for two tasks.

    `by` form names the sets of completion prompts by their tasks, so that they stand beside those
    of the chat form in one map.
    """
    keys = [
        task.name if by == "task" or (by == "form" and _is_completion(task)) else _domain_name(task)
        for task in tasks
    ]
    for key, count in Counter(keys).items():
        if count > 1:
            same = [task.name for task, one in zip(tasks, keys, strict=True) if one == key]
            raise ValueError(
                f"{' and '.join(same)} are of one domain, {key}; take one of them, or store a set "
                f"a task with --by task, or few-shot forms beside chat forms with --by form"
            )
    return keys


def _is_completion(task: TaskRequests) -> bool:
    return bool(task.requests[0].doc.get("prompt_style") == "completion")


def _domain_name(task: TaskRequests) -> str:
    """As the adapters find it: the row's own domain, else the one that the task's name tells."""
    doc = task.requests[0].doc
    return str(doc.get("domain") or domain_of(task.name) or task.name)


def _domain(
    key: str,
    task: TaskRequests,
    space: SearchSpace,
    how: tuple[Strategy, Mapping[str, Any], Rules],
    ledgers: Path,
    mark: Fingerprint,
) -> DomainPlan:
    space = replace(space, num_prompts=len(task.requests))
    planned = _first_step(*how, space)
    path = ledgers / f"{task.name}.jsonl"
    return DomainPlan(key, task, space, planned, path, mark)


def _first_step(
    strategy: Strategy, options: Mapping[str, Any], rules: Rules, space: SearchSpace
) -> int | None:
    """Take a strategy to its first question: how many sets it plans; ValueError if it refuses."""
    planned: list[int | None] = [None]

    def progress(now: Progress) -> None:
        planned.append(now.planned)

    def executor(jobs: Sequence[Job]) -> Iterable[Evaluation]:
        raise _WouldMeasureError

    with suppress(_WouldMeasureError):
        run_search(strategy, space, rules, executor, options=options, progress=progress)
    return planned[-1]
