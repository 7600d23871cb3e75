"""The result and sample files of a run, as lm-eval writes them, with records of our own beside.

lm-eval's evaluator scores the recorded answers and makes the results, so that every key and
every figure is its own. Added are `tss_bench` in the results and `tss` in each sample.

May import: lm_eval, transformers, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.loggers.evaluation_tracker import GeneralConfigTracker
from lm_eval.utils import handle_non_serializable, hash_string, make_table, sanitize_list
from transformers import PreTrainedTokenizerBase

from model_adapters.base import SpeculativeLM
from tss_bench.answer_records import digest
from tss_bench.files import replace_text
from tss_bench.harness import TaskRequests
from tss_bench.quotes import without_quotes
from tss_bench.run_choices import routes, skip_sets
from tss_bench.run_divergences import divergences
from tss_bench.run_plan import RunPlan, data_source, native_of
from tss_bench.run_records import Record, Round, texts_in
from tss_bench.types import GeneratedText

SCHEMA = 1


@dataclass(frozen=True)
class Answered:
    """All rounds of one repeat, by task in the order of its requests."""

    repeat: int
    rounds: Mapping[str, Sequence[Round]]

    def records(self, task: str, adapter: str) -> list[Record]:
        """What one adapter made of the requests of a task."""
        return [each.records[adapter] for each in self.rounds[task]]

    def all_records(self, adapter: str) -> list[Record]:
        """What one adapter made of all requests."""
        return [record for task in self.rounds for record in self.records(task, adapter)]


def write_results(
    plan: RunPlan, name: str, answered: Answered, started: datetime
) -> tuple[str, list[Path]]:
    """Write the files of one adapter and repeat; returns lm-eval's table and the sample files.

    The files carry the time at which the run began, a second later for each repeat, so that
    writing them again replaces them.
    """
    results = evaluate(plan, name, answered)
    samples = results.pop("samples")
    results["date"] = started.timestamp()
    results["task_hashes"] = {task: _task_hash(lines) for task, lines in samples.items()}
    results |= _identity(plan, name, answered)
    results["tss_bench"] = run_record(plan, name, answered)
    stamp = time_stamp(started, answered.repeat)
    folder = plan.out / name
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / f"samples_{task.name}_{stamp}.jsonl" for task in plan.tasks]
    for task, path in zip(plan.tasks, written, strict=True):
        kept = list(_samples(plan, name, answered, task, samples[task.name]))
        replace_text(path, "".join(_json(sample) + "\n" for sample in kept))
    # Last: where this file is, all others are.
    replace_text(folder / f"results_{stamp}.json", _json(results, indent=2))
    columns = [column for column in ("results", "groups") if column in results]
    return "\n".join(make_table(results, column) for column in columns), written


def time_stamp(started: datetime, repeat: int) -> str:
    """The time in the names of a repeat's files, as lm-eval writes it."""
    moment = (started + timedelta(seconds=repeat)).isoformat(timespec="microseconds")
    return moment.replace(":", "-")


def evaluate(plan: RunPlan, name: str, answered: Answered) -> dict[str, Any]:
    """`simple_evaluate`'s results, samples included, of the recorded answers of one adapter."""
    adapter = plan.adapters[name]
    with _as_answered(plan.tasks, answered, name):
        results: dict[str, Any] = simple_evaluate(
            model=_Recorded(adapter, plan.tasks, answered),
            tasks=list(plan.opened.names),
            task_manager=plan.opened,
            limit=plan.limit,
            batch_size=1,
            device=str(adapter.device),
            fewshot_as_multiturn=False,
        )
    # The tasks have the generation arguments already.
    asked = {"model": name, "model_args": plan.given[name], "gen_kwargs": plan.gen_kwargs}
    results["config"] |= asked
    return results


def run_record(plan: RunPlan, name: str, answered: Answered) -> dict[str, Any]:
    """What a reader of the results must know of the run, beside what lm-eval writes.

    The peak of memory, device or process, is one with all adapters of the run loaded.
    """
    adapter = plan.adapters[name]
    records = answered.all_records(name)
    processes = {each.process for rounds in answered.rounds.values() for each in rounds}
    return {
        "schema": SCHEMA,
        "adapter": name,
        "native": native_of(name),
        "drafter": adapter.drafter_id,
        "model": adapter.info.id,
        "revision": adapter.info.revision,
        "num_layers": adapter.info.num_layers,
        "model_args": dict(plan.given[name]),
        "scope": adapter.scope,
        "protocol": adapter.arguments.protocol,
        "split": plan.split,
        "data": {task.name: data_source(task) for task in plan.tasks},
        "skip_sets": {
            task.name: skip_sets(
                answered.records(task.name, name), adapter.controller.used.get(task.name)
            )
            for task in plan.tasks
        },
        **({"router": adapter.router.record()} if adapter.router else {}),
        **{key: plan.settings[key] for key in ("commit", "versions", "machine")},
        "repeat": answered.repeat,
        "repeats": plan.repeats,
        "interleaved_with": [other for other in plan.adapters if other != name],
        "processes": len(processes),
        "peak_memory_bytes": max(record.memory for record in records),
        "peak_memory_of": "allocated on the device, all adapters loaded"
        if _on_gpu(adapter)
        else "whole process, all adapters loaded",
        "failed": sum(record.failed is not None for record in records),
        "no_docs": plan.no_docs,
        "left_out": dict(plan.left_out),
    }


class _Recorded(LM):
    """An adapter to lm-eval's evaluator that gives the recorded answers; a failed one is ''."""

    def __init__(
        self, adapter: SpeculativeLM, tasks: Sequence[TaskRequests], answered: Answered
    ) -> None:
        super().__init__()
        self._adapter = adapter
        self._answers: dict[int, GeneratedText] = {}
        self._records = {task.name: answered.records(task.name, adapter.name) for task in tasks}
        for task in tasks:
            for request, record in zip(task.requests, self._records[task.name], strict=True):
                self._answers[id(request)] = record.answer or GeneratedText("")

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return self._adapter.tokenizer

    @property
    def eot_token_id(self) -> int:
        return self._adapter.eot_token_id

    @property
    def max_length(self) -> int:
        return self._adapter.max_length

    def get_model_info(self) -> dict[str, Any]:
        """The adapter's, with what did not fit and was routed in all processes of the run."""
        stats = [turn for answer in self._answers.values() for turn in answer.stats]
        info = self._adapter.get_model_info()
        overflow = {**info["tss_bench"]["overflow"], "turns": len(stats)}
        for name in ("prompt_truncated", "limit_clamped"):
            overflow[name] = sum(getattr(turn, name) for turn in stats)
        ordered = dict(sorted(overflow.items()))
        routed = {"routed": routes(self._records)} if self._adapter.router else {}
        return {**info, "tss_bench": {**info["tss_bench"], "overflow": ordered, **routed}}

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        return [self._answers[id(request)] for request in requests]

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[Any]:
        raise NotImplementedError("a run records generated answers only")

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[Any]:
        raise NotImplementedError("a run records generated answers only")


@contextmanager
def _as_answered(tasks: Sequence[TaskRequests], answered: Answered, adapter: str) -> Iterator[None]:
    """Tasks that keep the requests that were answered and give no metric to a failed one."""
    own = [(task.task, task.task.build_all_requests, task.task.process_results) for task in tasks]
    for task in tasks:
        records = answered.records(task.name, adapter)
        failed: dict[str, list[bool]] = {}
        for request, record in zip(task.requests, records, strict=True):
            failed.setdefault(digest(request.doc), []).append(record.failed is not None)
        for request in task.requests:
            request.resps.clear()
            request.filtered_resps.clear()
        task.task.build_all_requests = lambda **_: None
        task.task.process_results = _unless_failed(task.task.process_results, failed)
    try:
        yield
    finally:
        for each, build_all_requests, process_results in own:
            each.build_all_requests, each.process_results = build_all_requests, process_results


def _unless_failed(score: Any, failed: Mapping[str, Sequence[bool]]) -> Any:
    """`score`, but no metric for a request that failed; rows that are equal take turns.

    lm-eval scores the rows in their order, once for each filter.
    """
    turns = {row: itertools.cycle(of_row) for row, of_row in failed.items()}

    def process_results(doc: Any, results: Any) -> dict[str, Any]:
        metrics: dict[str, Any] = {} if next(turns[digest(doc)]) else score(doc, results)
        return metrics

    return process_results


def _identity(plan: RunPlan, name: str, answered: Answered) -> dict[str, Any]:
    """What lm-eval's tracker adds to the results; the seconds are those of the answers."""
    tracker = GeneralConfigTracker()
    tracker.log_experiment_args(
        model_source=name,
        # Without a name in the arguments the tracker would draw a random one.
        model_args={"pretrained": plan.adapters[name].arguments.pretrained, **plan.given[name]},
        system_instruction=None,
        chat_template=None,
        fewshot_as_multiturn=False,
    )
    answers = [record.answer for record in answered.all_records(name) if record.answer is not None]
    seconds = sum(turn.wall_s for answer in answers for turn in answer.stats)
    return {**asdict(tracker), "total_evaluation_time_seconds": str(seconds)}


def _task_hash(samples: Sequence[Mapping[str, Any]]) -> str:
    parts = ("doc_hash", "prompt_hash", "target_hash")
    return str(hash_string("".join(sample[part] for sample in samples for part in parts)))


def _samples(
    plan: RunPlan,
    name: str,
    answered: Answered,
    task: TaskRequests,
    samples: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """The lines of a task's file: lm-eval's, in the form its tracker gives them, and ours."""
    own = answered.records(task.name, name)
    beside = {other: answered.records(task.name, other) for other in plan.adapters}
    parted = divergences(plan.adapters, name, task, beside)
    records = {
        request.doc_id: (record, divergence)
        for request, record, divergence in zip(task.requests, own, parted, strict=True)
    }
    for sample in samples:
        record, divergence = records[sample["doc_id"]]
        line = {
            **sample,
            "target": str(sample["target"]),
            "arguments": {
                f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(arguments)}
                for i, arguments in enumerate(sample["arguments"])
            },
            "resps": sanitize_list(sample["resps"]),
            "filtered_resps": sanitize_list(sample["filtered_resps"]),
            "tss": sample_record(sample, record, answered.repeat, divergence),
        }
        yield without_docs(line) if plan.no_docs else line


def sample_record(
    sample: Mapping[str, Any],
    record: Record,
    repeat: int,
    divergence: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is kept of a request beside lm-eval's sample; an answer's parts have one item a turn.

    `first_token_s`: seconds to the first id of each turn, None for a turn without one;
    `divergence` only where the answer leaves that of plain decoding.
    """
    doc = sample["doc"]
    kept: dict[str, Any] = {**_row(doc, sample["doc_id"]), "repeat": repeat}
    kept["failed"] = record.failed
    if isinstance(doc, Mapping) and "references" in doc:
        kept["references"] = list(doc["references"])
    answer = record.answer
    if answer is None:
        return kept
    return {
        **kept,
        "ids": answer.ids,
        "turns": answer.turns,
        "stats": [asdict(turn) for turn in answer.stats],
        "config": answer.config,
        "first_token_s": [turn.prefill_s if turn.new_tokens else None for turn in answer.stats],
        **({"divergence": divergence} if divergence else {}),
    }


def without_docs(line: Mapping[str, Any]) -> dict[str, Any]:
    """A sample line without text of the data set; hashes and our own answers stay.

    Metrics that hold text (corpus metrics keep the references of each row) go, and what an answer
    quotes of its row is a gap in its text; its ids stay whole.
    """
    doc, metrics = line["doc"], list(line["metrics"])
    texts = texts_in([doc, line["target"], line["arguments"]])
    answer = {name: _unquoted(line[name], texts) for name in ("resps", "filtered_resps")}
    own = {name: value for name, value in line["tss"].items() if name != "references"}
    if "turns" in own:
        own["turns"] = _unquoted(own["turns"], texts)
    kept = [name for name in metrics if not texts_in(line[name])]
    gone = {"arguments", "target", *metrics} - set(kept)
    row = _row(doc, line["doc_id"])
    source = doc.get("data_source") if isinstance(doc, Mapping) else None
    return {
        **{name: value for name, value in line.items() if name not in gone},
        **answer,
        "doc": {
            "id": row["row"],
            "content_hash": row["content_hash"],
            "data_source": source or "foreign",
        },
        "metrics": kept,
        "tss": own,
    }


def _unquoted(value: Any, texts: Sequence[str]) -> Any:
    """An answer, or lists of them, without what they quote of `texts`."""
    if isinstance(value, list | tuple):
        return [_unquoted(each, texts) for each in value]
    return without_quotes(value, texts) if isinstance(value, str) else value


def _row(doc: Any, doc_id: int) -> dict[str, str]:
    """Name and hash of a row; those of a foreign task have the place and a digest of all."""
    known = doc if isinstance(doc, Mapping) and "content_hash" in doc else {}
    return {
        "row": str(known.get("id", doc_id)),
        "content_hash": known.get("content_hash") or digest(doc),
    }


def _on_gpu(adapter: SpeculativeLM) -> bool:
    return adapter.device.type == "cuda"


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, default=_plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """lm-eval's form of what is no JSON; a function without its place in memory."""
    if inspect.isfunction(value):
        return f"<function {value.__name__}>"
    return handle_non_serializable(value)
