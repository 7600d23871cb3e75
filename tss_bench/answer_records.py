"""Answers that survive a kill: one append-only file of JSON lines, keyed by all they depend on.

Two kinds of lines: `settings` of a configuration, once, under its key; and one line an answer,
with the configuration's key, the task and the row. Answers of other configurations are other
keys of the same file. Times are not kept: answers may come from several runs.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tss_bench.json_lines import JsonLines
from tss_bench.types import GeneratedText

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

    A torn last line is dropped, see `JsonLines`. Raises ValueError where another process writes
    to the directory and for a line that is no record.
    """

    def __init__(self, directory: Path) -> None:
        self._settings: set[str] = set()
        self._answers: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._lines = JsonLines(directory / FILE, self._take, "record of an answer")

    def __enter__(self) -> Self:
        self._lines.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lines.__exit__(kind, error, trace)

    def find(self, configuration: str, task: str, row: str) -> dict[str, Any] | None:
        """The record of one answer, or None; `configuration` and `row` are digests."""
        return self._answers.get((configuration, task, row))

    def add(
        self, settings: Mapping[str, Any], task: str, row: str, record: Mapping[str, Any]
    ) -> None:
        """Write one answer's record; it is on its way to the disk when this returns."""
        configuration = digest(settings)
        if configuration not in self._settings:
            self._lines.write({"configuration": configuration, "settings": settings})
        self._lines.write({"configuration": configuration, "task": task, "row": row, **record})

    def _take(self, line: dict[str, Any]) -> None:
        if "settings" in line:
            self._settings.add(line["configuration"])
        else:
            key = (line.pop("configuration"), line.pop("task"), line.pop("row"))
            self._answers[key] = line
