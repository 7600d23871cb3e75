"""Answer letters and numbers read from generated text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.scoring.answers import answer_letter, last_number, numbers_equal, reference_number


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        pytest.param("B. 4", "B", id="letter-plain"),
        pytest.param("ANSWER: B", "B", id="letter-answer-upper"),
        pytest.param("(B). Eliminated: (A), (C), (D)", "B", id="letter-elimination"),
        pytest.param("Antwort:\n\nAntwort: C", "C", id="letter-not-inside-a-word"),
        pytest.param("A cat sat on the mat.", None, id="letter-english-article"),
        pytest.param("B", "B", id="letter-alone"),
        pytest.param("Let me think.\nB", "B", id="letter-on-own-line"),
    ],
)
def test_shared_cases(text: str, letter: str | None) -> None:
    assert answer_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is D", "D"),
        ("the Answer Is C.", "C"),
        ("The answer is (B) because water boils.", "B"),
        ("The answer is A because it is.", "A"),
        ("The answer is: **C**", "C"),
        ("**The answer is:** C", "C"),
        ("The correct answer is option B", "B"),
        ("The answer is:\nB", "B"),
        ("Answer is 'B'", "B"),
        ("The answer is A, B is wrong", "A"),
        ("The answer is Boston", None),
        ("The answer is not C", None),
        ("The answer is B or C", None),
        ("The answer is D.C. of course", None),
        ("The answer is E", None),
        ("The answer is b", None),
    ],
)
def test_answer_is(text: str, letter: str | None) -> None:
    assert answer_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: (C) Paris", "C"),
        ("Answer:B", "B"),
        ("**Answer:** B", "B"),
        ("**Answer**: *B*", "B"),
        ("Respuesta: D, porque si", "D"),
        ("Answer: A because it is", "A"),
        ("Answer: B, C is too small", "B"),
        ("Choices:\nA. Rome\nB. Oslo\nAnswer: B", "B"),
        ("Eliminated: A\nAnswer: B", "B"),
        ("Eliminated: A, C and D. Answer: B", "B"),
        ("Wrong answers: A. Answer: B", "B"),
        ("Note: A cat sat on the mat.", None),
        ("Answer: A and C", None),
        ("Answer: A-level", None),
        ("Answer: none of them", None),
    ],
)
def test_word_colon_letter(text: str, letter: str | None) -> None:
    assert answer_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("(B)", "B"),
        ("(B) Paris", "B"),
        ("B) Paris", "B"),
        (" \n**B.** Paris", "B"),
        ("C.", "C"),
        ("[D] Paris", "D"),
        ("B. Paris\nC. Rome", "B"),
        ("(A), (C) and (D) are wrong.", None),
        ("D.C. is the capital", None),
        ("C is correct", None),
        ("Because. B. Paris", None),
    ],
)
def test_leading_letter(text: str, letter: str | None) -> None:
    assert answer_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("So:\n(C)\nbecause", "C"),
        ("Hmm\n**D**", "D"),
        ("Hmm\r\nA\r\n", "A"),
        ("Hmm\nA cat", None),
        ("Hmm\nB, C", None),
        ("", None),
    ],
)
def test_letter_on_its_own_line(text: str, letter: str | None) -> None:
    assert answer_letter(text) == letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B. Paris\nThe answer is C", "C"),
        ("Answer: B\nThe answer is C", "C"),
        ("B. Paris\nAnswer: C", "C"),
        ("D\nB) Paris", "D"),
        ("The answer is B. Question: x The answer is C.", "B"),
    ],
)
def test_earlier_rules_and_earlier_places_win(text: str, letter: str) -> None:
    assert answer_letter(text) == letter


def test_other_letter_sets() -> None:
    assert answer_letter("Answer: E", letters="ABCDE") == "E"
    assert answer_letter("C", letters="AB") is None


@pytest.mark.parametrize("letters", ["", "abcd", "AAB", "A-Z"])
def test_bad_letter_sets_are_refused(letters: str) -> None:
    with pytest.raises(ValueError, match="different letters A to Z"):
        answer_letter("B", letters=letters)


@given(st.text())
def test_any_text_gives_a_letter_or_none(text: str) -> None:
    letter = answer_letter(text)
    assert letter is None or (letter in "ABCD" and letter in text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("She pays 3 and then 42.", 42),
        ("It costs $1,234", 1234),
        ("1,234,567.5 people", 1234567.5),
        ("a total of $18.00", 18),
        ("1, 2, 3", 3),
        ("1,2345", 2345),
        ("x = -3", -3),
        ("x = \u22123", -3),
        ("-$5", -5),
        ("$-5", -5),
        ("(-7)", -7),
        ("10-5", 5),
        ("10 - 5", 5),
        ("step-3", 3),
        ("50% more", 50),
        ("5kg", 5),
        ("\\boxed{12}", 12),
        ("**12**", 12),
        (".5", 0.5),
        ("so...42", 42),
        ("2.5e3", 2500),
        ("7 litres of H2O", 7),
        ("version 1.2.3", 1.2),
        ("no number", None),
        ("", None),
        (".", None),
    ],
)
def test_last_number(text: str, number: float | None) -> None:
    assert last_number(text) == number


@given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{:,}", "{}.", "= {}", "{}.00"]))
def test_a_written_number_is_read_back(number: int, form: str) -> None:
    assert last_number("2 and 3: " + form.format(number)) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6*7=<<6*7=42>>42\n#### 42", 42),
        ("#### 1,080", 1080),
        ("#### $-3.50 left", -3.5),
        ("#### 1\n#### 2", 2),
        ("the answer is 42", None),
        ("7 ####", None),
    ],
)
def test_reference_number(text: str, number: float | None) -> None:
    assert reference_number(text) == number


def test_numbers_equal() -> None:
    assert numbers_equal(18, 18.00)
    assert numbers_equal(0.1 + 0.2, 0.3)
    assert not numbers_equal(18, 18.01)
    assert not numbers_equal(-18, 18)
    assert not numbers_equal(None, 18)
    assert not numbers_equal(None, None)
