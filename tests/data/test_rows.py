"""Rows and the file formats they come from."""

import json

import pytest

from tss_bench.data.rows import (
    DataError,
    Row,
    answers_by_question,
    mmlu_rows,
    nq_open_rows,
    parse_jsonl,
    question_key,
    specbench_rows,
)


def row(*turns: str, choices: tuple[str, ...] = (), id: str = "1") -> Row:
    return Row(id, "qa", turns, (), choices)


def test_equal_text_has_an_equal_hash_whatever_id_and_white_space():
    assert row("Who wrote  it?\n").content_hash == row("Who wrote it?", id="2").content_hash


@pytest.mark.parametrize("other", [row("b"), row("a", "b"), row("a", choices=("x",))])
def test_other_text_has_another_hash(other: Row):
    assert row("a").content_hash != other.content_hash


def test_a_turn_and_a_choice_are_not_the_same_text():
    assert row("a", "b").content_hash != row("a", choices=("b",)).content_hash


def specbench(category: str, **fields: object) -> list[tuple[str, dict[str, object]]]:
    return [("line 1", {"question_id": 7, "category": category, "turns": ["Q"], **fields})]


def test_specbench_row():
    (found,) = specbench_rows(specbench("translation", reference=["R"]), "translation", {})
    assert found == Row("7", "translation", ("Q",), ("R",))


def test_nested_rag_references_become_one_flat_list():
    (found,) = specbench_rows(specbench("rag", reference=[["a", "b"], ["c"]]), "rag", {})
    assert found.references == ("a", "b", "c")


def test_other_categories_are_left_out():
    assert specbench_rows(specbench("rag", reference=[["a"]]), "qa", {}) == []


def test_mt_bench_is_its_eight_categories_with_two_turns():
    records = specbench("stem", turns=["one", "two"]) + specbench("roleplay", turns=["a", "b"])
    found = specbench_rows(records + specbench("math_reasoning"), "mt_bench", {})
    assert [one.turns for one in found] == [("one", "two"), ("a", "b")]
    assert {one.domain for one in found} == {"mt_bench"}


def test_qa_references_are_joined_by_lower_case_letters_and_digits():
    answers = answers_by_question(
        [("line 1", {"question": "who wrote he's 2 old", "answer": ["Ann", "A. B."]})]
    )
    asked = specbench("qa", turns=["Who wrote “He's 2 old”?"]) + specbench("qa", turns=["Why?"])
    first, second = specbench_rows(asked, "qa", answers)
    assert first.references == ("Ann", "A. B.")
    assert second.references == ()


def test_a_reference_of_its_own_wins_over_the_join():
    (found,) = specbench_rows(specbench("qa", reference=["own"]), "qa", {"q": ["joined"]})
    assert found.references == ("own",)


def test_question_key():
    assert question_key("Who's on 1st, 2nd?") == "whoson1st2nd"


def test_nq_open_row():
    (found,) = nq_open_rows([("line 1", {"question": "who", "answer": ["a", "b"]})])
    assert found == Row("nq_open-0", "nq_open", ("who",), ("a", "b"))


def mmlu(**fields: object) -> list[tuple[str, dict[str, object]]]:
    record = {"question": "Q", "subject": "s", "choices": ["w", "x", "y", "z"], "answer": 2}
    return [("line 1", {**record, **fields})]


def test_mmlu_answer_becomes_a_letter():
    (found,) = mmlu_rows(mmlu())
    assert found == Row("mmlu-0", "mmlu", ("Q",), ("C",), ("w", "x", "y", "z"), "C")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"answer": 4}, "line 1: answer 4 is not in 0 to 3"),
        ({"answer": -1}, "line 1: answer -1 is not in 0 to 3"),
        ({"answer": True}, "line 1: field 'answer' must be int"),
        ({"choices": ["a", "b"]}, "line 1: 2 choices, there must be 4"),
        ({"question": " \n"}, "line 1: field 'question' is empty"),
    ],
)
def test_bad_mmlu_rows_are_named(fields: dict[str, object], message: str):
    with pytest.raises(DataError, match=message):
        mmlu_rows(mmlu(**fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"turns": []}, "'turns' must be a list of texts, none empty"),
        ({"turns": ["a", ""]}, "'turns' must be a list of texts, none empty"),
        ({"reference": [3]}, "'reference' must be texts in lists, got 3"),
    ],
)
def test_bad_specbench_rows_are_named(fields: dict[str, object], message: str):
    with pytest.raises(DataError, match=f"line 1: field {message}"):
        specbench_rows(specbench("qa", **fields), "qa", {})


def test_a_missing_field_is_named():
    with pytest.raises(DataError, match="line 1: field 'category' is missing"):
        specbench_rows([("line 1", {"turns": ["a"]})], "qa", {})


def test_a_torn_last_line_is_named():
    whole = json.dumps({"question": "a"}).encode()
    with pytest.raises(DataError, match=r"q\.jsonl, line 2 is no whole JSON object.*cut off"):
        parse_jsonl(whole + b"\n" + whole[:-3], "q.jsonl")


def test_a_line_may_hold_unicode_line_separators():
    data = '{"question": "a\u2028b"}\n'.encode()
    assert parse_jsonl(data, "q.jsonl") == [("q.jsonl, line 1", {"question": "a\u2028b"})]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no rows"),
        (b"\n\n", "has no rows"),
        (b"\xff\xfe", "is no UTF-8 text"),
        (b"[1]\n", "is no JSON object but list"),
    ],
)
def test_unreadable_files_are_named(data: bytes, message: str):
    with pytest.raises(DataError, match=rf"q\.jsonl.*{message}"):
        parse_jsonl(data, "q.jsonl")
