"""What `tss-bench run` keeps while it runs: one file of JSON lines, one line a request.

A line holds the answers of all adapters to one request, so that what is compared was timed side
by side in one process: a kill loses the whole round, never half of it. The first line holds the
settings that every answer depends on; a run with others is refused. No text of a data set is
written, only digests of it.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tss_bench.answer_records import digest
from tss_bench.json_lines import JsonLines
from tss_bench.types import GeneratedText, GenerationStats

FILE = "run.jsonl"
SCHEMA = 1

_SHOWN = 60
_WINDOW = 16


class RunError(ValueError):
    """A run that cannot be done, or that did not go well; one line, with the mend."""


@dataclass(frozen=True)
class Record:
    """What one adapter made of one request: an answer, or the error of a `failed` one.

    `memory` is the peak in bytes (of the device, or of the whole process on a CPU), with all
    adapters of the run loaded.
    """

    answer: GeneratedText | None
    failed: str | None
    memory: int

    def as_json(self) -> dict[str, Any]:
        """As it stands in the file; `of_json` reads it."""
        kept: dict[str, Any] = {"failed": self.failed, "memory": self.memory}
        if self.answer is not None:
            kept["ids"] = [list(ids) for ids in self.answer.ids]
            kept["turns"] = list(self.answer.turns)
            kept["stats"] = [asdict(turn) for turn in self.answer.stats]
            kept["config"] = self.answer.config
        return kept

    @classmethod
    def of_json(cls, kept: Mapping[str, Any]) -> Record:
        """Raises KeyError and TypeError for what `as_json` does not write."""
        if kept["failed"] is not None:
            return cls(None, kept["failed"], kept["memory"])
        stats = tuple(GenerationStats.from_dict(turn) for turn in kept["stats"])
        turns, ids = tuple(kept["turns"]), tuple(tuple(ids) for ids in kept["ids"])
        answer = GeneratedText(turns[-1], stats, turns, kept["config"], ids)
        return cls(answer, None, kept["memory"])


@dataclass(frozen=True)
class Round:
    """The records of one request by adapter, the process that made them, and when (Unix time)."""

    records: Mapping[str, Record]
    process: str
    time: float

    @property
    def failed(self) -> bool:
        """Whether an adapter failed."""
        return any(record.failed is not None for record in self.records.values())


class RunRecords:
    """The rounds of the run in `directory`; a context manager.

    `settings` is all that every answer depends on. Raises RunError where the directory holds a
    run of others, and ValueError as `JsonLines` does.
    """

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        # In the form that the file gives back.
        self._settings: dict[str, Any] = json.loads(json.dumps(settings))
        self._lines = JsonLines(directory / FILE, self._take, "record of a run")
        self._header: dict[str, Any] | None = None
        self._rounds: dict[tuple[str, str, int], Round] = {}
        self._process = digest([time.time_ns(), id(self)])[:12]

    def __enter__(self) -> Self:
        self._lines.__enter__()
        try:
            if self._header is None:
                started = datetime.now().isoformat(timespec="microseconds")
                header = {"schema": SCHEMA, "started": started, "settings": self._settings}
                self._lines.write(header)
            self._require_same_settings()
        except BaseException:
            self._lines.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lines.__exit__(kind, error, trace)

    @property
    def started(self) -> datetime:
        """When the first process of this run began, in local time."""
        assert self._header is not None, "use the records in a with statement"
        return datetime.fromisoformat(self._header["started"])

    def find(self, task: str, row: str, repeat: int) -> Round | None:
        """The latest round of a request; `row` is its digest."""
        return self._rounds.get((task, row, repeat))

    def add(self, task: str, row: str, repeat: int, records: Mapping[str, Record]) -> None:
        """Write the answers to one request."""
        answers = {name: record.as_json() for name, record in records.items()}
        place = {"task": task, "row": row, "repeat": repeat}
        made = {"process": self._process, "time": time.time()}
        self._lines.write({**place, **made, "answers": answers})

    def _take(self, line: dict[str, Any]) -> None:
        if "settings" in line:
            self._header = line
            return
        records = {name: Record.of_json(kept) for name, kept in line["answers"].items()}
        key = (line["task"], line["row"], line["repeat"])
        self._rounds[key] = Round(records, line["process"], line["time"])

    def _require_same_settings(self) -> None:
        assert self._header is not None
        if self._header["schema"] != SCHEMA:
            raise RunError(
                f"{self._lines.path} has schema {self._header['schema']}, this version reads "
                f"{SCHEMA}; give another --out"
            )
        there, here = _flat(self._header["settings"]), _flat(self._settings)
        changed = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        if changed:
            told = "; ".join(
                f"{key}: there {_shown(there.get(key))}, here {_shown(here.get(key))}"
                for key in changed
            )
            raise RunError(
                f"{self._lines.path.parent} holds a run with other settings ({told}); give "
                f"another --out, or go back to those settings to resume it"
            )


def one_line(error: Exception, doc: Mapping[str, Any]) -> str:
    """Type and message of an error in one line, without a message that quotes the row `doc`."""
    message = " ".join(str(error).split())
    name = type(error).__name__
    if not message:
        return name
    return f"{name}: {'(its message quotes the row)' if _quotes(message, doc) else message}"


_NOT_TEXT = frozenset({"id", "domain", "prompt_style", "content_hash", "data_source"})


def _quotes(message: str, doc: Mapping[str, Any]) -> bool:
    """Whether a text of the row, or a stretch of 16 letters of one, stands in the message."""
    own = [value for name, value in doc.items() if name not in _NOT_TEXT]
    texts = [" ".join(text.split()) for text in texts_in(own)]
    starts = range(len(message) - _WINDOW + 1)
    stretches = {message[start : start + _WINDOW] for start in starts}
    whole = any(text in message for text in texts if len(text) > 3)
    return whole or any(part in text for part in stretches for text in texts)


def texts_in(value: Any) -> list[str]:
    """All strings in a JSON-like value, names excluded."""
    if isinstance(value, str):
        return [str(value)]
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in texts_in(item)]
    if isinstance(value, list | tuple):
        return [text for item in value for text in texts_in(item)]
    return []


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """A nested mapping with its names joined by dots."""
    if isinstance(value, Mapping) and value:
        prefix = f"{name}." if name else ""
        parts = [_flat(item, f"{prefix}{key}") for key, item in value.items()]
        return {key: item for part in parts for key, item in part.items()}
    return {name: value}


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
