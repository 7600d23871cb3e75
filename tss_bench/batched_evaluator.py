"""Measures skip sets on calibration rows many answers at a time: what a search uses.

May import: model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from model_adapters.base import SpeculativeLM
from tss_bench.batched_answers import BatchedAnswers
from tss_bench.calibration import WHY, CalibrationRows, needs_answer
from tss_bench.harness import TaskRequests
from tss_bench.search import Evaluation, Job


class BatchedEvaluator(CalibrationRows):
    """Decodes the rows of a batch side by side; evaluations come as answers end, in any order.

    The figures of `SequentialEvaluator`, up to rounding; memory, and what a kill loses, as
    `BatchedAnswers` says.
    """

    def __init__(self, adapter: SpeculativeLM, task: TaskRequests) -> None:
        super().__init__(adapter, task)
        self._answers = BatchedAnswers(adapter, self._jobs, WHY)

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        decoded = [(job, prompt) for job in jobs if needs_answer(job) for prompt in job.prompts]
        for place, answer in self._answers([(prompt, job.skip) for job, prompt in decoded]):
            yield self._evaluation(*decoded[place], answer)
        for job in jobs:
            if not needs_answer(job):
                yield from (self._evaluation(job, prompt, None) for prompt in job.prompts)
        yield from self._costs(jobs)
