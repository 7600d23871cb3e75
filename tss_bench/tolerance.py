"""`tss-bench bench skips`: what skipping layers costs a target in metric and accept length.

Every configuration (target, skip set, drafter) answers the same rows, greedily, many side by side;
a kill loses the answers in the making. One target is in memory at a time. The last line printed
is JSON.

May import: tqdm, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tss_bench import __version__
from tss_bench.answer_records import AnswerRecords, answer_record, digest
from tss_bench.batched_answers import answers_of
from tss_bench.bench import DOMAIN_TASKS
from tss_bench.domains import SkipController
from tss_bench.harness import TaskRequests, load_adapters, load_tasks, split_names
from tss_bench.skip_plots import draw
from tss_bench.tolerance_plan import DRAFTERS, Adapters, Side, prepare, require_greedy
from tss_bench.tolerance_report import TOLERANCE, ablation_panels, compare, figures, table
from tss_bench.types import SCOPES, SkipSet


@dataclass(frozen=True)
class Work:
    """What one drafter has not answered yet of a task: skip sets, and digests of its rows.

    `requests` are those of the rows, by digest.
    """

    task: TaskRequests
    drafter: str
    requests: Mapping[str, Any]
    missing: Sequence[tuple[SkipSet, str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench bench skips`."""
    parser.epilog = (
        "Answers are kept in OUT and never computed twice, so they may come from several runs: "
        "this command gives no throughput. For speed use `tss-bench bench domains`."
    )
    add_targets(parser)
    parser.add_argument(
        "--sets", default="", help="3+10,3+10+13+25 or singles (each layer); dense is always run"
    )
    parser.add_argument(
        "--sets-on-reference", action="store_true", help="run the sets on the reference, too"
    )
    parser.add_argument("--tasks", default=",".join(DOMAIN_TASKS), help="comma-separated tasks")
    parser.add_argument("--split", default="test", help="test (default), calibration or all")
    parser.add_argument("--limit", type=int, default=64, help="rows a task (default 64)")
    parser.add_argument(
        "--drafters",
        default="ar,token_recycling",
        help=f"comma-separated: {', '.join(DRAFTERS)} (default ar,token_recycling)",
    )
    parser.add_argument("--draft", help="EAGLE head of the target (default: the packaged one)")
    parser.add_argument("--reference-draft", help="EAGLE head of the reference")
    parser.add_argument(
        "--scope", default="verify", choices=SCOPES, help="verify (default): prefill is dense"
    )
    parser.add_argument("--model_args", default="", help="other arguments, as in lm_eval")
    parser.add_argument("--out", type=Path, required=True, help="directory of the answers")
    parser.add_argument(
        "--plot",
        type=Path,
        help="draw the ablation by layer to this .png or .svg; needs singles, also run on the "
        "reference then",
    )


def add_targets(parser: argparse.ArgumentParser, *, reference_required: bool = False) -> None:
    """The arguments that name the target and what it is held against."""
    parser.add_argument("--pretrained", required=True, help="the target: name, hub id, directory")
    parser.add_argument(
        "--reference",
        required=reference_required,
        help="a target with the same tokenizer, such as the untouched model",
    )


def run(args: argparse.Namespace) -> None:
    """Answer what is not answered yet, then print figures, differences and verdicts.

    Raises ValueError for bad input before any weight is loaded.
    """
    sides, adapters = prepare(args)
    tasks = load_tasks(split_names(args.tasks), args.limit, {"split": args.split})
    require_greedy(tasks, adapters)
    with AnswerRecords(args.out) as records:
        _answer(sides, adapters, tasks, records)
        rows = [row for task in tasks for row in _task_rows(sides, task, records)]
    setting = _setting(args, sides, tasks)
    shared = {key: setting[key] for key in ("split", "scope", "protocol")}
    rows = [{**row, **shared, "data": setting["tasks"][row["task"]]["data"]} for row in rows]
    print(_headline(sides, setting))
    print(table(rows))
    if args.plot is not None:
        draw(ablation_panels(rows), 2, args.plot)
    print(json.dumps({"bench": "skips", **setting, "results": rows}))


def _answer(
    sides: Sequence[Side],
    adapters: dict[str, Adapters],
    tasks: Sequence[TaskRequests],
    records: AnswerRecords,
) -> None:
    """Complete the records, one target after the other."""
    left = {
        (digest(side.settings[work.drafter, skip]), work.task.name, row)
        for side in sides
        for work in _work(side, tasks, records)
        for skip, row in work.missing
    }
    with tqdm(total=len(left), desc="answers", unit="answer", disable=not left) as bar:
        for side in sides:
            _answer_side(side, adapters.pop(side.role), tasks, records, bar)
            gc.collect()


def _answer_side(
    side: Side,
    adapters: Adapters,
    tasks: Sequence[TaskRequests],
    records: AnswerRecords,
    bar: tqdm[Any],
) -> None:
    work = list(_work(side, tasks, records))
    if not work:
        return
    load_adapters(adapters)
    for item in work:
        bar.set_postfix_str(f"{side.info.id} {item.drafter} {item.task.name}")
        adapter = adapters[item.drafter]
        dense = SkipSet.dense(side.info.num_layers)
        adapter.controller = SkipController.fixed(dense, "--sets")
        jobs = adapter.jobs(list(item.requests.values()))
        adapter.begin_run(jobs)
        places = {row: place for place, row in enumerate(item.requests)}
        asked = [(places[row], skip) for skip, row in item.missing]
        for place, answer in answers_of(adapter, jobs, "--sets")(asked):
            skip, row = item.missing[place]
            metrics = item.task.task.process_results(item.requests[row].doc, [answer])
            record = answer_record(answer, metrics)
            records.add(side.settings[item.drafter, skip], item.task.name, row, record)
            bar.update()
        adapter.end_run()


def _work(side: Side, tasks: Sequence[TaskRequests], records: AnswerRecords) -> Iterator[Work]:
    """What `side` still has to answer."""
    for task in tasks:
        requests = dict(zip(_rows(task), task.requests, strict=True))
        for drafter in dict.fromkeys(drafter for drafter, _ in side.settings):
            missing = [
                (skip, row)
                for skip in side.sets
                for row in requests
                if records.find(digest(side.settings[drafter, skip]), task.name, row) is None
            ]
            if missing:
                yield Work(task, drafter, requests, missing)


def _rows(task: TaskRequests) -> list[str]:
    """A digest of each row: its prompt, limits, references and the version of its scoring."""
    version = str(task.task.VERSION)
    return [digest([version, request.args, request.doc]) for request in task.requests]


def _task_rows(
    sides: Sequence[Side], task: TaskRequests, records: AnswerRecords
) -> Iterator[dict[str, Any]]:
    """One result row a configuration, drafter by drafter, the dense one of a target first."""
    rows = _rows(task)

    def answers(side: Side, drafter: str, skip: SkipSet) -> list[dict[str, Any]]:
        key = digest(side.settings[drafter, skip])
        found = [records.find(key, task.name, row) for row in rows]
        return [record for record in found if record is not None]

    for drafter in dict.fromkeys(drafter for drafter, _ in sides[0].settings):
        dense = {side.role: answers(side, drafter, side.sets[0]) for side in sides}
        for side in sides:
            for skip in side.sets:
                given = answers(side, drafter, skip)
                against = {"own": compare(dense[side.role], given)} if skip else {}
                if side.role == "target" and "reference" in dense:
                    against["reference"] = compare(dense["reference"], given)
                yield {
                    "task": task.label,
                    "role": side.role,
                    "target": side.info.id,
                    "skip": list(skip),
                    "sparsity": skip.sparsity,
                    "drafter": drafter,
                    **figures(given),
                    "against": against,
                }


def _setting(
    args: argparse.Namespace, sides: Sequence[Side], tasks: Sequence[TaskRequests]
) -> dict[str, Any]:
    first = next(iter(sides[-1].settings.values()))
    return {
        "version": __version__,
        "targets": {s.role: {"id": s.info.id, "revision": s.info.revision} for s in sides},
        "split": args.split,
        "scope": args.scope,
        **{key: first[key] for key in ("protocol", "dtype", "device")},
        "limit": args.limit,
        "model_args": args.model_args,
        "tolerance": TOLERANCE,
        "tasks": {task.label: _source(task) for task in tasks},
    }


def _source(task: TaskRequests) -> dict[str, Any]:
    """Where the rows of a task are from, as the task tells; foreign tasks do not."""
    source = (task.task.config.metadata or {}).get("data", {})
    return {"task": task.name, "data": source.get("kind", "foreign"), "source": source}


def _headline(sides: Sequence[Side], setting: Mapping[str, Any]) -> str:
    names = ", ".join(f"{side.role} {side.info.id} {side.info.revision[:12]}" for side in sides)
    return (
        f"tss_bench {__version__}: {names}; {setting['dtype']} on {setting['device']}; "
        f"a set holds where metric and accept_len keep {1 - TOLERANCE:.0%} of the dense values"
    )
