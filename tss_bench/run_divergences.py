"""Where answers leave those of plain decoding of the same target, and whether rounding may be why.

Of greedy answers under protocol `strict` only: nothing else is to be equal.

May import: model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model_adapters.answering import Job
from model_adapters.arguments import COMMON
from model_adapters.base import SpeculativeLM
from tss_bench.decoding.divergence import Divergence, find_divergence
from tss_bench.harness import TaskRequests
from tss_bench.run_records import Record
from tss_bench.types import GeneratedText, SkipSet

_PLAIN = ("native_ar", "tss_ar")
"""The kinds of adapters that decode plainly."""

_OF_MODEL = COMMON - {"batch_size", "scope"}
"""Common arguments on which the answers of a target depend; each answer names its own scope."""


def first_divergence(
    adapter: SpeculativeLM, job: Job, plain: GeneratedText, other: GeneratedText
) -> tuple[int, Divergence] | None:
    """Turn and place at which two answers to a job first part; None for equal ones.

    `plain` is of plain decoding, `adapter` is of its target and loaded; costs one pass where the
    answers part.
    """
    skip = SkipSet.of(plain.config["skip"], adapter.target.num_layers)
    scope = plain.config["scope"]
    for turn, (one, two) in enumerate(zip(plain.ids, other.ids, strict=True)):
        if one != two:
            prompt = adapter.prompt_ids(job, plain.turns[:turn])
            found = find_divergence(adapter.target, prompt, one, two, skip, scope)
            return None if found is None else (turn, found)
    return None


def plain_adapters(adapters: Mapping[str, SpeculativeLM], name: str) -> list[str]:
    """The adapters of the run that decode the model of `name` plainly, dense ones first.

    Whether under the skip set of an answer, too, is seen from the answers.
    """
    if _kind(name) in _PLAIN:
        return []
    own = adapters[name].arguments
    same = [
        other
        for other, adapter in adapters.items()
        if _kind(other) in _PLAIN
        and all(getattr(own, key) == getattr(adapter.arguments, key) for key in _OF_MODEL)
    ]
    return sorted(same, key=lambda other: _PLAIN.index(_kind(other)))


def _kind(name: str) -> str:
    return name.partition("@")[0]


def divergences(
    adapters: Mapping[str, SpeculativeLM],
    name: str,
    task: TaskRequests,
    records: Mapping[str, Sequence[Record]],
) -> list[dict[str, Any] | None]:
    """For each request where the answer of `name` leaves plain decoding of the same target.

    {"against", "turn", "position", "gap", "rounding"}, see `Divergence`; None for equal answers
    and for those that need not be equal: sampled, failed, of another protocol or skip set.
    `records` has those of all adapters on the task.
    """
    plain = plain_adapters(adapters, name)
    found: list[dict[str, Any] | None] = [None] * len(records[name])
    jobs: list[Job] = []
    for place, record in enumerate(records[name]):
        answer = record.answer
        beside = {other: records[other][place].answer for other in plain}
        same = (
            (other, one)
            for other, one in beside.items()
            # An answer may be the empty text, which is false.
            if one is not None and answer is not None and _comparable(one.config, answer.config)
        )
        other, one = next(same, (None, None))
        if other is None or one is None or answer is None or one.ids == answer.ids:
            continue
        jobs = jobs or adapters[other].jobs(task.requests)
        if jobs[place].options.temperature == 0.0:
            found[place] = _told(adapters[other], jobs[place], one, answer)
    return found


def _told(
    plain: SpeculativeLM, job: Job, one: GeneratedText, two: GeneratedText
) -> dict[str, Any] | None:
    parted = first_divergence(plain, job, one, two)
    if parted is None:
        return None
    turn, found = parted
    return {
        "against": plain.name,
        "turn": turn,
        "position": found.position,
        "gap": found.gap,
        "rounding": found.rounding,
    }


def _comparable(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    """Whether two answers are of one target and have to be equal."""
    target = [(each["skip"], each["scope"] if each["skip"] else None) for each in (one, two)]
    return target[0] == target[1] and one["protocol"] == two["protocol"] == "strict"
