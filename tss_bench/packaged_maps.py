"""`tss-bench domains make`: all packaged domain maps of a target, in one command.

One search a drafter and strategy, over a fixed table of tasks: chat forms under their domains,
few-shot forms under their task names. The strategies of a drafter share the ledgers, so that no
skip set is decoded twice and a killed run goes on where it was. A map comes into `--out` only when
it is whole.

May import: model_adapters, tabulate, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tabulate import tabulate

from model_adapters.arguments import share_out, split_arguments
from model_adapters.base import SpeculativeLM
from tss_bench import search_command
from tss_bench.domains import DOMAINS, DomainConfig, DomainMap
from tss_bench.harness import prepare_adapters, split_names
from tss_bench.machine import processor
from tss_bench.search import Ledger
from tss_bench.search.ledger import LedgerError
from tss_bench.search_plan import SearchPlan, check_map, prepare
from tss_bench.training.records import command_line, source_state
from tss_bench.types import SkipSet
from tss_bench.weights import DEFAULT_MODEL
from tss_bench.weights.loading import resolve_device

TASKS = (
    "specbench_summarization",
    "specbench_rag",
    "specbench_math_reasoning",
    "tss_mmlu",
    "specbench_translation",
    "specbench_qa",
    "tss_nq_open",
    "specbench_translation_fewshot",
    "specbench_qa_fewshot",
    "tss_nq_open_fewshot",
    "tss_mmlu_fewshot",
)
"""The tasks of a packaged map, in the order they are searched. mt_bench has no metric to keep."""

ADAPTERS = ("tss_eagle", "tss_token_recycling")
DEFAULT_STRATEGY = "tss_beam"
"""Whose map a target takes by itself; those of the others are chosen by name."""

STRATEGIES: Mapping[str, tuple[str, ...]] = {
    DEFAULT_STRATEGY: (),
    "tss_bfs": ("--depth", "2"),
}
"""The strategies and their settings; any other strategy runs with its own."""

SOURCE = "tss-bench domains make, on calibration rows"
_NOT_OF_THE_OUTCOME = frozenset({"out", "work", "dry_run"})


@dataclass(frozen=True)
class MapPlan:
    """One map to make: the checked search behind it, its arguments, and the map's own place."""

    search: SearchPlan
    words: argparse.Namespace
    out: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench domains make`."""
    parser.epilog = (
        "Start the same command again after a kill: nothing is measured twice. "
        f"OUT/NAME.json is the map of {DEFAULT_STRATEGY}, OUT/STRATEGY/NAME.json that of another."
    )
    parser.add_argument(
        "--pretrained",
        default=DEFAULT_MODEL,
        help=f"the target: name, hub id, directory (default {DEFAULT_MODEL})",
    )
    parser.add_argument("--model_args", default="", help="other arguments, as in lm_eval")
    for flag, values in (("adapters", ADAPTERS), ("strategies", STRATEGIES), ("tasks", TASKS)):
        default = ",".join(values)
        parser.add_argument(f"--{flag}", default=default, help=f"default {default}")
    parser.add_argument("--limit", type=int, help="calibration rows a task (default all)")
    parser.add_argument(
        "--out", type=Path, default=Path("maps"), help="folder of the maps (default maps)"
    )
    parser.add_argument(
        "--work", type=Path, help="folder of the ledgers (default: OUT's name + .work, here)"
    )
    parser.add_argument(
        "--mini", action="store_true", help="for a trial: take the packaged mini set, too"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="only show what would run, and how many skip sets"
    )


def run(args: argparse.Namespace) -> None:
    """Make the maps. Raises ValueError for bad input before any weight is loaded."""
    plans = plan_maps(args)
    print(plan_table(plans, args.out))
    if args.dry_run:
        return
    _require_folder("--out", args.out)
    _require_ledgers(plans)
    for plan in plans:
        # All maps before any search: what this run decodes for one, the ledger gives to the others.
        _begun(plan, _stamp(args, plan.search.adapter)).save(plan.words.out)
    for plan in plans:
        search_command.run(plan.words)
        before = DomainMap.load(plan.out.absolute()) if plan.out.exists() else None
        _completed(DomainMap.load(plan.words.out.absolute()), before).save(plan.out)
        print(f"made: {plan.out}", flush=True)


def plan_maps(args: argparse.Namespace) -> list[MapPlan]:
    """Every map with its checked search, by adapter, then strategy; nothing is written."""
    adapters = list(dict.fromkeys(split_names(args.adapters)))
    strategies = list(dict.fromkeys(split_names(args.strategies)))
    if not strategies:
        raise ValueError(f"--strategies names none; the default is {','.join(STRATEGIES)}")
    shared = [f"--tasks={','.join(_tasks(args.tasks))}", "--by=form"]
    shared += [] if args.limit is None else [f"--limit={args.limit}"]
    given = split_arguments(args.model_args)
    if "pretrained" in given:
        raise ValueError("--model_args may not hold pretrained; use --pretrained")
    for name in ("scope", "protocol"):
        if name in given:
            raise ValueError(
                f"--model_args may not hold {name}: packaged maps are for scope verify and "
                f"protocol strict; tss-bench search makes others"
            )
    given = {"pretrained": args.pretrained, **given}
    prepared = prepare_adapters(adapters, {**given, "skip_layers": "dense"})
    shares = share_out(
        given, {name: adapter.allowed_arguments() for name, adapter in prepared.items()}
    )
    plans = []
    for name, adapter in prepared.items():
        share = ",".join(f"{key}={value}" for key, value in shares[name].items())
        for strategy in strategies:
            words = [f"--model={name}", f"--model_args={share}", *shared]
            plans.append(_plan(words, map_name(adapter), strategy, args))
    return plans


def map_name(adapter: SpeculativeLM) -> str:
    """Model and drafter, as the packaged maps are called: `smollm2-135m-instruct-eagle`."""
    drafter = adapter.name.removeprefix("tss_").replace("_", "-")
    return f"{adapter.info.id.replace('/', '__')}-{drafter}"


def plan_table(plans: Sequence[MapPlan], out: Path) -> str:
    """One row a map and task: what is searched, and how many skip sets it takes at most."""
    headers = ["map", "strategy", "task", "set stored as", "rows", "skip sets at most"]
    body = [
        [
            plan.out.relative_to(out).with_suffix("").as_posix(),
            plan.search.strategy.name,
            domain.task.label,
            domain.key,
            domain.space.num_prompts,
            "unknown" if domain.planned is None else domain.planned,
        ]
        for plan in plans
        for domain in plan.search.domains
    ]
    total = sum(domain.planned or 0 for plan in plans for domain in plan.search.domains)
    table = tabulate(body, headers, tablefmt="github", disable_numparse=True)
    return (
        f"{table}\n{len(plans)} maps, at most {total} skip sets where that is known; one that two "
        f"strategies of a drafter ask for is decoded once"
    )


def _tasks(text: str) -> list[str]:
    """The chosen tasks in the order of TASKS."""
    chosen = split_names(text)
    unknown = [name for name in chosen if name not in TASKS]
    if unknown or not chosen:
        raise ValueError(
            f"--tasks must name tasks of {', '.join(TASKS)}, got {', '.join(unknown) or 'none'}; "
            f"tss-bench search adds any other task to a map"
        )
    return [name for name in TASKS if name in chosen]


def _plan(words: Sequence[str], stem: str, strategy: str, args: argparse.Namespace) -> MapPlan:
    work = args.work or Path(f"{args.out.absolute().name}.work")
    parser = argparse.ArgumentParser()
    search_command.add_arguments(parser)
    places = [f"--out={work / strategy / stem}.json", f"--ledger={work / stem}"]
    settings = [f"--strategy={strategy}", *STRATEGIES.get(strategy, ())]
    parsed = parser.parse_args([*words, *settings, *places])
    search = prepare(parsed)
    _require_rows(search, {"official", "mini"} if args.mini else {"official"})
    folder = args.out if strategy == DEFAULT_STRATEGY else args.out / strategy
    out = folder / f"{stem}.json"
    if out.exists():
        check_map(DomainMap.load(out.absolute()), search.adapter, out)
    return MapPlan(search, parsed, out)


def _require_rows(search: SearchPlan, kinds: Iterable[str]) -> None:
    """Raises ValueError where a task's rows are of another kind, see `data.resolve`."""
    others = [
        domain.task.label
        for domain in search.domains
        if domain.task.task.config.metadata["data"]["kind"] not in kinds
    ]
    if others:
        raise ValueError(
            f"packaged maps are made from official calibration rows, not from those of "
            f"{', '.join(others)}; set TSS_BENCH_DATA to the official files (tss-bench data show "
            f"tells what is there), or give --mini to try the packaged mini set"
        )


def _require_folder(flag: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{flag} {folder}: the folder cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f"{flag} {folder} cannot be written to; give another folder")


def _require_ledgers(plans: Sequence[MapPlan]) -> None:
    """Open every ledger once: hours later is too late to find that one is of another model."""
    for plan in plans:
        _require_folder("--work", plan.words.ledger)
        for domain in plan.search.domains:
            layers = plan.search.adapter.info.num_layers
            try:
                Ledger(domain.ledger, domain.fingerprint, layers).close()
            except LedgerError as error:
                raise ValueError(f"{error} (--work names another folder)") from None


def _begun(plan: MapPlan, stamp: Mapping[str, Any]) -> DomainMap:
    """A map without domains, which remembers the runs that its ledgers come from."""
    adapter, unfinished = plan.search.adapter, plan.words.out
    runs: list[Any] = []
    if unfinished.exists():
        runs += DomainMap.load(unfinished.absolute()).provenance.get("runs", [])
    if stamp not in runs:
        runs.append(dict(stamp))
    return DomainMap(
        model=adapter.info.id,
        drafter=adapter.drafter_id,
        num_layers=adapter.info.num_layers,
        scope=adapter.scope,
        protocol=adapter.arguments.protocol,
        provenance={"source": SOURCE, "runs": runs},
    )


def _completed(made: DomainMap, before: DomainMap | None) -> DomainMap:
    """The map with the domains that this run did not search.

    What an earlier run found of them stays; of the others the map says that they are dense.
    """
    if before is not None:
        made = _with_earlier(made, before)
    dense = DomainConfig(SkipSet.dense(made.num_layers))
    rest = {name: dense for name in DOMAINS if name not in made.domains}
    return replace(made, domains={**made.domains, **rest})


def _with_earlier(made: DomainMap, before: DomainMap) -> DomainMap:
    records = before.provenance.get("search", {})
    kept = [name for name in records if name in before.domains and name not in made.domains]
    if not kept:
        return made
    told = made.provenance
    runs = [*before.provenance.get("runs", []), *told.get("runs", [])]
    return replace(
        made,
        domains={**made.domains, **{name: before.domains[name] for name in kept}},
        pareto={**made.pareto, **{n: before.pareto[n] for n in kept if n in before.pareto}},
        provenance={
            **told,
            "runs": [run for place, run in enumerate(runs) if run not in runs[:place]],
            "search": {**told.get("search", {}), **{name: records[name] for name in kept}},
        },
    )


def _stamp(args: argparse.Namespace, adapter: SpeculativeLM) -> dict[str, Any]:
    """Who made a map: plain JSON without the places of this machine."""
    told = argparse.Namespace(**{**vars(args), "pretrained": adapter.info.id})
    return {
        "command": command_line("domains make", add_arguments, told, _NOT_OF_THE_OUTCOME),
        "commit": source_state(),
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "processor": processor(),
            "cpus": os.cpu_count(),
            "device": resolve_device(adapter.arguments.device),
        },
    }
