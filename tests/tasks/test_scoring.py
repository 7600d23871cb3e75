"""Metrics of single answers; expected values by hand from the definitions."""

import pytest

from tasks import scoring


def doc(*references: str, style: str = "chat") -> dict[str, object]:
    return {"references": list(references), "prompt_style": style}


def test_translation_right_answer():
    text = "The house at the end of the road is old."
    found = scoring.translation(doc(text), [text])
    assert found["sentence_bleu"] == pytest.approx(1.0)
    assert found["bleu"] == found["chrf"] == (text, [text])


def test_translation_empty_answer_scores_zero_but_counts():
    found = scoring.translation(doc("A house."), [""])
    assert found["sentence_bleu"] == 0.0
    assert found["bleu"] == ("", ["A house."])


def test_corpus_metrics_score_every_sentence():
    right = ("The old house stands at the end of the road.",)
    pairs = [(right[0], right), (right[0], right), ("xyz", ("Completely different words.",))]
    assert scoring.corpus_bleu(pairs[:2]) == pytest.approx(1.0)
    assert 0 < scoring.corpus_bleu(pairs) < 1
    assert scoring.corpus_chrf(pairs[:2]) == pytest.approx(1.0)
    assert 0 < scoring.corpus_chrf(pairs) < 1


def test_rouge_by_hand():
    # 3 of 4 words in order: precision 3/4, recall 3/4; bigrams: 1 of 3 in common.
    found = scoring.summarization(doc("red birds fly north"), ["red birds swim north"])
    assert found == pytest.approx({"rouge1": 0.75, "rouge2": 1 / 3, "rougeL": 0.75})


def test_f1_takes_the_best_reference():
    found = scoring.question_answering(doc("Montreal, Quebec", "montreal"), ["Montreal"])
    # joined: "montreal quebec montreal", one of three words in common with one word
    assert found == pytest.approx({"f1": 1.0, "exact_match": 1.0, "f1_joined": 0.5})


def test_f1_is_a_multiset_overlap():
    found = scoring.question_answering(doc("Paris"), ["Paris Paris Paris Paris Paris"])
    assert found["f1"] == pytest.approx(1 / 3)
    assert found["exact_match"] == 0.0


@pytest.mark.parametrize(
    ("answer", "right"), [("B. 4", 1.0), ("The answer is B", 1.0), ("A", 0.0), ("", 0.0)]
)
def test_letter(answer: str, right: float):
    assert scoring.letter(doc("B"), [answer]) == {"acc": right}


def test_most_likely_letter():
    results = [(-3.0, False), (-1.0, False), (-2.0, True), (-9.0, False)]
    assert scoring.letter_loglikelihood(doc("B"), results) == {"acc": 1.0}
    assert scoring.letter_loglikelihood(doc("C"), results) == {"acc": 0.0}


def test_of_equally_likely_letters_the_first_counts():
    results = [(-2.0, False), (-1.0, False), (-1.0, False), (-2.0, False)]
    assert scoring.letter_loglikelihood(doc("B"), results) == {"acc": 1.0}


@pytest.mark.parametrize(
    ("answer", "right"), [("60 + 7 = 67 rolls.", 1.0), ("67, not 60", 0.0), ("none", 0.0)]
)
def test_last_number(answer: str, right: float):
    reference = "12 * 5 = 60, 60 + 7 = 67\n#### 67"
    assert scoring.last_number_equals(doc(reference), [answer]) == {"acc": right}


@pytest.mark.parametrize(
    "function",
    [
        scoring.translation,
        scoring.summarization,
        scoring.question_answering,
        scoring.last_number_equals,
        scoring.unscored,
    ],
)
def test_a_row_without_a_reference_has_no_metric(function):
    assert function(doc(), ["an answer"]) == {}


def test_open_answers_are_not_scored_even_with_a_reference():
    assert scoring.unscored(doc("reference"), ["an answer"]) == {}


def test_after_a_completion_prompt_the_first_line_is_the_answer():
    answer = " Canberra\n\nQuestion: What is next?"
    assert scoring.question_answering(doc("Canberra", style="completion"), [answer])["f1"] == 1.0
    assert scoring.question_answering(doc("Canberra"), [answer])["f1"] < 1.0
