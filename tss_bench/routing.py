"""Nearest-neighbour routing: the domain of a prompt, by its nearest prompts of known domains.

A pure index and a pure rule over arrays; knows neither models nor tasks nor skip sets. Routing
skip sets by nearest prompts in the target's hidden states is KNN-SSD's idea (arXiv 2505.16162).

May import: the standard library, numpy, safetensors, tss_bench.files (layer L2 of the design).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tss_bench.files import replace

Pooling = Literal["last", "mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

Vector = NDArray[np.float32]
NEIGHBOURS = 3
"""Neighbours that vote."""

QUANTILE = 0.9
"""Share of the known prompts, each compared with other rows of its domain, within a threshold."""

NO_THRESHOLD = (
    "no domain of the router index has two rows of form {form}, so no threshold can be calibrated; "
    "give router_threshold"
)

_SCHEMA = "1"
_NAME = "features"


class IndexFileError(ValueError):
    """An index file that is torn or of something else; one line."""


@dataclass(frozen=True, eq=False)
class RouterIndex:
    """Features of prompts whose domains are known.

    `features` is float32 [n, H]; of entry i, `domains[i]` is the domain, `forms[i]` the form of the
    prompt (prompts of two forms are not compared) and `rows[i]` the content hash of its row.
    `fingerprint` names all that the features depend on, `sources` where each domain's rows come
    from. Raises ValueError for no entry, lengths that differ and a feature without direction.
    """

    features: Vector
    domains: tuple[str, ...]
    forms: tuple[str, ...]
    rows: tuple[str, ...]
    fingerprint: str
    sources: Mapping[str, str]

    def __post_init__(self) -> None:
        count = len(self.domains)
        counts = {len(self.features), count, len(self.forms), len(self.rows)}
        if not count or len(counts) > 1 or self.features.ndim != 2:
            raise ValueError(
                f"an index needs entries, and of each a feature, domain, form and row; got "
                f"features {self.features.shape} and {count}, {len(self.forms)}, {len(self.rows)}"
            )
        lengths = np.linalg.norm(self.features, axis=-1)
        bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
        if bad.size:
            raise ValueError(f"entry {bad[0]} of {self.domains[bad[0]]} has no direction")

    def without(self, domain: str) -> RouterIndex:
        """The index of the other domains."""
        return self._select([name != domain for name in self.domains])

    def of_form(self, form: str) -> RouterIndex:
        """The entries of one form."""
        return self._select([name == form for name in self.forms])

    def _select(self, kept: Sequence[bool]) -> RouterIndex:
        domains = tuple(compress(self.domains, kept))
        return RouterIndex(
            self.features[np.array(kept)],
            domains,
            tuple(compress(self.forms, kept)),
            tuple(compress(self.rows, kept)),
            self.fingerprint,
            {name: source for name, source in self.sources.items() if name in domains},
        )

    def save(self, path: Path) -> None:
        """Write a safetensors file in one step, so that no reader ever sees half of it."""
        record = {
            "schema": _SCHEMA,
            "fingerprint": self.fingerprint,
            "domains": json.dumps(self.domains),
            "forms": json.dumps(self.forms),
            "rows": json.dumps(self.rows),
            "sources": json.dumps(dict(self.sources)),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        data = save({_NAME: np.ascontiguousarray(self.features)}, record)
        replace(path, lambda part: part.write_bytes(data))

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> RouterIndex:
        """The index of that fingerprint.

        Raises IndexFileError for a torn file and for one of another fingerprint,
        FileNotFoundError where there is none.
        """
        try:
            with safe_open(path, framework="numpy") as file:
                record: dict[str, str] = file.metadata() or {}
                features = file.get_tensor(_NAME)
            found = cls(
                features,
                tuple(json.loads(record["domains"])),
                tuple(json.loads(record["forms"])),
                tuple(json.loads(record["rows"])),
                record["fingerprint"],
                json.loads(record["sources"]),
            )
        except FileNotFoundError:
            raise
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise IndexFileError(f"{path} is no whole router index ({error})") from None
        if record.get("schema") != _SCHEMA or found.fingerprint != fingerprint:
            raise IndexFileError(f"{path} is the router index of another model or other rows")
        return found


@dataclass(frozen=True)
class Route:
    """The domain that the vote chose, `nearest`, and how near: `distance` is the cosine distance
    (0 … 2) to its nearest prompt, `threshold` the largest one that is no stranger's."""

    nearest: str
    distance: float
    threshold: float

    @property
    def domain(self) -> str | None:
        """The prompt's domain; None for a stranger."""
        return self.nearest if self.distance <= self.threshold else None


class Router:
    """Routes a prompt's feature [H] by the vote of its `neighbours` nearest entries, of one form.

    Of domains with as many votes, the one with the nearest entry wins, of entries as near the
    first. `threshold` None: the `QUANTILE` of the distances from each entry to the nearest one of
    another row of its domain. Raises ValueError for more neighbours than entries, and where there
    is no distance to calibrate a threshold by.
    """

    def __init__(
        self, index: RouterIndex, neighbours: int = NEIGHBOURS, threshold: float | None = None
    ) -> None:
        if not 1 <= neighbours <= len(index.domains):
            raise ValueError(
                f"router_k must be 1 to {len(index.domains)}, the number of prompts of form "
                f"{_forms(index)} in the index, got {neighbours}"
            )
        self._index = index
        self._neighbours = neighbours
        self._units = _unit(index.features)
        self.threshold = _calibrated(index, self._units) if threshold is None else threshold

    def __call__(self, feature: Vector) -> Route:
        """Raises ValueError for a feature of another width, or of no direction."""
        width = self._units.shape[1]
        if feature.shape != (width,) or not np.isfinite(feature).all() or not feature.any():
            raise ValueError(f"the index holds features [{width}], got {feature.shape}: {feature}")
        distances = 1 - self._units @ _unit(feature)
        nearest = np.argsort(distances, kind="stable")[: self._neighbours]
        # Counter keeps the order of first occurrence: of equal counts the nearest comes first.
        votes = Counter(self._index.domains[place] for place in nearest)
        winner = votes.most_common(1)[0][0]
        first = next(place for place in nearest if self._index.domains[place] == winner)
        return Route(winner, max(0.0, float(distances[first])), self.threshold)


def _forms(index: RouterIndex) -> str:
    return ", ".join(dict.fromkeys(index.forms))


def _unit(features: Vector) -> Vector:
    wide = features.astype(np.float64)
    unit: Any = wide / np.linalg.norm(wide, axis=-1, keepdims=True)
    return unit


def _calibrated(index: RouterIndex, units: Vector) -> float:
    """The threshold that the index gives by itself; see `Router`."""
    names, rows = np.array(index.domains), np.array(index.rows)
    others = (names[:, None] == names) & (rows[:, None] != rows)
    distances = np.where(others, 1 - units @ units.T, np.inf).min(axis=1)
    known = distances[np.isfinite(distances)]
    if not known.size:
        raise ValueError(NO_THRESHOLD.format(form=_forms(index)))
    return float(np.quantile(known, QUANTILE))
