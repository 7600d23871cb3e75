"""A run: one samples file of lm-eval, with what its results file says of it.

Files of `tss-bench run` say more than those of plain lm-eval; what is not said is not guessed.

May import: the standard library, tss_bench.{types,domains,scoring} (layer L2 of the design).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from tss_bench.domains import domain_of
from tss_bench.report.files import ResultFile
from tss_bench.report.samples import (
    UNSTATED,
    Sample,
    primary,
    read_sample,
    whole_numbers,
    with_filter,
)
from tss_bench.scoring.pooled import PRIMARY_METRICS

_IN_ROW = frozenset({"pretrained", "skip_layers", "domain_map", "scope", "protocol"})
"""Model arguments that a row shows elsewhere."""

_OF_SPARSE = frozenset({"router", "router_pooling", "router_k", "router_threshold"})
"""Arguments that native adapters do not take, beside those in a row: no dense run has them."""

_FOREIGN = "foreign"
"""What `tss-bench run` says of the data of others' tasks, whose files name the data set."""

_OF_TARGET = frozenset(
    {"dtype", "revision", "chat_template", "max_length", "max_gen_toks", "until", "on_overflow"}
    | {"temperature", "do_sample", "seed"}
)
"""Arguments that change an answer whatever drafts it."""


@dataclass(frozen=True, eq=False)
class Run:
    """One adapter on one task, once. `skips` are the sets it used, None where not recorded.

    `place` is the folder of its files, `session` the one above it: runs that were interleaved
    lie side by side in one session. `arguments` are those a row's label shows.
    `lower_is_better` holds the metrics of which lm-eval says so. `resolved` is what an adapter of
    ours says of its settings, defaults included; `generation` are the `--gen_kwargs`.
    """

    place: str
    date: str
    adapter: str
    native: str | None
    model: str
    drafter: str
    task: str
    domain: str
    data: str
    split: str
    protocol: str
    scope: str
    num_layers: int | None
    skips: tuple[tuple[int, ...], ...] | None
    arguments: tuple[tuple[str, str], ...]
    metric: str | None
    samples: tuple[Sample, ...]
    repeat: int = 0
    interleaved_with: frozenset[str] = frozenset()
    machine: str = ""
    commit: str = ""
    peak_memory_bytes: int | None = None
    lower_is_better: frozenset[str] = frozenset()
    resolved: Mapping[str, Any] = field(default_factory=dict)
    generation: Mapping[str, Any] = field(default_factory=dict)

    @property
    def of_native(self) -> tuple[tuple[str, str], ...]:
        """The arguments that the native run of the same drafter has, too."""
        return tuple(each for each in self.arguments if each[0] not in _OF_SPARSE)

    @property
    def of_target(self) -> dict[str, str]:
        """The arguments that an answer depends on whatever the drafter is."""
        return {name: value for name, value in self.arguments if name in _OF_TARGET}

    @property
    def session(self) -> str:
        return PurePosixPath(self.place).parent.as_posix()

    @property
    def setting(self) -> tuple[Any, ...]:
        """What makes two runs of one folder repeats of each other."""
        return (
            self.place,
            *(self.task, self.data, self.split, self.protocol),
            *(self.adapter, self.model, self.scope, self.skips, self.arguments),
        )


def read_runs(result: ResultFile, notes: list[str]) -> list[Run]:
    """The runs of one results file. Raises ValueError naming what is no sample or no record."""
    runs = []
    for task in sorted(result.samples):
        samples = _samples(result, task, notes)
        try:
            runs.append(_run(result, task, samples))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{result.name}: what it says of {task} cannot be read "
                f"({type(error).__name__}: {error})"
            ) from None
    return runs


def _samples(result: ResultFile, task: str, notes: list[str]) -> tuple[Sample, ...]:
    """The requests of a task: several filters of one request together, keys made unique."""
    found: dict[str, Sample] = {}
    filters: dict[str, str] = {}
    for number, line in enumerate(result.samples[task], 1):
        try:
            sample, request = read_sample(line), str(line["doc_id"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ValueError(
                f"{result.place}: sample {number} of {task} is no sample of lm-eval "
                f"({type(error).__name__}: {error})"
            ) from None
        name = str(line.get("filter"))
        if request not in found:
            found[request], filters[request] = sample, name
        elif filters[request] != name:
            found[request] = with_filter(found[request], sample, name)
        else:
            notes.append(f"{result.place}: request {request} of {task} stands there twice")
    return _unique(found.values())


def _unique(samples: Iterable[Sample]) -> tuple[Sample, ...]:
    seen: dict[str, int] = {}
    unique = []
    for sample in samples:
        count = seen[sample.key] = seen.get(sample.key, 0) + 1
        key = sample.key if count == 1 else f"{sample.key}#{count}"
        unique.append(Sample(**{**vars(sample), "key": key}))
    return tuple(unique)


def _run(result: ResultFile, task: str, samples: tuple[Sample, ...]) -> Run:
    config = _mapping(result.data.get("config"))
    ours = _mapping(result.data.get("tss_bench"))
    told = {**_mapping(config.get("tss_bench")), **ours}
    adapter = str(told.get("adapter") or config.get("model") or UNSTATED)
    return Run(
        place=result.place,
        date=result.date,
        adapter=adapter,
        native=_native(adapter, told),
        model=_shown(told.get("model") or result.data.get("model_name") or UNSTATED),
        drafter=str(told.get("drafter") or ""),
        task=task,
        domain=_domain(task, samples),
        scope=_scope(samples, told),
        num_layers=int(told.get("num_layers") or 0) or None,
        skips=_skips(task, adapter, samples, told),
        arguments=_arguments(
            ours.get("model_args", config.get("model_args")), config.get("gen_kwargs")
        ),
        metric=primary(samples, PRIMARY_METRICS),
        samples=samples,
        repeat=int(told.get("repeat") or 0),
        interleaved_with=frozenset(map(str, told.get("interleaved_with") or ())),
        machine=str(told.get("machine") or ""),
        commit=str(told.get("commit") or ""),
        peak_memory_bytes=int(told.get("peak_memory_bytes") or 0) or None,
        lower_is_better=frozenset(
            name
            for name, higher in _mapping(
                _mapping(result.data.get("higher_is_better")).get(task)
            ).items()
            if higher is False
        ),
        resolved=_mapping(config.get("tss_bench")),
        generation=_given(config.get("gen_kwargs")),
        **_source(result, task, samples, told),
    )


def _source(
    result: ResultFile, task: str, samples: Sequence[Sample], told: Mapping[str, Any]
) -> dict[str, str]:
    """Data, split and protocol: what decides which table a run stands in."""
    config = _mapping(_mapping(result.data.get("configs")).get(task))
    metadata = _mapping(config.get("metadata"))
    data = _mapping(_mapping(told.get("data")).get(task)) or _mapping(metadata.get("data"))
    if data.get("kind") == _FOREIGN:
        data = {}
    own_split = config.get("test_split") or config.get("validation_split")
    split = (metadata.get("split") or told.get("split")) if data else own_split
    return {
        "data": str(data.get("kind") or config.get("dataset_path") or UNSTATED),
        "split": str(split or UNSTATED),
        "protocol": _said("protocol", samples, told),
    }


def _said(name: str, samples: Sequence[Sample], told: Mapping[str, Any]) -> str:
    values = sorted({getattr(s, name) for s in samples} - {None})
    return " and ".join(values) if values else str(told.get(name) or UNSTATED)


def _scope(samples: Sequence[Sample], told: Mapping[str, Any]) -> str:
    """The scope of a run; a loglikelihood has no pass after prefill, so it is always `all`."""
    said = _said("scope", samples, told)
    answered = any(sample.turns or sample.failed is not None for sample in samples)
    return said if answered or not samples or said == UNSTATED else "all"


def _skips(
    task: str, adapter: str, samples: Sequence[Sample], told: Mapping[str, Any]
) -> tuple[tuple[int, ...], ...] | None:
    used = {sample.skip for sample in samples if sample.skip is not None}
    if used:
        return tuple(sorted(used))
    for name in ("skip_sets", "used"):
        choices = _mapping(told.get(name)).get(task)
        choices = choices if isinstance(choices, list) else [choices]
        found = {whole_numbers(one["skip"]) for one in map(_mapping, choices) if "skip" in one}
        if found:
            return tuple(sorted(found))
    return ((),) if adapter.startswith("native_") else None


def _native(adapter: str, told: Mapping[str, Any]) -> str | None:
    if not adapter.startswith("tss_"):
        return None
    return str(told.get("native") or adapter.replace("tss_", "native_", 1))


def _domain(task: str, samples: Sequence[Sample]) -> str:
    named = {sample.domain for sample in samples} - {None}
    return domain_of(task) or (named.pop() if len(named) == 1 else None) or task


def _arguments(model: Any, generation: Any) -> tuple[tuple[str, str], ...]:
    """Arguments that tell two rows of one adapter apart, as sorted (name, text).

    `--gen_kwargs` win over model arguments of the same name, as they do in a run.
    """
    given = {**_given(model), **_given(generation)}
    return tuple(sorted((k, _shown(v)) for k, v in given.items() if k not in _IN_ROW))


def _given(arguments: Any) -> dict[str, Any]:
    """Arguments by name, which lm-eval writes as a mapping or as text."""
    if isinstance(arguments, str):
        pieces = re.split(r",(?![^\[]*\])", arguments)
        arguments = dict(piece.split("=", 1) for piece in pieces if "=" in piece)
    return {str(name): value for name, value in _mapping(arguments).items()}


def _shown(value: Any) -> str:
    """A value as text; of a path on this machine its last part."""
    if isinstance(value, list):
        return "+".join(map(str, value))
    text = str(value)
    return PurePosixPath(text).name if text.startswith(("/", "~", ".")) else text


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
