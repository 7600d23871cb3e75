"""The packaged mini set keeps the promises of its README: counts, schema, own text, right sums.

May import: the standard library and pytest; reads the packaged files only as text.
"""

import json
import operator
import os
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

COUNTS = {
    "translation": 40,
    "summarization": 40,
    "qa": 40,
    "rag": 40,
    "mmlu": 40,
    "math_reasoning": 20,
    "mt_bench": 10,
}
MT_BENCH_CATEGORIES = {
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
TRANSLATE = "Translate German to English: "
SUMMARIZE = "Summarize: "
NGRAM = 13

Row = dict[str, Any]


@cache
def raw(domain: str) -> str:
    path = resources.files("tss_bench").joinpath("assets", "mini", f"{domain}.jsonl")
    return path.read_text(encoding="utf-8")


@cache
def rows(domain: str) -> list[Row]:
    return [json.loads(line) for line in raw(domain).splitlines()]


def everything() -> list[Row]:
    return [row for domain in COUNTS for row in rows(domain)]


def turns(row: Row) -> list[str]:
    return [row["question"]] if "question" in row else row["turns"]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def equations(worked: str) -> list[tuple[int, str, int, int]]:
    return [(int(a), op, int(b), int(c)) for a, op, b, c in EQUATION.findall(worked)]


def holds(equation: tuple[int, str, int, int]) -> bool:
    left, op, right, result = equation
    return bool(OPERATORS[op](left, right) == result)


@pytest.mark.parametrize("domain", COUNTS)
def test_file_is_one_plain_utf8_object_a_line(domain: str) -> None:
    text = raw(domain)
    assert text.endswith("}\n")
    assert len(text.splitlines()) == len(rows(domain)) == COUNTS[domain]
    assert "\\u" not in text
    for line, row in zip(text.splitlines(), rows(domain), strict=True):
        assert line == json.dumps(row, ensure_ascii=False)


def test_ids_are_unique_integers_from_900001() -> None:
    ids = [row["question_id"] for row in everything()]
    assert all(type(identifier) is int for identifier in ids)
    assert sorted(ids) == list(range(900001, 900001 + sum(COUNTS.values())))


def test_no_two_rows_share_their_text() -> None:
    texts = Counter(" ".join(words(" ".join(turns(row)))) for row in everything())
    assert [text for text, count in texts.items() if count > 1] == []


def test_texts_are_trimmed_and_not_empty() -> None:
    for row in everything():
        for text in turns(row):
            assert text == text.strip() != ""
            assert "  " not in text


@pytest.mark.parametrize("domain", ["translation", "summarization", "qa", "math_reasoning"])
def test_one_turn_rows_follow_spec_bench(domain: str) -> None:
    for row in rows(domain):
        assert list(row) == ["question_id", "category", "turns", "reference"]
        assert row["category"] == domain
        assert len(row["turns"]) == 1
        assert row["reference"]
        for text in row["reference"]:
            assert text == text.strip() != ""


def test_translation_rows_hold_one_sentence_of_6_to_25_words() -> None:
    for row in rows("translation"):
        (turn,) = row["turns"]
        (reference,) = row["reference"]
        assert turn.startswith(TRANSLATE)
        assert 6 <= len(turn.removeprefix(TRANSLATE).split()) <= 25
        assert reference.endswith((".", "?"))
    assert set("äöüß") <= set(raw("translation"))


def test_summaries_are_far_shorter_than_their_articles() -> None:
    for row in rows("summarization"):
        (turn,) = row["turns"]
        (reference,) = row["reference"]
        assert turn.startswith(SUMMARIZE)
        article = turn.removeprefix(SUMMARIZE).split()
        assert 80 <= len(article) <= 140, row["question_id"]
        assert 2 * len(reference.split()) < len(article), row["question_id"]


def test_questions_end_with_a_question_mark_and_do_not_hold_their_answer() -> None:
    for row in rows("qa"):
        (turn,) = row["turns"]
        assert turn.endswith("?")
        for answer in row["reference"]:
            assert f" {' '.join(words(answer))} " not in f" {' '.join(words(turn))} "
        assert len(set(row["reference"])) == len(row["reference"])


def test_rag_answers_stand_in_the_passages() -> None:
    for row in rows("rag"):
        assert list(row) == ["question_id", "category", "turns", "reference"]
        assert row["category"] == "rag"
        (turn,) = row["turns"]
        *passages, question = turn.split("\n")
        assert 1 <= len(passages) <= 2
        assert 60 <= sum(len(passage.split()) for passage in passages) <= 120, row["question_id"]
        assert question.endswith("?")
        (answers,) = row["reference"]
        assert answers
        for answer in answers:
            assert answer.lower() in " ".join(passages).lower(), (row["question_id"], answer)
    assert {turn["turns"][0].count("\n") for turn in rows("rag")} == {1, 2}


def test_mmlu_rows_follow_mmlu_with_four_distinct_choices() -> None:
    names = ["question_id", "category", "question", "subject", "choices", "answer"]
    for row in rows("mmlu"):
        assert list(row) == names
        assert row["category"] == "mmlu"
        assert len({choice.lower() for choice in row["choices"]}) == 4 == len(row["choices"])
        assert row["answer"] in (0, 1, 2, 3)


def test_mmlu_answers_spread_over_letters_and_subjects() -> None:
    letters = Counter(row["answer"] for row in rows("mmlu"))
    assert min(letters[index] for index in range(4)) >= 5
    assert len({row["subject"] for row in rows("mmlu")}) >= 8


def test_worked_lines_are_two_true_equations_that_end_in_the_answer() -> None:
    for row in rows("math_reasoning"):
        (reference,) = row["reference"]
        worked, answer = reference.split("\n#### ")
        first, second = equations(worked)
        assert holds(first), row["question_id"]
        assert holds(second), row["question_id"]
        assert first[3] in (second[0], second[2]), row["question_id"]
        assert second[3] == int(answer), row["question_id"]
        assert worked.count("=") == 2


def test_a_false_equation_is_noticed() -> None:
    assert equations("so 7 * 8 = 56 and 56 - 6 = 51") == [(7, "*", 8, 56), (56, "-", 6, 51)]
    assert holds((7, "*", 8, 56))
    assert not holds((56, "-", 6, 51))
    assert not holds((7, "/", 2, 3))


def test_mt_bench_rows_have_two_turns_and_cover_all_categories() -> None:
    for row in rows("mt_bench"):
        assert set(row) - {"reference"} == {"question_id", "category", "turns"}
        assert len(row["turns"]) == 2
        assert "reference" not in row or len(row["reference"]) == 2
    assert {row["category"] for row in rows("mt_bench")} == MT_BENCH_CATEGORIES


def ngrams(text: str) -> set[tuple[str, ...]]:
    tokens = words(text)
    return {tuple(tokens[start : start + NGRAM]) for start in range(len(tokens) - NGRAM + 1)}


def official_texts(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            row = json.loads(line)
            yield from row.get("turns", [row.get("question", "")])
            for reference in row.get("reference", []):
                yield from [reference] if isinstance(reference, str) else reference


@pytest.fixture
def official_root() -> Path:
    root = Path(os.environ.get("TSS_BENCH_DATA", ""))
    if not os.environ.get("TSS_BENCH_DATA") or not any(root.rglob("*.jsonl")):
        pytest.skip("TSS_BENCH_DATA names no folder with official rows")
    return root


def test_no_text_is_taken_from_official_rows(official_root: Path) -> None:
    own_texts = [text for row in everything() for text in turns(row)]
    own_texts += [text for row in rows("translation") for text in row["reference"]]
    own_texts += [text for row in rows("summarization") for text in row["reference"]]
    own_ngrams = set().union(*map(ngrams, own_texts))
    own_whole = {tuple(words(text)) for text in own_texts}
    shared = []
    for text in official_texts(official_root):
        if tuple(words(text)) in own_whole or not own_ngrams.isdisjoint(ngrams(text)):
            shared.append(text)
    assert shared == []
