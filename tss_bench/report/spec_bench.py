"""Answer files of Spec-Bench (github.com/hemingkx/Spec-Bench): write, read, compare.

A file has one JSON line a question: `question_id`, `category`, `answer_id`, `model_id`,
`choices` (`index`, `turns`, `decoding_steps`, `new_tokens`, `wall_time`, `accept_lengths`),
`tstamp`. Two files are compared as its `evaluation/speed.py` does, with two differences: files
of different questions are refused, and new tokens are those that each file counted (speed.py
tokenizes the baseline's text again).

May import: tabulate, tss_bench.{data,files} (layer L2 of the design).
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from tss_bench.data.rows import MT_BENCH_CATEGORIES, DataError, parse_jsonl
from tss_bench.files import replace_text

CATEGORIES = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
OVERALL = "overall"

# What its tools write as the answer to a question that failed, beside the numbers of the
# question before it.
_FAILED = "ERROR"
_NAMED = 8


class AnswerFileError(ValueError):
    """An answer file that cannot be read, written or compared; one line, with the place."""


@dataclass(frozen=True)
class Choice:
    """One answer, with a list entry a turn; `wall_time` in seconds.

    `accept_lengths` holds the emitted ids of each verification step of all turns. Raises
    AnswerFileError for lists of different lengths, counts below 0 and times that are none.
    """

    index: int
    turns: tuple[str, ...]
    decoding_steps: tuple[int, ...]
    new_tokens: tuple[int, ...]
    wall_time: tuple[float, ...]
    accept_lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        lengths = {
            name: len(getattr(self, name))
            for name in ("turns", "decoding_steps", "new_tokens", "wall_time")
        }
        if len(set(lengths.values())) > 1 or not self.turns:
            told = ", ".join(f"{count} {name}" for name, count in lengths.items())
            raise AnswerFileError(f"an answer needs one of each for every turn, it has {told}")
        counts = (*self.decoding_steps, *self.new_tokens, *self.accept_lengths)
        if not all(_is_count(count) for count in counts):
            raise AnswerFileError("steps, new_tokens and accept_lengths must be whole numbers")
        if not all(_is_time(seconds) for seconds in self.wall_time) or self.seconds <= 0:
            raise AnswerFileError(f"wall_time must be seconds above 0, got {list(self.wall_time)}")

    @property
    def seconds(self) -> float:
        """Of all turns."""
        return math.fsum(self.wall_time)

    @property
    def tokens(self) -> int:
        """New tokens of all turns."""
        return sum(self.new_tokens)


@dataclass(frozen=True)
class Answer:
    """One line of an answer file; `tstamp` is Unix time."""

    question_id: int | str
    category: str
    answer_id: str
    model_id: str
    choices: tuple[Choice, ...]
    tstamp: float

    @property
    def task(self) -> str:
        """The category as Spec-Bench reports it: its eight MT-bench categories are one."""
        return "mt_bench" if self.category in MT_BENCH_CATEGORIES else self.category


def write_answers(path: Path, answers: Sequence[Answer]) -> None:
    """Write a file in one step. Raises AnswerFileError for a question that stands twice."""
    _require_unique([answer.question_id for answer in answers], str(path))
    lines = [json.dumps(asdict(answer), ensure_ascii=False) + "\n" for answer in answers]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, "".join(lines))


def read_answers(path: Path) -> list[Answer]:
    """The lines of a file, ours or one of Spec-Bench's tools.

    Raises AnswerFileError naming file and line for a field that is missing or of another kind,
    for an answer whose lists differ in length, and for a question that stands twice.
    """
    try:
        records = parse_jsonl(path.read_bytes(), str(path))
    except OSError as error:
        raise AnswerFileError(f"{path} cannot be read ({error.strerror})") from None
    except DataError as error:
        raise AnswerFileError(str(error)) from None
    answers = [_answer(record, where) for where, record in records]
    _require_unique([answer.question_id for answer in answers], str(path))
    return answers


def compare(answers: Sequence[Answer], baseline: Sequence[Answer]) -> list[dict[str, Any]]:
    """One row a category that occurs, and one over all; the first choice of each answer counts.

    `tokens_per_second` and `baseline_tokens_per_second` are means over questions and `speedup`
    is their ratio, as in speed.py; `pooled_speedup` is the ratio of all tokens over all seconds,
    as everywhere else here. The accept lengths are means over steps, None without a step.
    Raises AnswerFileError where the two are not about the same questions.
    """
    require_same_questions(answers, baseline)
    others = {str(answer.question_id): answer for answer in baseline}
    pairs = [(answer, others[str(answer.question_id)]) for answer in answers]
    rows = []
    for task in _tasks(answers):
        chosen = [pair for pair in pairs if task in (pair[0].task, OVERALL)]
        first, second = ([pair[i].choices[0] for pair in chosen] for i in (0, 1))
        speeds = _mean_speed(first), _mean_speed(second)
        rows.append(
            {
                "category": task,
                "questions": len(chosen),
                "tokens_per_second": speeds[0],
                "baseline_tokens_per_second": speeds[1],
                "speedup": _ratio(*speeds),
                "pooled_speedup": _ratio(_pooled_speed(first), _pooled_speed(second)),
                "accept_len": _mean_length(first),
                "baseline_accept_len": _mean_length(second),
            }
        )
    return rows


def require_same_questions(answers: Sequence[Answer], baseline: Sequence[Answer]) -> None:
    """Raises AnswerFileError naming the questions that one side lacks or files elsewhere."""
    first, second = ({str(a.question_id): a.task for a in side} for side in (answers, baseline))
    problems = [
        f"{side} lacks {_listed(missing)}"
        for side, missing in (
            ("the first file", [name for name in second if name not in first]),
            ("the baseline", [name for name in first if name not in second]),
        )
        if missing
    ]
    if problems:
        raise AnswerFileError(
            f"the files answer different questions: {'; '.join(problems)}; compare runs over the "
            f"same questions"
        )
    moved = [name for name, task in first.items() if second[name] != task]
    if moved:
        raise AnswerFileError(f"the files disagree about the category of {_listed(moved)}")


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench spec-bench compare`."""
    parser.add_argument("answers", type=Path, help="answer file of the method")
    parser.add_argument("baseline", type=Path, help="answer file of the baseline")


def run_compare(args: argparse.Namespace) -> None:
    """Print the comparison of two files, and as JSON in the last line."""
    files = {"answers": args.answers, "baseline": args.baseline}
    read = {name: read_answers(path) for name, path in files.items()}
    rows = compare(read["answers"], read["baseline"])
    for name, path in files.items():
        if failed := sum(_FAILED in answer.choices[0].turns for answer in read[name]):
            print(
                f"{path}: {failed} answers are {_FAILED}, which Spec-Bench's tools write for a "
                f"question that failed, beside the numbers of the question before it"
            )
    models = {name: ", ".join(dict.fromkeys(a.model_id for a in read[name])) for name in files}
    print(f"{models['answers']} against {models['baseline']}, means over questions")
    headers = ("category", "questions", "tokens/s", "baseline tokens/s", "speed-up",
               "speed-up, pooled", "accept_len", "baseline accept_len")  # fmt: skip
    cells = [list(row.values()) for row in rows]
    print(tabulate(cells, headers, tablefmt="github", floatfmt=".2f", missingval="–"))
    print(json.dumps({"models": models, "results": rows}, ensure_ascii=False))


def _answer(record: Mapping[str, Any], where: str) -> Answer:
    try:
        choices = tuple(_choice(choice) for choice in record["choices"])
        if not choices:
            raise AnswerFileError("there are no choices")
        if not isinstance(record["question_id"], int | str):
            raise AnswerFileError(f"question_id {record['question_id']!r} is no number or name")
        return Answer(
            question_id=record["question_id"],
            category=str(record["category"]),
            answer_id=str(record.get("answer_id", "")),
            model_id=str(record.get("model_id", "")),
            choices=choices,
            tstamp=float(record.get("tstamp", 0.0)),
        )
    except AnswerFileError as error:
        raise AnswerFileError(f"{where}: {error}") from None
    except KeyError as error:
        raise AnswerFileError(f"{where}: field {error} is missing") from None
    except (TypeError, ValueError):
        raise AnswerFileError(f"{where} is no answer of Spec-Bench's form") from None


def _choice(record: Mapping[str, Any]) -> Choice:
    lists = {
        name: tuple(record[name])
        for name in ("turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths")
    }
    return Choice(index=int(record.get("index", 0)), **lists)


def _require_unique(names: Sequence[int | str], where: str) -> None:
    seen: set[str] = set()
    for name in map(str, names):
        if name in seen:
            raise AnswerFileError(f"{where}: question {name} stands twice")
        seen.add(name)


def _tasks(answers: Sequence[Answer]) -> list[str]:
    there = {answer.task for answer in answers}
    known = [task for task in CATEGORIES if task in there]
    return [*known, *sorted(there - set(known)), OVERALL]


def _mean_speed(choices: Sequence[Choice]) -> float:
    return math.fsum(choice.tokens / choice.seconds for choice in choices) / len(choices)


def _pooled_speed(choices: Sequence[Choice]) -> float:
    tokens = sum(choice.tokens for choice in choices)
    return tokens / math.fsum(choice.seconds for choice in choices)


def _mean_length(choices: Sequence[Choice]) -> float | None:
    lengths = [length for choice in choices for length in choice.accept_lengths]
    return sum(lengths) / len(lengths) if lengths else None


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} questions ({', '.join(names[:_NAMED])}{more})"
