"""Finds what a report is made of: results and samples of lm-eval, domain maps, ledgers of a search.

Files are told apart by what is in them, so folders can be mixed. Places are named relative to the
given folders: a report says nothing of the machine it was made on.

May import: the standard library, tss_bench.{types,domains,search} (layer L2 of the design).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from tss_bench.domains import DomainMap, MapError
from tss_bench.search import EvaluationTable
from tss_bench.search.ledger import SCHEMA, from_record

_DATE = r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d+)?"
_RESULTS = re.compile(rf".+_(?P<date>{_DATE})\.json")
_SAMPLES = re.compile(rf"samples_(?P<task>.+)_(?P<date>{_DATE})\.jsonl")


@dataclass(frozen=True)
class ResultFile:
    """A results file of lm-eval; `samples` holds the lines of each task's samples file."""

    place: str
    name: str
    date: str
    data: Mapping[str, Any]
    samples: Mapping[str, tuple[Mapping[str, Any], ...]]


@dataclass(frozen=True)
class LedgerFile:
    """A search's evaluations of one task, read without taking its lock."""

    name: str
    fingerprint: str
    parts: Mapping[str, Any]
    num_layers: int
    table: EvaluationTable


@dataclass(frozen=True)
class Inputs:
    """What was found, in the order of the places; `notes` says what could not be used, and why."""

    results: tuple[ResultFile, ...]
    maps: tuple[tuple[str, DomainMap], ...]
    ledgers: tuple[LedgerFile, ...]
    notes: tuple[str, ...]


def find(paths: Sequence[Path]) -> Inputs:
    """Read all files under `paths` (folders or files).

    Raises ValueError for a path that is not there, a results or samples file that is damaged,
    and where there is no results file at all.
    """
    files = dict(_walk(paths))
    notes: list[str] = []
    results, maps, ledgers = [], [], []
    for label, path in files.items():
        if path.suffix == ".jsonl":
            ledger = _ledger(label, path, notes)
            ledgers += [ledger] if ledger else []
            continue
        data = _json(label, path, notes)
        if "results" in data and isinstance(data.get("configs"), Mapping):
            results.append(_result(label, path, data, notes))
        elif {"domains", "drafter", "num_layers"} <= data.keys():
            maps += _map(label, data, notes)
    if not results:
        given = ", ".join(map(str, paths)) or "no path"
        raise ValueError(
            f"{given}: no results file of lm-eval; give the folder that was --output_path (with "
            f"--log_samples) or --out of tss-bench run"
        )
    return Inputs(tuple(results), tuple(maps), tuple(ledgers), tuple(notes))


def loads(raw: bytes) -> Any:
    """The value of a JSON text, with `?` for halves of characters, which no file can hold.

    Raises ValueError for what is no JSON.
    """
    text = raw.decode("utf-8", "replace")
    value = json.loads(text)
    if "\\ud" in text.lower():
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _walk(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Label and path of each JSON file, each file once, sorted within each given path.

    A label begins with the name of the given folder (of a file: the folder it lies in), with a
    number behind it where another one of that name came before.
    """
    seen: set[Path] = set()
    roots: dict[Path, str] = {}
    for given in paths:
        root = given.expanduser()
        if not root.exists():
            raise ValueError(f"{given} does not exist; give folders or files with results")
        base = root.resolve()
        found = [base] if base.is_file() else [*base.rglob("*.json"), *base.rglob("*.jsonl")]
        folder = base.parent if base.is_file() else base
        if folder not in roots:
            names = (folder.name, *(f"{folder.name} ({n})" for n in range(2, len(roots) + 3)))
            roots[folder] = next(name for name in names if name not in roots.values())
        for path in sorted(found):
            if path not in seen and path.is_file():
                seen.add(path)
                yield (PurePosixPath(roots[folder]) / path.relative_to(folder)).as_posix(), path


def _json(label: str, path: Path, notes: list[str]) -> Mapping[str, Any]:
    try:
        data = loads(path.read_bytes())
    except ValueError as error:
        if _RESULTS.fullmatch(path.name):
            raise ValueError(
                f"{label} is no whole JSON file ({error}); it may have been cut off: take it away "
                f"or run again"
            ) from None
        notes.append(f"{label} is no JSON and was left out")
        return {}
    return data if isinstance(data, dict) else {}


def _result(label: str, path: Path, data: Mapping[str, Any], notes: list[str]) -> ResultFile:
    match = _RESULTS.fullmatch(path.name)
    date = match["date"] if match else ""
    samples = {}
    for beside in sorted(path.parent.glob(f"samples_*_{date}.jsonl")):
        named = _SAMPLES.fullmatch(beside.name)
        if named and named["date"] == date:
            where = (PurePosixPath(label).parent / beside.name).as_posix()
            samples[named["task"]] = _lines(where, beside, notes)
    parent = PurePosixPath(label).parent.as_posix()
    missing = sorted(data["configs"].keys() - samples.keys())
    if missing:
        notes.append(
            f"{label} has no samples of {', '.join(missing)}, so these are left out "
            f"(lm_eval --log_samples writes them)"
        )
    return ResultFile(parent, label, date, data, samples)


def _lines(label: str, path: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    """The objects of a JSON lines file; a last line that a kill left torn is noted, not read."""
    *whole, torn = path.read_bytes().split(b"\n")
    found = []
    for number, line in enumerate(whole, 1):
        if line.strip():
            found.append(_object(label, number, line))
    if torn.strip():
        try:
            found.append(_object(label, len(whole) + 1, torn))
        except ValueError:
            notes.append(f"{label}: its last line is cut off and was left out")
    return tuple(found)


def _object(label: str, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        value = loads(line)
    except ValueError as error:
        raise ValueError(
            f"{label}, line {number}: no JSON ({error}); take the line out or run again"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{label}, line {number}: no JSON object; take the line out or run again")
    return value


def _map(label: str, data: Mapping[str, Any], notes: list[str]) -> list[tuple[str, DomainMap]]:
    try:
        return [(label, DomainMap.from_dict(data, label))]
    except MapError as error:
        notes.append(f"{error}; it was left out")
        return []


def _ledger(label: str, path: Path, notes: list[str]) -> LedgerFile | None:
    """The ledger in a JSON lines file; None for a file of another kind."""
    with path.open("rb") as file:
        if not file.read(16).startswith(b'{"ledger":'):
            return None
    lines = _lines(label, path, notes)
    header = lines[0] if lines else {}
    if header.get("ledger") != SCHEMA:
        notes.append(f"{label} is a ledger of another version and was left out")
        return None
    table, layers = EvaluationTable(), int(header["num_layers"])
    for number, line in enumerate(lines[1:], 2):
        if "note" in line:
            continue
        try:
            table.add(from_record(line, layers))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{label}, line {number}: no evaluation ({error})") from None
    return LedgerFile(label, str(header["fingerprint"]), header["parts"], layers, table)
