"""One evaluation row, and how the rows of each public file format become one.

Knows file formats only: not where files lie, not which rows belong to which split.

May import: the standard library (layer L1 of the design).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)
"""The eight categories of Spec-Bench's question file that make up `mt_bench`."""

LETTERS = "ABCD"

Records = Iterable[tuple[str, Mapping[str, Any]]]
"""Parsed records, each with the place it comes from ("question.jsonl, row 3") for messages."""


class DataError(ValueError):
    """Data that is missing, unreadable or not what it should be; one line, with the mend."""


@dataclass(frozen=True)
class Row:
    """One evaluation item.

    `turns` are the user's messages as the file has them; `references` may be empty (such a row
    counts for accept length, not for the metric); `choices` and `answer` (a letter) are set
    for multiple choice only.
    """

    id: str
    domain: str
    turns: tuple[str, ...]
    references: tuple[str, ...]
    choices: tuple[str, ...] = ()
    answer: str = ""

    @property
    def content_hash(self) -> str:
        """sha256 over turns and choices, white space folded: equal text, equal hash."""
        folded = [[" ".join(text.split()) for text in part] for part in (self.turns, self.choices)]
        return hashlib.sha256(json.dumps(folded).encode()).hexdigest()


def parse_jsonl(data: bytes, name: str) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a JSON-lines file, each with its place for messages.

    Raises DataError naming file and line for text that is not UTF-8, a line that is no whole
    JSON object (a torn file), or a file without rows.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is no UTF-8 text (byte {error.start}); get it again") from None
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{where} is no whole JSON object ({error.msg}); the file may have been cut off: "
                f"get it again"
            ) from None
        if not isinstance(record, dict):
            raise DataError(f"{where} is no JSON object but {type(record).__name__}")
        records.append((where, record))
    if not records:
        raise DataError(f"{name} has no rows; get it again")
    return records


def specbench_rows(
    records: Records, domain: str, answers: Mapping[str, Sequence[str]]
) -> list[Row]:
    """Rows of one domain of a file in Spec-Bench's format.

    `answers` maps `question_key` of an NQ-open question to its answers: the references of the
    qa rows, which have none of their own in the official file.
    """
    categories = MT_BENCH_CATEGORIES | {domain} if domain == "mt_bench" else {domain}
    rows = []
    for where, record in records:
        if _field(record, "category", str, where) not in categories:
            continue
        turns = _texts(record, "turns", where)
        references = tuple(_flatten(record.get("reference"), where))
        if domain == "qa" and not references:
            references = tuple(answers.get(question_key(turns[0]), ()))
        rows.append(Row(str(_value(record, "question_id", where)), domain, turns, references))
    return rows


def nq_open_rows(records: Records) -> list[Row]:
    """Rows of an NQ-open file: `question`, `answer` (a list)."""
    return [
        Row(
            id=f"nq_open-{index}",
            domain="nq_open",
            turns=(_prompt(record, "question", where),),
            references=_texts(record, "answer", where),
        )
        for index, (where, record) in enumerate(records)
    ]


def mmlu_rows(records: Records) -> list[Row]:
    """Rows of an MMLU file: `question`, `choices` (four), `answer` (0 … 3)."""
    rows = []
    for index, (where, record) in enumerate(records):
        choices = _texts(record, "choices", where)
        if len(choices) != len(LETTERS):
            raise DataError(f"{where}: {len(choices)} choices, there must be {len(LETTERS)}")
        answer = _field(record, "answer", int, where)
        if not 0 <= answer < len(LETTERS):
            raise DataError(f"{where}: answer {answer} is not in 0 to {len(LETTERS) - 1}")
        question = _prompt(record, "question", where)
        letter = LETTERS[answer]
        rows.append(Row(f"mmlu-{index}", "mmlu", (question,), (letter,), choices, letter))
    return rows


def question_key(question: str) -> str:
    """Lower-case letters and digits only: how Spec-Bench questions are found in NQ-open."""
    return re.sub(r"[^a-z0-9]", "", question.lower())


def answers_by_question(records: Records) -> dict[str, tuple[str, ...]]:
    """`question_key` -> answers of an NQ-open file; the first of equal questions wins."""
    answers: dict[str, tuple[str, ...]] = {}
    for row in nq_open_rows(records):
        answers.setdefault(question_key(row.turns[0]), row.references)
    return answers


def _value(record: Mapping[str, Any], name: str, where: str) -> Any:
    if name not in record:
        raise DataError(f"{where}: field {name!r} is missing")
    return record[name]


def _field(record: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    value = _value(record, name, where)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise DataError(f"{where}: field {name!r} must be {kind.__name__}, got {value!r:.60}")
    return value


def _prompt(record: Mapping[str, Any], name: str, where: str) -> str:
    text: str = _field(record, name, str, where)
    if not text.strip():
        raise DataError(f"{where}: field {name!r} is empty, so there is nothing to ask")
    return text


def _texts(record: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    values = _field(record, name, list, where)
    if not values or not all(isinstance(value, str) and value.strip() for value in values):
        raise DataError(f"{where}: field {name!r} must be a list of texts, none empty")
    return tuple(values)


def _flatten(value: Any, where: str) -> list[str]:
    """References as a flat list: Spec-Bench nests those of rag once more; empty ones go."""
    if value is None:
        return []
    if isinstance(value, str):
        return [value] if value.strip() else []
    if not isinstance(value, list):
        raise DataError(f"{where}: field 'reference' must be texts in lists, got {value!r:.60}")
    return [text for item in value for text in _flatten(item, where)]
