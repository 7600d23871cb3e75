"""The file of a search: every evaluation, one JSON line each, for one set of circumstances.

The first line holds all that an evaluation depends on beside its skip set and prompt; a ledger
made under other circumstances is refused. Lines are only ever appended. A line that a killed
process left unfinished is cut off. One process at a time holds a ledger. Costs are written
down, never read back: they belong to the run that took them. The seconds that an evaluation took
are read back, so that a search that finds it here knows them; ledgers of before have none.

May import: the standard library, filelock, tss_bench.types and tss_bench.search (layer L1 of
the design).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from filelock import FileLock, Timeout

from tss_bench.search.seconds import Taken
from tss_bench.search.table import EvaluationTable
from tss_bench.search.types import Evaluation
from tss_bench.types import SkipSet

SCHEMA = 1


class LedgerError(ValueError):
    """A ledger that cannot be used; one line, with the mend."""


@dataclass(frozen=True)
class Fingerprint:
    """All that accept lengths, metrics and losses depend on beside skip set and prompt.

    Every part is plain JSON: a text, a number, or mappings and lists of such. `data` must change
    when a calibration prompt, its place or its reference does (say, a content hash in order).
    """

    model: Any
    drafter: Any
    data: Any
    protocol: Any
    scope: Any
    versions: Any
    other: Mapping[str, Any] = field(default_factory=dict)

    def parts(self) -> dict[str, Any]:
        """As a JSON file would give them back."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self), sort_keys=True))
        return plain

    def digest(self) -> str:
        text = json.dumps(self.parts(), sort_keys=True)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()


class Ledger:
    """An open ledger: `table` is what it holds, `append` adds to both. Use it in a `with`.

    Raises LedgerError: held by another process, damaged, of another schema, or made under
    circumstances that differ from `fingerprint`, each of which is named.
    """

    def __init__(
        self, path: str | os.PathLike[str], fingerprint: Fingerprint, num_layers: int
    ) -> None:
        self.path = Path(path)
        self.table = EvaluationTable()
        self._fingerprint = fingerprint
        self._num_layers = num_layers
        self._machine = ""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(f"{self.path}.lock", timeout=0)
        try:
            self._lock.acquire()
        except Timeout:
            raise LedgerError(
                f"{self.path} is in use by another search; wait for it, or give another file"
            ) from None
        self._file: IO[bytes] | None = None
        try:
            self._file = self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._lock.release()

    def append(self, evaluation: Evaluation, run: str = "", taken: Taken | None = None) -> None:
        """Write one evaluation; `run` names the run that took a cost.

        The machine of `taken` must stand in the note of that run.
        """
        self._write({**to_record(evaluation, run), **_taken_record(taken)})
        self.table.add(evaluation, taken)

    def note(self, record: Mapping[str, Any]) -> None:
        """Write a line that is no evaluation: which run, with which strategy and rules.

        `machine` is where the evaluations below it were made.
        """
        self._write({"note": dict(record)})

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._file is None:
            raise LedgerError(f"{self.path} is closed")
        self._file.write(_line(record))
        self._file.flush()

    def _open(self) -> IO[bytes]:
        raw = self.path.read_bytes() if self.path.exists() else b""
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            warnings.warn(
                f"{self.path}: its last line is cut off ({len(raw) - len(whole)} bytes); "
                f"it is dropped and what it held is evaluated again",
                stacklevel=3,
            )
        lines = whole.splitlines()
        if lines:
            self._check_header(self._parse(lines[0], 1))
        for number, line in enumerate(lines[1:], start=2):
            self._read(self._parse(line, number), number)
        file = self.path.open("ab")
        file.truncate(len(whole))
        if not lines:
            file.write(_line(self._header()))
            file.flush()
        return file

    def _header(self) -> dict[str, Any]:
        return {
            "ledger": SCHEMA,
            "fingerprint": self._fingerprint.digest(),
            "num_layers": self._num_layers,
            "parts": self._fingerprint.parts(),
        }

    def _check_header(self, header: Mapping[str, Any]) -> None:
        if header.get("ledger") != SCHEMA:
            raise LedgerError(
                f"{self.path} is no ledger of this version (schema {header.get('ledger')!r}, "
                f"this one reads {SCHEMA}); give another file"
            )
        mine = self._header()
        changed = [
            f"{name} was {old}, now is {new}"
            for name, old, new in differences(
                {"num_layers": header.get("num_layers"), **header.get("parts", {})},
                {"num_layers": mine["num_layers"], **mine["parts"]},
            )
        ]
        if changed:
            raise LedgerError(
                f"{self.path} was made under other circumstances: {'; '.join(changed)}. "
                f"Give another file, or restore what changed"
            )

    def _read(self, record: Mapping[str, Any], number: int) -> None:
        if "note" in record:
            note = record["note"]
            self._machine = str(note.get("machine", "")) if isinstance(note, dict) else ""
            return
        try:
            taken = _taken(record, self._machine)
            self.table.add(from_record(record, self._num_layers), taken)
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(number, f"it is no evaluation ({error})") from None

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            record = json.loads(line)
        except ValueError as error:
            raise self._damaged(number, f"it is no JSON ({error})") from None
        if not isinstance(record, dict):
            raise self._damaged(number, "it is no JSON object")
        return record

    def _damaged(self, number: int, what: str) -> LedgerError:
        return LedgerError(
            f"{self.path}, line {number}: {what}; the file is damaged: take the line out, or give "
            f"another file"
        )


def to_record(evaluation: Evaluation, run: str = "") -> dict[str, Any]:
    """One evaluation as plain JSON; fields that are None are left out."""
    record: dict[str, Any] = {"skip": list(evaluation.skip)}
    fields = {name: getattr(evaluation, name) for name in ("accept", "metric", "loss", "cost")}
    given = {name: value for name, value in fields.items() if value is not None}
    if given.keys() - {"cost"}:
        record["prompts"] = list(evaluation.prompts)
    if "cost" in given:
        record["run"] = run
    return {**record, **given}


def from_record(record: Mapping[str, Any], num_layers: int) -> Evaluation:
    """The evaluation of `to_record`. Raises KeyError, TypeError or ValueError for other things."""

    def pairs(name: str) -> tuple[Any, ...] | None:
        values = record.get(name)
        return None if values is None else tuple((above, below) for above, below in values)

    metric = record.get("metric")
    return Evaluation(
        SkipSet.of(record["skip"], num_layers),
        tuple(record.get("prompts", ())),
        accept=pairs("accept"),
        metric=None if metric is None else tuple(metric),
        cost=record.get("cost"),
        loss=pairs("loss"),
    )


def _taken_record(taken: Taken | None) -> dict[str, Any]:
    return {} if taken is None else {"seconds": taken.seconds, "batch": taken.batch}


def _taken(record: Mapping[str, Any], machine: str) -> Taken | None:
    """What an evaluation took; None in a line of before. Raises KeyError, TypeError, ValueError."""
    if "seconds" not in record:
        return None
    seconds, batch = float(record["seconds"]), int(record["batch"])
    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds must be a number from 0, got {seconds}")
    return Taken(seconds, batch, machine)


def _line(record: Mapping[str, Any]) -> bytes:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8") + b"\n"


def differences(old: object, new: object, name: str = "") -> Iterator[tuple[str, str, str]]:
    """Dotted name, old and new value of every leaf in which two JSON values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            inner = f"{name}.{key}" if name else str(key)
            yield from differences(old.get(key), new.get(key), inner)
    elif old != new:
        yield name, _shown(old), _shown(new)


def _shown(value: object) -> str:
    return "absent" if value is None else json.dumps(value, ensure_ascii=False)
