"""`tss-bench run`: native and sparse adapters side by side on the test rows, into result files.

Every request is answered by all adapters in turn, and the round is kept at once; at the end the
files are written from what was kept.

May import: torch, tqdm, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from model_adapters.answering import Job
from model_adapters.base import SpeculativeLM
from tss_bench.answer_records import digest
from tss_bench.data.resolve import mt_bench_categories
from tss_bench.harness import TaskRequests, answer_rounds, load_adapters
from tss_bench.quotes import without_quotes
from tss_bench.report.spec_bench import Answer, Choice, write_answers
from tss_bench.run_files import Answered, time_stamp, write_results
from tss_bench.run_plan import RunPlan, add_arguments, make_plan, row_digests
from tss_bench.run_records import Record, Round, RunError, RunRecords, one_line, texts_in

__all__ = ["add_arguments", "run"]

_MT_BENCH = "specbench_mt_bench"
_KIBIBYTE = 1024


def run(args: argparse.Namespace) -> None:
    """Answer what is not answered yet, write the files, print lm-eval's tables.

    Raises ValueError for bad input before any weight is loaded, and RunError at the end where a
    request failed.
    """
    plan = make_plan(args)
    categories = _categories(plan) if plan.format != "lm-eval" else {}
    with RunRecords(plan.out, plan.settings) as records:
        load_adapters(plan.adapters)
        _say_what_runs(plan)
        _answer(plan, records)
        answered = [_answered(plan, records, repeat) for repeat in range(plan.repeats)]
        written = {
            path
            for each in answered
            for name in plan.adapters
            for path in _write(plan, name, each, records, categories)
        }
    if plan.no_docs:
        _say_what_may_hold_texts(plan.out, written)
    _finish(plan, answered)


def _say_what_runs(plan: RunPlan) -> None:
    print(f"{plan.settings['machine']}; commit {plan.settings['commit']}; split {plan.split}")
    for adapter in plan.adapters.values():
        arguments = adapter.arguments
        print(f"{adapter.label}: {adapter.info.id} in {adapter.dtype}, "
              f"protocol {arguments.protocol}, scope {adapter.scope}", flush=True)  # fmt: skip
    for name, reason in plan.left_out.items():
        print(f"{name} is left out: {reason}", flush=True)


def _answer(plan: RunPlan, records: RunRecords) -> None:
    """Complete the records; all requests are checked before the first one is answered."""
    jobs = {
        task.name: {name: adapter.jobs(task.requests) for name, adapter in plan.adapters.items()}
        for task in plan.tasks
    }
    for repeat in range(plan.repeats):
        for task in plan.tasks:
            places = _left(plan, task, records, repeat)
            if not places:
                continue
            label = task.label if plan.repeats == 1 else f"{task.label}, repeat {repeat + 1}"
            rows, own = row_digests(task), jobs[task.name]
            chosen = {name: [of[place] for place in places] for name, of in own.items()}
            beside = {
                name: _recorder(adapter, task, own[name]) for name, adapter in plan.adapters.items()
            }
            turns = [place + repeat for place in places]
            made = answer_rounds(plan.adapters, chosen, label, beside, turns)
            for place, answers in zip(places, made, strict=True):
                records.add(task.name, rows[place], repeat, answers)


def _left(plan: RunPlan, task: TaskRequests, records: RunRecords, repeat: int) -> list[int]:
    """Places of the requests to answer: without a round, or with one in which an adapter failed.

    Where answers depend on the requests before them it is all or none.
    """
    found = [records.find(task.name, row, repeat) for row in row_digests(task)]
    left = [place for place, each in enumerate(found) if each is None or each.failed]
    return list(range(len(found))) if left and plan.keeps_state else left


def _recorder(
    adapter: SpeculativeLM, task: TaskRequests, jobs: Sequence[Job]
) -> Callable[[Job], Record]:
    """Answers one of a task's `jobs`; an error becomes the record of a failed request."""
    docs = {id(job): request.doc for job, request in zip(jobs, task.requests, strict=True)}

    def answer(job: Job) -> Record:
        on_gpu = adapter.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(adapter.device)
        try:
            given, failed = adapter.answer(job), None
        except Exception as error:
            given, failed = None, one_line(error, docs[id(job)])
            where = f"{adapter.name}: {job.request.where} failed"
            tqdm.write(f"{where}: {type(error).__name__}: {error}", file=sys.stderr)
        return Record(given, failed, peak_memory(adapter.device))

    return answer


def peak_memory(device: torch.device) -> int:
    """Bytes: on a GPU the most that was allocated since the last reset, else of the process.

    Either holds all adapters of the run, not one alone. 0 on Windows, which does not tell.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * _KIBIBYTE


def _answered(plan: RunPlan, records: RunRecords, repeat: int) -> Answered:
    return Answered(
        repeat, {task.name: list(_rounds(task, records, repeat)) for task in plan.tasks}
    )


def _rounds(task: TaskRequests, records: RunRecords, repeat: int) -> Iterator[Round]:
    for row in row_digests(task):
        found = records.find(task.name, row, repeat)
        assert found is not None, "every request has been answered"
        yield found


def _write(
    plan: RunPlan,
    name: str,
    answered: Answered,
    records: RunRecords,
    categories: Mapping[str, Mapping[str, str]],
) -> list[Path]:
    """The files of one adapter and repeat; returns those with a line for each request."""
    written: list[Path] = []
    if plan.format != "spec-bench":
        table, written = write_results(plan, name, answered, records.started)
        repeat = f", repeat {answered.repeat + 1} of {plan.repeats}" if plan.repeats > 1 else ""
        told = f"{plan.adapters[name].label} ({dict(plan.given[name])})"
        print(f"{told}, limit: {plan.limit}{repeat}\n{table}")
    if plan.format != "lm-eval":
        stamp = time_stamp(records.started, answered.repeat)
        path = plan.out / name / f"spec_bench_{stamp}.jsonl"
        write_answers(path, list(_spec_bench(plan, name, answered, categories)))
        written.append(path)
    return written


def _say_what_may_hold_texts(out: Path, written: Set[Path]) -> None:
    """Name the files that earlier calls left in the folder: of another format or repeat, say."""
    found = [path for name in ("samples", "spec_bench") for path in out.glob(f"*/{name}_*.jsonl")]
    if left := sorted(str(path) for path in found if path not in written):
        print(f"{len(left)} files from other calls were left as they are and may hold texts of the "
              f"data set: {', '.join(left)}; remove them before you publish {out}")  # fmt: skip


def _categories(plan: RunPlan) -> dict[str, dict[str, str]]:
    """The category of each row by task and id. Raises RunError for a row that stands twice."""
    found: dict[str, dict[str, str]] = {}
    seen: dict[str, str] = {}
    finer = mt_bench_categories() if _MT_BENCH in [task.name for task in plan.tasks] else {}
    for task in plan.tasks:
        found[task.name] = {}
        for request in task.requests:
            row = _row_id(task, request)
            if row in seen:
                raise RunError(
                    f"row {row} is in {seen[row]} and {task.name}, but a Spec-Bench file has one "
                    f"answer a question; run these tasks with an --out of their own"
                )
            seen[row] = task.name
            own = str(request.doc.get("domain", task.name))
            found[task.name][row] = finer.get(row, own) if task.name == _MT_BENCH else own
    return found


def _row_id(task: TaskRequests, request: Any) -> str:
    return str(request.doc.get("id", f"{task.name}-{request.doc_id}"))


def _spec_bench(
    plan: RunPlan,
    name: str,
    answered: Answered,
    categories: Mapping[str, Mapping[str, str]],
) -> Iterator[Answer]:
    """The lines of an answer file; a failed request has none."""
    model = f"{name}-{plan.adapters[name].info.id}"
    for task in plan.tasks:
        for request, each in zip(task.requests, answered.rounds[task.name], strict=True):
            answer = each.records[name].answer
            if answer is None:
                continue
            row = _row_id(task, request)
            stats = answer.stats
            target = task.task.doc_to_target(request.doc)
            given = [request.doc, list(request.args), target] if plan.no_docs else []
            texts = texts_in(given)
            choice = Choice(
                index=0,
                turns=tuple(without_quotes(turn, texts) for turn in answer.turns),
                decoding_steps=tuple(turn.verify_steps for turn in stats),
                new_tokens=tuple(turn.new_tokens for turn in stats),
                wall_time=tuple(turn.wall_s for turn in stats),
                accept_lengths=tuple(n for turn in stats for n in turn.accept_lengths),
            )
            yield Answer(
                question_id=int(row) if row.isdecimal() else row,
                category=categories[task.name][row],
                answer_id=digest([model, row, answered.repeat, answer.ids])[:22],
                model_id=model,
                choices=(choice,),
                tstamp=each.time,
            )


def _finish(plan: RunPlan, answered: Sequence[Answered]) -> None:
    """The last line. Raises RunError with it where a request failed."""
    failures = [
        f"{name}: {task.name} row {_row_id(task, request)}, {record.failed}"
        for each in answered
        for name in plan.adapters
        for task in plan.tasks
        for request, record in zip(task.requests, each.records(task.name, name), strict=True)
        if record.failed is not None
    ]
    requests = sum(len(task.requests) for task in plan.tasks)
    total = requests * len(plan.adapters) * plan.repeats
    if failures:
        raise RunError(
            f"{len(failures)} of {total} answers failed ({failures[0]}); the files in {plan.out} "
            f"say which, and the same command asks these again"
        )
    print(f"{total} answers ({requests} requests, {len(plan.adapters)} adapters, {plan.repeats} "
          f"repeats), none failed; files in {plan.out}")  # fmt: skip
