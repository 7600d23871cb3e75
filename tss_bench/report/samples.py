"""One answered request, and one run of an adapter on a task, as they stand in lm-eval's files.

Everything beyond lm-eval's own fields (the key `tss` of a line) may be missing: then the figures
that need it are.

May import: the standard library, tss_bench.{types,scoring} (layer L2 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tss_bench.scoring.pooled import POOLED_NAMES, Pair, request_pairs
from tss_bench.types import GenerationStats

T = TypeVar("T")

UNSTATED = "not stated"
"""What a file that says nothing about data, split or protocol is filed under."""

_FIELDS = frozenset(
    {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"}
    | {"doc_hash", "prompt_hash", "target_hash", "tss"}
)
"""What stands in every sample of lm-eval, and ours."""

_COUNTED = frozenset({"scored", *POOLED_NAMES})


@dataclass(frozen=True)
class Turn:
    """What is recorded of one turn of an answer; None or empty where nothing is.

    `stop` as in `GenerationStats`; times in seconds.
    """

    text: str
    ids: tuple[int, ...] = ()
    stop: str | None = None
    truncated: bool | None = None
    new_tokens: int | None = None
    accept_lengths: tuple[int, ...] = ()
    wall_s: float | None = None
    first_token_s: float | None = None


@dataclass(frozen=True)
class Divergence:
    """Where an answer left that of plain decoding, as the run recorded it; see `audit`."""

    position: int
    gap: float | None
    rounding: float | None


@dataclass(frozen=True)
class Sample:
    """One request; `key` tells the same request in other runs of the task.

    `pairs` are the pooled figures, `metrics` the values of this row, `not_finite` the names of
    values that were NaN or infinite and are left out. A `failed` request has no figures.
    `prompt` and `references` are None where the file holds no text of the data.
    """

    row: str
    key: str
    domain: str | None
    turns: tuple[Turn, ...]
    pairs: Mapping[str, Pair]
    metrics: Mapping[str, float]
    not_finite: tuple[str, ...] = ()
    failed: str | None = None
    skip: tuple[int, ...] | None = None
    scope: str | None = None
    protocol: str | None = None
    prompt: str | None = None
    references: tuple[str, ...] | None = None
    divergence: Divergence | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(turn.text for turn in self.turns)


def read_sample(line: Mapping[str, Any]) -> Sample:
    """The request of one line of a samples file. Raises KeyError, TypeError or ValueError."""
    ours = _mapping(line.get("tss"))
    doc = _mapping(line.get("doc"))
    config = _mapping(ours.get("config"))
    stats = [_mapping(one) for one in ours.get("stats") or ()]
    failed = ours.get("failed")
    values = {} if failed else _values(line, stats)
    pairs = {name: v for name, v in values.items() if isinstance(v, tuple)}
    return Sample(
        row=str(ours.get("row", doc.get("id", line["doc_id"]))),
        key=str(
            ours.get("content_hash")
            or doc.get("content_hash")
            or line.get("doc_hash")
            or line["doc_id"]
        ),
        domain=_text(config.get("domain")) or _text(doc.get("domain")),
        turns=() if failed else _turns(line, ours, stats),
        pairs={name: pair for name, pair in pairs.items() if _finite(pair)},
        metrics={
            name: v for name, v in values.items() if isinstance(v, float) and math.isfinite(v)
        },
        not_finite=tuple(sorted(name for name, v in values.items() if not _finite(v))),
        failed=None if not failed else str(failed),
        skip=whole_numbers(config["skip"]) if "skip" in config else None,
        scope=_text(config.get("scope")),
        protocol=_text(config.get("protocol")),
        prompt=_prompt(line, doc),
        references=_references(line, ours, doc),
        divergence=_divergence(ours.get("divergence")),
    )


def with_filter(sample: Sample, other: Sample, name: str) -> Sample:
    """`sample` with the metrics that another filter of lm-eval gave for the same request."""
    extra = {f"{metric},{name}": value for metric, value in other.metrics.items()}
    return Sample(**{**vars(sample), "metrics": {**extra, **sample.metrics}})


def primary(samples: Iterable[Sample], known: Sequence[str]) -> str | None:
    """The metric of a task: the first of `known` that a row has, else the first by name."""
    names = {name for sample in samples for name in sample.metrics}
    return next((name for name in known if name in names), min(names, default=None))


def _values(line: Mapping[str, Any], stats: Sequence[Mapping[str, Any]]) -> dict[str, float | Pair]:
    """Metric values and pooled pairs; the pairs from the statistics where lm-eval's are not."""
    found: dict[str, float | Pair] = {}
    # Older versions of lm-eval do not list a sample's metrics.
    for name in line.get("metrics") or line.keys() - _FIELDS:
        value = line.get(name)
        if name in POOLED_NAMES and isinstance(value, list | tuple) and len(value) == 2:
            found[name] = (float(value[0]), float(value[1]))
        elif name not in _COUNTED and isinstance(value, int | float):
            found[name] = float(value)
    if stats:
        try:
            records = [GenerationStats.from_dict(one) for one in stats]
        except TypeError:
            return found
        found = {**{n: p for n, p in request_pairs(records).items() if p[1] > 0}, **found}
    return found


def _turns(
    line: Mapping[str, Any], ours: Mapping[str, Any], stats: Sequence[Mapping[str, Any]]
) -> tuple[Turn, ...]:
    texts = ours.get("turns") or _answer(line)
    ids, first = ours.get("ids") or (), ours.get("first_token_s") or ()
    turns = []
    for place, text in enumerate(texts):
        told = stats[place] if place < len(stats) else {}
        turns.append(
            Turn(
                text=str(text),
                ids=whole_numbers(ids[place]) if place < len(ids) else (),
                stop=_text(told.get("stop")),
                truncated=_optional(bool, told.get("prompt_truncated")),
                new_tokens=_optional(int, told.get("new_tokens")),
                accept_lengths=whole_numbers(told.get("accept_lengths") or ()),
                wall_s=_optional(float, told.get("wall_s")),
                first_token_s=_optional(float, first[place]) if place < len(first) else None,
            )
        )
    return tuple(turns)


def _answer(line: Mapping[str, Any]) -> list[str]:
    """The answer as lm-eval keeps it: the first of each request; none for a loglikelihood."""
    answers = line.get("resps") or ()
    first = answers[0] if answers else None
    if isinstance(first, list | tuple) and first and isinstance(first[0], str):
        return [first[0]]
    return []


def _prompt(line: Mapping[str, Any], doc: Mapping[str, Any]) -> str | None:
    turns = doc.get("turns")
    if isinstance(turns, list) and turns:
        return "\n\n".join(map(str, turns))
    asked = _mapping(_mapping(line.get("arguments")).get("gen_args_0")).get("arg_0")
    return asked if isinstance(asked, str) else None


def _references(
    line: Mapping[str, Any], ours: Mapping[str, Any], doc: Mapping[str, Any]
) -> tuple[str, ...] | None:
    for given in (ours.get("references"), doc.get("references")):
        if isinstance(given, list):
            return tuple(map(str, given))
    target = line.get("target")
    return None if target is None else (str(target),)


def _divergence(told: Any) -> Divergence | None:
    if not isinstance(told, Mapping):
        return None
    gap, rounding = (_optional(float, told.get(name)) for name in ("gap", "rounding"))
    return Divergence(int(told["position"]), gap, rounding)


def whole_numbers(values: Iterable[Any]) -> tuple[int, ...]:
    """The values as ints. Raises TypeError or ValueError for anything else."""
    return tuple(map(int, values))


def _optional(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)


def _finite(value: float | Pair) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(map(math.isfinite, parts))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
