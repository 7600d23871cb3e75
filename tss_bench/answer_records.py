"""Answers that survive a kill: one append-only file of JSON lines, keyed by all they depend on.

Two kinds of lines: `settings` of a configuration, once, under its key; and one line an answer,
with the configuration's key, the task and the row. Answers of other configurations are other
keys of the same file. Times are not kept: answers may come from several runs.

May import: filelock, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from filelock import FileLock, Timeout

from tss_bench.types import GeneratedText
from tss_bench.weights.cache import say

FILE = "answers.jsonl"

_TIMED = frozenset(
    {"tokens_per_second", "decode_tokens_per_second", "steps_per_second", "verify_ms"}
)


def digest(value: Any) -> str:
    """The key of a JSON-like value: SHA-256 of its text, names sorted."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def answer_record(answer: GeneratedText, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of an answer: metrics as the task gave them, counts, ids and text by turn.

    Figures with a time in them are left out.
    """
    return {
        "metrics": {name: value for name, value in metrics.items() if name not in _TIMED},
        "accept_lengths": [list(turn.accept_lengths) for turn in answer.stats],
        "new_tokens": [turn.new_tokens for turn in answer.stats],
        "verify_steps": [turn.verify_steps for turn in answer.stats],
        "stop": [turn.stop for turn in answer.stats],
        "ids": [list(ids) for ids in answer.ids],
        "turns": list(answer.turns),
    }


class AnswerRecords:
    """The records in `directory`, open for one process at a time; a context manager.

    A last line that a kill left torn is cut off, with a warning. Raises ValueError where another
    process writes to the directory and for a line that is no record.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE
        self._lock = FileLock(directory / f"{FILE}.lock")
        self._settings: set[str] = set()
        self._answers: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"another process writes to {self.path.parent}; wait for it or give another --out"
            ) from None
        try:
            self._read()
            self._file = self.path.open("a", encoding="utf-8")
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.release()

    def find(self, configuration: str, task: str, row: str) -> dict[str, Any] | None:
        """The record of one answer, or None; `configuration` and `row` are digests."""
        return self._answers.get((configuration, task, row))

    def add(
        self, settings: Mapping[str, Any], task: str, row: str, record: Mapping[str, Any]
    ) -> None:
        """Write one answer's record; it is on its way to the disk when this returns."""
        configuration = digest(settings)
        if configuration not in self._settings:
            self._write({"configuration": configuration, "settings": settings})
        self._write({"configuration": configuration, "task": task, "row": row, **record})

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None, "use the records in a with statement"
        text = json.dumps(line, ensure_ascii=False)
        self._file.write(text + "\n")
        self._file.flush()
        # Read back, so that a record is the same whether this run made it or an earlier one.
        self._take(json.loads(text))

    def _read(self) -> None:
        if not self.path.is_file():
            return
        data = self.path.read_bytes()
        *lines, torn = data.split(b"\n")
        if torn:
            say(f"the last line of {self.path} is torn: it is dropped and computed again")
            with self.path.open("r+b") as file:
                file.truncate(len(data) - len(torn))
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {self.path} is no record of an answer; delete the line or "
                    f"give another --out"
                ) from error

    def _take(self, line: dict[str, Any]) -> None:
        if "settings" in line:
            self._settings.add(line["configuration"])
        else:
            key = (line.pop("configuration"), line.pop("task"), line.pop("row"))
            self._answers[key] = line
