"""`tss-bench bench heads`: what the dense target accepts of EAGLE heads, on the same answers.

Greedy answers do not depend on the head, so each task is answered once, plainly and side by side,
and every head is run along the answers. Counts are those of `native_eagle`; nothing is timed.

May import: tabulate, tqdm, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from model_adapters.answering import Job
from model_adapters.arguments import split_arguments
from model_adapters.base import SpeculativeLM
from tss_bench.batched_answers import rows_at_once
from tss_bench.bench import DOMAIN_TASKS, machine
from tss_bench.bench_report import figure_text
from tss_bench.decoding.drafters.base import Prompt
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.eagle_rows import HeadPrompt
from tss_bench.decoding.lockstep import (
    Request,
    capacity_for,
    decode_together,
    read_prompt,
)
from tss_bench.decoding.replay import Recorder, Trajectory, replay_eagle
from tss_bench.harness import TaskRequests, load_adapters, load_tasks, prepare_adapters, split_names
from tss_bench.scoring.pooled import Pair, ratio, request_pairs
from tss_bench.scoring.statistics import mean_ratio_interval, ratio_interval
from tss_bench.types import GenerationStats, SkipSet

PACKAGED = "packaged"
DEPTHS = 5
"""Depths whose acceptance is told."""

_ADAPTER = "native_eagle"

Stats = Mapping[str, Mapping[str, Sequence[GenerationStats]]]
"""By head and task: the counts of each row."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench bench heads`."""
    parser.epilog = "The first head is what the others are held against, row by row."
    parser.add_argument(
        "--heads",
        default=PACKAGED,
        help=f"comma-separated folders, hub ids or {PACKAGED} (default: {PACKAGED})",
    )
    parser.add_argument("--tasks", default=",".join(DOMAIN_TASKS), help="comma-separated tasks")
    parser.add_argument("--split", default="test", help="test (default), calibration or all")
    parser.add_argument("--limit", type=int, default=64, help="rows a task (default 64)")
    parser.add_argument(
        "--model_args", default="", help="other arguments of native_eagle, as in lm_eval"
    )


def run(args: argparse.Namespace) -> None:
    """Answer, replay, print. Raises ValueError for bad input before anything is answered."""
    if args.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {args.limit}")
    adapters = _prepare(split_names(args.heads), split_arguments(args.model_args))
    first = next(iter(adapters.values()))
    tasks = load_tasks(split_names(args.tasks), args.limit, {"split": args.split})
    _require_strict_greedy(tasks, first)
    load_adapters(adapters)
    _require_single_turns(tasks, first)
    _require_heads_alike(adapters)
    stats: dict[str, dict[str, list[GenerationStats]]] = {name: {} for name in adapters}
    cut = 0
    with tqdm(total=len(tasks) * (1 + len(adapters)), desc="heads") as bar:
        for task in tasks:
            bar.set_postfix_str(f"{task.label}, answers")
            jobs = first.jobs(task.requests)
            cut += sum(first.turn(job, [])[1] for job in jobs)
            known = _answer(first, jobs)
            bar.update()
            for name, adapter in adapters.items():
                bar.set_postfix_str(f"{task.label}, {name}")
                stats[name][task.label] = _replayed(adapter, known)
                bar.update()
    results = report(stats)
    place = machine({_ADAPTER: first}).splitlines()[0]
    print(f"{place}; at most {args.limit} rows a task, split {args.split}\n\n{table(results)}")
    if cut:
        print(f"\n{cut} prompts did not fit the context: their end was kept")
    print(json.dumps({"bench": "heads", "machine": place, "limit": args.limit,
                      "split": args.split, "model_args": args.model_args, "prompts_cut": cut,
                      "heads": {name: one.drafter_record() for name, one in adapters.items()},
                      "results": results}))  # fmt: skip


def report(stats: Stats) -> dict[str, dict[str, Any]]:
    """By head: accept length by task and their mean, 95 % intervals, what the mean gains over the
    first head on the same rows (relative), and the acceptance by depth over all rows."""
    first = next(iter(stats))
    base = [_pairs(rows) for rows in stats[first].values()]
    found: dict[str, dict[str, Any]] = {}
    for name, tasks in stats.items():
        pairs = {task: _pairs(rows) for task, rows in tasks.items()}
        groups = list(pairs.values())
        found[name] = {
            "tasks": {
                task: {"accept_len": ratio(group), "interval": ratio_interval(group)}
                for task, group in pairs.items()
            },
            "mean": {
                "accept_len": _mean(ratio(group) for group in groups),
                "interval": mean_ratio_interval(groups),
            },
            "against_first": None if name == first else _gain(groups, base),
            "acceptance_by_depth": acceptance_by_depth(
                [one for rows in tasks.values() for one in rows]
            ),
        }
    return found


def _gain(
    groups: Sequence[Sequence[Pair]], base: Sequence[Sequence[Pair]]
) -> dict[str, Any] | None:
    """Mean over tasks of accept length by that of `base`, less one; None where a task has none."""
    lengths = [(ratio(own), ratio(theirs)) for own, theirs in zip(groups, base, strict=True)]
    mean = _mean(own / theirs if own and theirs else None for own, theirs in lengths)
    if mean is None:
        return None
    interval = mean_ratio_interval(groups, base)
    return {"value": mean - 1, "interval": interval and tuple(end - 1 for end in interval)}


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean, None where a value is missing."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return sum(known) / len(known) if len(known) == len(listed) else None


def acceptance_by_depth(
    stats: Sequence[GenerationStats], depths: int = DEPTHS
) -> list[float | None]:
    """Share of the steps accepted down to depth d - 1 that are so to depth d = 1, 2, …; None where
    no step got there. A step that the answer's end cut inside its drafts is not asked deeper."""
    steps = [step for one in stats for step in _drafts_kept(one)]
    shares: list[float | None] = []
    for depth in range(1, depths + 1):
        kept = sum(count >= depth for count, _ in steps)
        cut = sum(count == depth - 1 for count, ended in steps if ended)
        asked = sum(count >= depth - 1 for count, _ in steps) - cut
        shares.append(kept / asked if asked else None)
    return shares


def _drafts_kept(stats: GenerationStats) -> Iterator[tuple[int, bool]]:
    """Of each step: accepted drafts, and whether the answer ended inside them, with no bonus."""
    *whole, last = stats.accept_lengths or (0,)
    yield from ((length - 1, False) for length in whole)
    if stats.accept_lengths:
        kept = stats.accepted - sum(length - 1 for length in whole)
        yield kept, kept == last


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The report as a markdown table: a row a head."""
    labels = next(iter(results.values()))["tasks"]
    headers = ["head", *(label.removeprefix("specbench_") for label in labels)]
    headers += ["mean", "against the first", "accepted at depth 1, 2, …"]
    rows = []
    for name, found in results.items():
        against = found["against_first"]
        depths = [f"{share:.2f}" for share in found["acceptance_by_depth"] if share is not None]
        rows.append(
            [
                name,
                *(figure_text(c["accept_len"], c["interval"]) for c in found["tasks"].values()),
                figure_text(found["mean"]["accept_len"], found["mean"]["interval"]),
                percent_text(against["value"], against["interval"]) if against else "",
                " ".join(depths),
            ]
        )
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def percent_text(value: float, interval: tuple[float, float] | None) -> str:
    """`+3.1 % [+1.9, +4.2]`."""
    spread = f" [{100 * interval[0]:+.1f}, {100 * interval[1]:+.1f}]" if interval else ""
    return f"{100 * value:+.1f} %{spread}"


def _prepare(heads: Sequence[str], given: Mapping[str, Any]) -> dict[str, SpeculativeLM]:
    """A checked adapter for each head. Raises ValueError for no head and for one named twice."""
    if not heads:
        raise ValueError(f"--heads names no head; name folders, hub ids or {PACKAGED}")
    if "draft" in given:
        raise ValueError("--model_args draft=… names one head; name heads with --heads")
    if twice := [head for head in heads if heads.count(head) > 1]:
        raise ValueError(f"--heads names {twice[0]} twice; name each head once")
    return {
        head: prepare_adapters(
            [_ADAPTER], {**given, **({} if head == PACKAGED else {"draft": head})}
        )[_ADAPTER]
        for head in heads
    }


def _require_strict_greedy(tasks: Sequence[TaskRequests], adapter: SpeculativeLM) -> None:
    if adapter.arguments.protocol != "strict":
        raise ValueError("bench heads counts under protocol strict")
    for task in tasks:
        if any(options.temperature > 0 for options in task.options(adapter.arguments)):
            raise ValueError(f"{task.name} is sampled; bench heads runs heads along greedy answers")


def _require_single_turns(tasks: Sequence[TaskRequests], adapter: SpeculativeLM) -> None:
    for task in tasks:
        if any(len(job.request.turns) > 1 for job in adapter.jobs(task.requests)):
            raise ValueError(
                f"{task.name} has requests of several turns; bench heads answers a single one"
            )


def _require_heads_alike(adapters: Mapping[str, SpeculativeLM]) -> None:
    """Raises ValueError for a head that cannot be run along answers beside the others."""
    layers = {_eagle(name, adapter).feature_layers for name, adapter in adapters.items()}
    if len(layers) > 1:
        raise ValueError(
            f"the heads read features of different layers ({sorted(layers)}); compare heads of one "
            f"kind at a time"
        )


def _eagle(name: str, adapter: SpeculativeLM) -> Eagle:
    drafter = adapter.drafter
    if not isinstance(drafter, Eagle) or not isinstance(drafter.tree, DynamicTree):
        raise ValueError(f"{name} drafts with a fixed tree; bench heads takes dynamic ones")
    return drafter


def _answer(adapter: SpeculativeLM, jobs: Sequence[Job]) -> list[tuple[Prompt, Trajectory]]:
    """Plain greedy answers to `jobs`, in order, with what a head gets of their prompts.

    The target's keys of a prompt are let go when its answer ends.
    """
    target, dense = adapter.target, SkipSet.dense(adapter.target.num_layers)
    layers = adapter.drafter.feature_layers
    waiting = iter(enumerate(jobs))

    def take() -> Request | None:
        place, job = next(waiting, (None, None))
        if job is None:
            return None
        prompt = read_prompt(target, adapter.prompt_ids(job), dense, layers)
        return Request(prompt, dense, Recorder(layers), adapter.decoding_options(job), place)

    capacity = max(
        capacity_for(adapter.decoding_options(job), 1, adapter.max_length) for job in jobs
    )
    rows = min(len(jobs), rows_at_once(target, 1, capacity))
    ended = decode_together(target, take, adapter.tokenizer, rows=rows, capacity=capacity)
    found = {
        request.tag: (request.prompt.for_drafter(target), Trajectory.of(request, answer))
        for request, answer in ended
    }
    return [found[place] for place in range(len(jobs))]


def _replayed(
    adapter: SpeculativeLM, known: Sequence[tuple[Prompt, Trajectory]]
) -> list[GenerationStats]:
    """What the adapter's head gets accepted on known answers, in their order."""
    drafter = _eagle(adapter.name, adapter)
    prompts = [prompt for prompt, _ in known]
    heads = [HeadPrompt.read(drafter.fork(), prompt) for prompt in prompts]
    paths = [path for _, path in known]
    ended = replay_eagle(drafter, paths, heads, adapter.target, adapter.tokenizer)
    stats = {place: answer.stats(len(prompts[place].ids)) for place, answer in ended}
    return [stats[place] for place in range(len(known))]


def _pairs(rows: Sequence[GenerationStats]) -> list[Pair]:
    return [request_pairs([one])["accept_len"] for one in rows]
