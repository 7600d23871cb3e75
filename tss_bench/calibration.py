"""What a skip set is worth on one calibration row; the plainest executor of a search.

Knows neither strategies nor files.

May import: torch, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

from model_adapters.answering import Job as AnswerJob
from model_adapters.base import SpeculativeLM
from tss_bench.domains import SkipController
from tss_bench.harness import TaskRequests
from tss_bench.scoring.pooled import PRIMARY_METRICS, request_pairs
from tss_bench.search import Evaluation, Job, Limits
from tss_bench.search.types import LossPair
from tss_bench.types import GeneratedText, SkipSet
from tss_bench.verify_timing import VerifyTimer

WHY = "a search measures it"
"""What the record of such an answer says of its skip set."""


class CalibrationRows:
    """The rows of one task for one loaded adapter, whose skip sets a search may choose freely.

    Accept length and metric of a row come from the same answer. Its token loss is that of its
    prompt and, where it has one, its first reference, in one pass of the sparse target (scope
    `all`); that pass holds n x V logits in float32. `answered` counts the answers and losses so
    far, without the answers that were only timed.
    """

    def __init__(self, adapter: SpeculativeLM, task: TaskRequests) -> None:
        dense = SkipSet.dense(adapter.target.num_layers)
        adapter.controller = SkipController.fixed(dense, "where a search begins")
        self._adapter, self._task = adapter, task
        self._metric = metric_name(task)
        self.answered = 0
        self._jobs = adapter.jobs(task.requests)
        adapter.begin_run(self._jobs)
        self._timer = VerifyTimer(adapter, self._jobs)

    def limits(self) -> Limits:
        """What no answer can exceed: nodes of a draft tree a step, and the token limit.

        Protocol `paper` may overshoot the token limit by the rest of its last step.
        """
        widest = self._adapter.drafter.max_nodes
        over = widest - 1 if self._adapter.arguments.protocol == "paper" else 0
        emitted = max(
            len(job.request.turns) * (job.options.max_gen_toks - 1 + over) for job in self._jobs
        )
        return Limits(max_accept=widest, max_emitted=max(1, emitted))

    def _sparse(self, skip: SkipSet, prompt: int) -> AnswerJob:
        """The row as a job under this skip set."""
        return self._jobs[prompt].under(skip, WHY)

    def _evaluation(self, wanted: Job, prompt: int, answer: GeneratedText | None) -> Evaluation:
        """What the answer to a row is worth, and its loss if wanted; None where none was asked."""
        found: dict[str, Any] = {}
        if answer is not None:
            emitted, steps = request_pairs(answer.stats)["accept_len"]
            found["accept"] = ((int(emitted), int(steps)),)
            metrics = self._task.task.process_results(self._doc(prompt), [answer])
            value = metrics.get(self._metric)
            found["metric"] = (None if value is None else float(value),)
        if "loss" in wanted.want:
            found["loss"] = (self._loss(self._sparse(wanted.skip, prompt), prompt),)
        self.answered += len(found.keys() & {"accept", "loss"})
        return Evaluation(wanted.skip, (prompt,), **found)

    def _costs(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        """The costs that these jobs want, timed together (`VerifyTimer`)."""
        yield from self._timer(job.skip for job in jobs if "cost" in job.want)

    def _loss(self, job: AnswerJob, prompt: int) -> LossPair:
        ids = self._adapter.prompt_ids(job) + self._reference_ids(prompt)
        ids = ids[: self._adapter.max_length]
        logits = self._adapter.target.score(ids, job.choice.skip)[:-1]
        following = torch.tensor(ids[1:], device=logits.device)
        return float(F.cross_entropy(logits, following, reduction="sum")), len(following)

    def _reference_ids(self, prompt: int) -> list[int]:
        doc = self._doc(prompt)
        references = doc.get("references") or []
        if not references:
            return []
        # A completion prompt ends before the space that its answer begins with.
        space = " " if doc.get("prompt_style") == "completion" else ""
        return self._adapter.tok_encode(space + references[0], add_special_tokens=False)

    def _doc(self, prompt: int) -> Mapping[str, Any]:
        doc: Mapping[str, Any] = self._task.requests[prompt].doc
        return doc


class SequentialEvaluator(CalibrationRows):
    """Decodes one row after the other, as `generate_until` does.

    Called with the jobs of a batch, it gives back one evaluation a prompt, as soon as it is
    there: a kill loses one answer. The costs of a batch are timed together, after the rest.
    """

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            for prompt in job.prompts:
                decoded = needs_answer(job)
                sparse = self._sparse(job.skip, prompt)
                yield self._evaluation(
                    job, prompt, self._adapter.answer(sparse) if decoded else None
                )
        yield from self._costs(jobs)


def needs_answer(job: Job) -> bool:
    """Whether a job asks for what only an answer tells."""
    return bool(job.want & {"accept", "metric"})


def metric_name(task: TaskRequests) -> str | None:
    """The primary metric that a task can emit; None where it has none."""
    emitted = task.task.aggregation()
    return next((name for name in PRIMARY_METRICS if name in emitted), None)


def require_calibration(tasks: Sequence[TaskRequests]) -> None:
    """Raises ValueError for a task whose rows are not known to be calibration rows.

    Only our own tasks split their rows; any other would show its test rows to the search.
    """
    for task in tasks:
        metadata = task.task.config.metadata or {}
        ours = "data" in metadata and all("content_hash" in one.doc for one in task.requests)
        if not ours or metadata.get("split") != "calibration":
            raise ValueError(
                f"{task.name} has no calibration split, so a search would see its test rows; take "
                f"a task of tss_bench, or extend one with rows of your own (README, Add a task)"
            )
