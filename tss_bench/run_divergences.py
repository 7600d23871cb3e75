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

_NOT_OF_TARGET = frozenset({"batch_size", "scope"})
"""Common arguments on which no answer of a target depends; an answer names its own scope."""


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


def plain_of(adapters: Mapping[str, SpeculativeLM], name: str) -> str | None:
    """The adapter that decodes the target of `name` plainly; None where the run has none."""
    adapter = adapters[name]
    plain = "tss_ar" if adapter.sparse else "native_ar"
    if plain == name or plain not in adapters:
        return None
    one, two = adapter.arguments, adapters[plain].arguments
    same = all(getattr(one, key) == getattr(two, key) for key in COMMON - _NOT_OF_TARGET)
    return plain if same else None


def divergences(
    plain: SpeculativeLM, task: TaskRequests, own: Sequence[Record], others: Sequence[Record]
) -> list[dict[str, Any] | None]:
    """For each request where the answer in `others` leaves that of `plain`, which is in `own`.

    {"against", "turn", "position", "gap", "rounding"}, see `Divergence`; None for equal answers
    and for those that need not be equal: sampled, failed, of another protocol or skip set.
    """
    found: list[dict[str, Any] | None] = [None] * len(own)
    jobs: list[Job] = []
    for place, (one, two) in enumerate(zip(own, others, strict=True)):
        first, second = one.answer, two.answer
        # An answer may be the empty text, which is false.
        if first is None or second is None or first.ids == second.ids:
            continue
        if _comparable(first.config, second.config):
            jobs = jobs or plain.jobs(task.requests)
            if jobs[place].options.temperature == 0.0:
                found[place] = _told(plain, jobs[place], first, second)
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
