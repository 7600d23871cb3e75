"""Text metrics against values worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.scoring.text_metrics import (
    ROUGE_TYPES,
    chrf,
    clean_references,
    corpus_bleu,
    exact_match,
    f1_joined,
    rouge,
    sentence_bleu,
    token_f1,
)

WORDS = st.lists(
    st.sampled_from(["a", "The", "an", "Paris", "paris,", "two", "Two", "?", "+", "straße"]),
    min_size=1,
    max_size=8,
).map(" ".join)


def test_sentence_bleu_is_the_brevity_penalty_where_every_ngram_matches() -> None:
    # 4 of 6 words, all n-gram precisions 1: exp(1 - 6/4).
    score = sentence_bleu("the cat sat on", "the cat sat on the mat")
    assert score == pytest.approx(math.exp(-0.5))


def test_sentence_bleu_uses_all_references() -> None:
    references = ["the cat sat on the mat", "the cat sat on"]
    assert sentence_bleu("the cat sat on", references) == pytest.approx(1.0)


def test_sentence_bleu_of_a_short_answer_uses_its_effective_order() -> None:
    assert sentence_bleu("cat", "cat") == pytest.approx(1.0)


def test_corpus_bleu_scores_every_row() -> None:
    # Two rows of five words match, one does not: precisions 10/15, 8/12, 6/9, 4/6, length equal.
    predictions = ["a b c d e", "f g h i j", "v w x y z"]
    references = [["a b c d e"], ["f g h i j"], ["k l m n o"]]
    assert corpus_bleu(predictions, references) == pytest.approx(2 / 3)


def test_corpus_bleu_takes_one_string_a_row() -> None:
    assert corpus_bleu(["a b c d", "e f g h"], ["a b c d", "e f g h"]) == pytest.approx(1.0)


def test_corpus_bleu_refuses_the_shape_of_sacrebleu() -> None:
    with pytest.raises(ValueError, match=r"3 predictions but 1 rows .*\[\[r1\], \[r2\], \[r3\]\]"):
        corpus_bleu(["x", "y", "z"], [["x", "y", "z"]])


def test_corpus_bleu_refuses_one_string_for_all_rows() -> None:
    with pytest.raises(ValueError, match="one string"):
        corpus_bleu(["x", "y"], "xy")


def test_corpus_metrics_pad_rows_with_fewer_references_without_effect() -> None:
    predictions = ["a b c d e", "v w x y z"]
    references = [["q q q q q", "a b c d e"], ["v w x y z"]]
    assert corpus_bleu(predictions, references) == pytest.approx(1.0)
    assert chrf(predictions, references) == pytest.approx(1.0)


@pytest.mark.parametrize("metric", [corpus_bleu, chrf])
def test_empty_corpus_is_an_error(metric: Callable[..., float]) -> None:
    with pytest.raises(ValueError, match="empty corpus"):
        metric([], [])


def test_chrf_by_hand() -> None:
    # Orders 1 and 2 count: precision 1, recall (2/3 + 1/2) / 2 = 7/12, F2 = 5PR / (4P + R).
    assert chrf(["ab"], [["abc"]]) == pytest.approx(35 / 55)


def test_chrf_of_disjoint_texts_is_zero() -> None:
    assert chrf(["abc"], ["xyz"]) == pytest.approx(0.0, abs=1e-12)


def test_rouge_by_hand() -> None:
    # All words shared, no bigram shared, longest common subsequence 3 of 4.
    scores = rouge("the brown quick fox", "the quick brown fox")
    assert scores == {"rouge1": 1.0, "rouge2": 0.0, "rougeL": 0.75}


def test_rouge_stems() -> None:
    assert rouge("running dogs", "run dog")["rougeL"] == 1.0


def test_rouge_takes_the_maximum_of_each_type() -> None:
    scores = rouge("b a c d", ["a b", "c d b a"])
    assert scores["rouge1"] == 1.0
    assert scores["rouge2"] == pytest.approx(2 / 3)


def test_f1_counts_a_repeated_word_once() -> None:
    assert token_f1("Paris Paris Paris Paris Paris", "Paris") == pytest.approx(1 / 3)


def test_f1_takes_the_best_reference() -> None:
    assert token_f1("Montreal", ["Montreal, Quebec", "montreal"]) == 1.0
    assert token_f1("Montreal", "Montreal, Quebec") == pytest.approx(2 / 3)


def test_f1_ignores_case_punctuation_and_articles() -> None:
    assert token_f1("The U.S. army!", "us  Army") == 1.0


@pytest.mark.parametrize("text", ["A", "the", "+", "?!"])
def test_an_answer_that_normalises_to_nothing_matches_itself(text: str) -> None:
    assert token_f1(text, text) == 1.0
    assert exact_match(text, text) == 1.0


@pytest.mark.parametrize(
    ("prediction", "reference", "score"),
    [("A", "the", 0.0), ("the A", "A", 2 / 3), ("+", "-", 0.0), ("A", "+", 0.0), ("A", "cat", 0.0)],
)
def test_f1_of_emptied_pairs(prediction: str, reference: str, score: float) -> None:
    assert token_f1(prediction, reference) == pytest.approx(score)


def test_exact_match_over_references() -> None:
    assert exact_match("The Montreal.", ["Quebec", "montreal"]) == 1.0
    assert exact_match("Montreal Quebec", ["Quebec", "montreal"]) == 0.0


def test_f1_joined_measures_against_all_references_at_once() -> None:
    # 1 common token, 1 predicted, 3 in the joined reference.
    assert f1_joined("wood", ["wood", "clean water"]) == pytest.approx(0.5)
    assert token_f1("wood", ["wood", "clean water"]) == 1.0


@pytest.mark.parametrize("answer", ["", " \n"])
def test_an_empty_answer_scores_zero(answer: str) -> None:
    references = ["a b c d", "the"]
    assert sentence_bleu(answer, references) == 0.0
    assert corpus_bleu([answer], [references]) == 0.0
    assert chrf([answer], [references]) == 0.0
    assert rouge(answer, references) == dict.fromkeys(ROUGE_TYPES, 0.0)
    assert token_f1(answer, references) == 0.0
    assert exact_match(answer, references) == 0.0
    assert f1_joined(answer, references) == 0.0


@pytest.mark.parametrize("metric", [sentence_bleu, rouge, token_f1, exact_match, f1_joined])
@pytest.mark.parametrize("references", [[], ["", " "], ""])
def test_no_usable_reference_is_an_error(
    metric: Callable[..., object], references: str | list[str]
) -> None:
    with pytest.raises(ValueError, match="no reference"):
        metric("x", references)


def test_blank_references_are_dropped() -> None:
    assert clean_references(["", "x", " "]) == ("x",)
    assert clean_references("") == ()
    assert token_f1("x", ["", "x"]) == 1.0


@given(left=WORDS, right=WORDS)
def test_f1_is_symmetric_bounded_and_one_for_equal_texts(left: str, right: str) -> None:
    score = token_f1(left, right)
    assert 0.0 <= score <= 1.0
    assert score == token_f1(right, left)
    assert token_f1(left, left) == 1.0
    assert exact_match(left, right) <= score


@given(prediction=WORDS, references=st.lists(WORDS, min_size=1, max_size=3))
def test_metrics_stay_in_range(prediction: str, references: list[str]) -> None:
    scores = [
        sentence_bleu(prediction, references),
        corpus_bleu([prediction], [references]),
        chrf([prediction], [references]),
        *rouge(prediction, references).values(),
    ]
    assert all(0.0 <= score <= 1.0 + 1e-9 for score in scores)
