"""Domain maps and the skip controller: which skip set a request of which task gets.

A `DomainMap` is the JSON file a search leaves behind: for one (target, drafter) pair, the
skip set of each domain. A `SkipController` answers one question, "which skip set for this
task, and why", and remembers what it answered.

May import: the standard library and tss_bench.{files,types} (layer L0 of the design).
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tss_bench.files import replace_text
from tss_bench.types import PROTOCOLS, SCOPES, Protocol, Scope, SkipSet

SCHEMA = 1
T = TypeVar("T", bound=str)
MAPS_DIR = Path(__file__).parent / "assets" / "maps"

DOMAINS = (
    "translation",
    "summarization",
    "qa",
    "rag",
    "math_reasoning",
    "mt_bench",
    "mmlu",
    "nq_open",
)
"""The domains of the packaged tasks; a map may name others."""

UNNAMED_TASK = "unnamed task"
"""What the task of a request is called that comes without one."""
EVERY_OTHER_TASK = "*"
"""What stands for the tasks without a set of their own where sets are listed."""

_TASK_PREFIXES = ("specbench_", "tss_")
_TASK_SUFFIXES = ("_fewshot", "_ll")
_MAP_FIELDS = (
    "schema",
    "model",
    "drafter",
    "num_layers",
    "scope",
    "protocol",
    "domains",
    "pareto",
    "provenance",
)
_CONFIG_FIELDS = ("skip", "accept", "metric", "sparsity")


class MapError(ValueError):
    """A domain map that cannot be read or is for another target; one line, with the mend."""


@dataclass(frozen=True)
class DomainConfig:
    """A skip set and the accept length and metric it was chosen for (None: never measured)."""

    skip: SkipSet
    accept: float | None = None
    metric: float | None = None

    @property
    def sparsity(self) -> float:
        return self.skip.sparsity

    def to_dict(self) -> dict[str, Any]:
        return {
            "skip": list(self.skip),
            "accept": self.accept,
            "metric": self.metric,
            "sparsity": round(self.sparsity, 6),
        }

    @classmethod
    def from_dict(cls, data: object, num_layers: int, where: str) -> DomainConfig:
        """Raises MapError, which starts with `where`, for an unknown, missing or false field."""
        record = _record(data, _CONFIG_FIELDS, ("skip",), where)
        if not isinstance(record["skip"], list):
            raise MapError(f"{where}: skip must be a list of layers, got {record['skip']!r}")
        try:
            skip = SkipSet.parse(record["skip"], num_layers)
        except ValueError as error:
            raise MapError(f"{where}: {error}") from None
        sparsity = _number(record.get("sparsity"), f"{where}: sparsity")
        if sparsity is not None and abs(sparsity - skip.sparsity) > 1e-3:
            raise MapError(
                f"{where}: sparsity {sparsity} does not fit skip {skip} of {num_layers} layers, "
                f"which is {skip.sparsity:.6f}"
            )
        accept = _number(record.get("accept"), f"{where}: accept")
        return cls(skip, accept, _number(record.get("metric"), f"{where}: metric"))


@dataclass(frozen=True)
class DomainMap:
    """The chosen skip set of each domain (or task) for one target and drafter.

    `pareto` holds the alternatives a search found beside its choice; `provenance` says where
    the map comes from and is kept as it is.
    """

    model: str
    drafter: str
    num_layers: int
    scope: Scope = "verify"
    protocol: Protocol = "strict"
    domains: Mapping[str, DomainConfig] = field(default_factory=dict)
    pareto: Mapping[str, Sequence[DomainConfig]] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, config in self._all_configs():
            if config.skip.num_layers != self.num_layers:
                raise MapError(
                    f"{name}: skip set of a {config.skip.num_layers}-layer target "
                    f"in a map for {self.num_layers} layers"
                )

    def _all_configs(self) -> list[tuple[str, DomainConfig]]:
        chosen = list(self.domains.items())
        return chosen + [(name, one) for name, front in self.pareto.items() for one in front]

    def require(self, model: str, num_layers: int) -> None:
        """Raises MapError unless this map is for that model and layer count."""
        if not same_model(self.model, model):
            raise MapError(
                f"domain map is for model {self.model}, but the target is {model}; give the map "
                f"of this target, or leave domain_map out"
            )
        if self.num_layers != num_layers:
            raise MapError(
                f"domain map for {self.model} has {self.num_layers} layers, but the target "
                f"{model} has {num_layers}; give the map of this target"
            )

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "drafter": self.drafter,
            "num_layers": self.num_layers,
            "scope": self.scope,
            "protocol": self.protocol,
            "domains": {name: config.to_dict() for name, config in self.domains.items()},
            "pareto": {
                name: [config.to_dict() for config in front] for name, front in self.pareto.items()
            },
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_dict(cls, data: object, where: str = "domain map") -> DomainMap:
        """Raises MapError, which starts with `where`, for anything that is no map."""
        required = tuple(name for name in _MAP_FIELDS if name not in ("pareto", "provenance"))
        record = _record(data, _MAP_FIELDS, required, where)
        if record["schema"] != SCHEMA or isinstance(record["schema"], bool):
            raise MapError(
                f"{where}: schema {record['schema']!r} is unknown, this version reads {SCHEMA}"
            )
        layers = record["num_layers"]
        if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
            raise MapError(f"{where}: num_layers must be a whole number above 0, got {layers!r}")
        pareto: dict[str, tuple[DomainConfig, ...]] = {}
        for name, front in _mapping(record.get("pareto", {}), f"{where}: pareto").items():
            if not isinstance(front, list):
                raise MapError(f"{where}: pareto of {name} must be a list, got {front!r}")
            pareto[name] = tuple(
                DomainConfig.from_dict(one, layers, f"{where}: pareto of {name}") for one in front
            )
        return cls(
            model=_text(record["model"], f"{where}: model"),
            drafter=_text(record["drafter"], f"{where}: drafter"),
            num_layers=layers,
            scope=_one_of(record["scope"], SCOPES, f"{where}: scope"),
            protocol=_one_of(record["protocol"], PROTOCOLS, f"{where}: protocol"),
            domains={
                name: DomainConfig.from_dict(one, layers, f"{where}: domain {name}")
                for name, one in _mapping(record["domains"], f"{where}: domains").items()
            },
            pareto=pareto,
            provenance=_mapping(record.get("provenance", {}), f"{where}: provenance"),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON file in one step, so that no reader ever sees half of it."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_text(target, json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n")

    @classmethod
    def load(cls, source: str | os.PathLike[str]) -> DomainMap:
        """Read a map from a file, or by its packaged name (see `packaged_maps`).

        Raises MapError: no such map, unreadable file, or not a map.
        """
        path = _locate(str(source))
        where = f"domain map {source}"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
            raise MapError(f"{where} cannot be read: {reason}") from None
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MapError(
                f"{where} is no whole JSON file ({error}); it may have been cut off: write it again"
            ) from None
        return cls.from_dict(data, where)


def packaged_maps() -> tuple[str, ...]:
    """Names of the maps in the package, for example `published/vicuna-7b-v1.3-eagle`."""
    files = MAPS_DIR.rglob("*.json")
    return tuple(sorted(path.relative_to(MAPS_DIR).with_suffix("").as_posix() for path in files))


def find_packaged(model: str, drafter: str) -> tuple[str, DomainMap] | None:
    """Name and map of the packaged map of this pair, None where there is none.

    Maps in a folder, such as `published/`, are never found this way: they are chosen by name only.
    """
    for name in packaged_maps():
        if "/" in name:
            continue
        found = DomainMap.load(name)
        if same_model(found.model, model) and found.drafter == drafter:
            return name, found
    return None


def domain_of(task: str) -> str | None:
    """The domain a task name tells: `specbench_qa_fewshot` -> qa, `mmlu_anatomy` -> mmlu."""
    stem = task
    for prefix in _TASK_PREFIXES:
        stem = stem.removeprefix(prefix)
    for suffix in _TASK_SUFFIXES:
        stem = stem.removesuffix(suffix)
    if stem in DOMAINS:
        return stem
    return next((name for name in DOMAINS if stem.startswith(f"{name}_")), None)


@dataclass(frozen=True)
class SkipChoice:
    """The skip set one task gets; `domain` is None where the task has none, `why` one clause."""

    task: str
    domain: str | None
    skip: SkipSet
    why: str

    def __str__(self) -> str:
        layers = f"skips {self.skip} of" if len(self.skip) else "runs all"
        return f"{self.task}: {layers} {self.skip.num_layers} layers ({self.why})"


class SkipController:
    """Maps a task to its skip set: exact task name, else its domain, else dense.

    `used` remembers every answer by task name, for the record of the run.
    """

    def __init__(self, default: SkipSet, sets: Mapping[str, SkipSet] | None, source: str) -> None:
        self._default = default
        self._sets = sets
        self._source = source
        self.used: dict[str, SkipChoice] = {}

    @classmethod
    def fixed(cls, skip: SkipSet, why: str) -> SkipController:
        """The same set for every task."""
        return cls(skip, None, why)

    @classmethod
    def of_map(cls, domain_map: DomainMap, source: str) -> SkipController:
        """The sets of a map; `source` is how messages call it, for example its file name."""
        sets = {name: config.skip for name, config in domain_map.domains.items()}
        return cls(SkipSet.dense(domain_map.num_layers), sets, source)

    @property
    def sets(self) -> dict[str, SkipSet]:
        """The set of each task or domain named; `*` is the one every other task gets."""
        return {**(self._sets or {}), EVERY_OTHER_TASK: self._default}

    def knows(self, task: str, domain: str | None = None) -> bool:
        """Whether `choose` finds a set for this very task or its domain; a fixed set is for all."""
        domain = domain or domain_of(task)
        return self._sets is None or task in self._sets or domain in self._sets

    def choose(self, task: str, domain: str | None = None) -> SkipChoice:
        """The skip set of a task; `domain` overrides the one its name tells."""
        domain = domain or domain_of(task)
        choice = self._choose(task, domain)
        self.used[task] = choice
        return choice

    def _choose(self, task: str, domain: str | None) -> SkipChoice:
        if self._sets is None:
            return SkipChoice(task, domain, self._default, self._source)
        if task in self._sets:
            return SkipChoice(task, domain, self._sets[task], f"task {task} in {self._source}")
        if domain and domain in self._sets:
            return SkipChoice(
                task, domain, self._sets[domain], f"domain {domain} in {self._source}"
            )
        missing = f"domain {domain}" if domain else f"task {task}"
        if task == UNNAMED_TASK and not domain:
            missing = "set for requests without a task"
        return SkipChoice(task, domain, self._default, f"{self._source} has no {missing}: dense")


def _locate(source: str) -> Path:
    """File of a map given by path or by packaged name."""
    names = packaged_maps()
    if source in names:
        return MAPS_DIR / f"{source}.json"
    path = Path(source).expanduser()
    if path.exists():
        return path
    near = difflib.get_close_matches(source, names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"packaged maps: {', '.join(names)}"
    raise MapError(f"no domain map {source}: neither a file nor a packaged map; {hint}")


def same_model(first: str, second: str) -> bool:
    """True for equal ids, and where one is the bare name of the other, as for a local directory."""
    first, second = first.lower(), second.lower()
    if first == second:
        return True
    bare = "/" not in first or "/" not in second
    return bare and first.rsplit("/", 1)[-1] == second.rsplit("/", 1)[-1]


def _record(
    data: object, known: Sequence[str], required: Sequence[str], where: str
) -> dict[str, Any]:
    record = _mapping(data, where)
    for name in record:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise MapError(f"{where}: unknown field {name!r}; {hint}")
    for name in required:
        if name not in record:
            raise MapError(f"{where}: field {name!r} is missing")
    return record


def _mapping(data: object, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise MapError(f"{where} must be a JSON object, got {type(data).__name__}")
    return data


def _number(value: object, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise MapError(f"{where} must be a number, got {value!r}")
    return float(value)


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise MapError(f"{where} must be a text, got {value!r}")
    return value


def _one_of(value: object, allowed: tuple[T, ...], where: str) -> T:
    for item in allowed:
        if value == item:
            return item
    raise MapError(f"{where} must be one of {', '.join(allowed)}, got {value!r}")
