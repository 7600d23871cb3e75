"""`process_results` functions and aggregations of our lm-eval tasks.

Each function takes lm-eval's (doc, results) and returns the metrics of one answer, or nothing
for a row without a reference. All formulas are in `tss_bench.scoring`. lm-eval loads this file
by its path, so it cannot import its neighbours.

May import: the standard library, tss_bench.scoring (layer L2 of the design).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tss_bench.scoring import text_metrics
from tss_bench.scoring.answers import (
    answer_letter,
    last_number,
    numbers_equal,
    reference_number,
)

Doc = Mapping[str, Any]
TextPair = tuple[str, Sequence[str]]
"""An answer and its references: what corpus metrics collect from each row."""


def translation(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """sentence_bleu (primary); bleu and chrf over the corpus."""
    answer, references = _answer(doc, results), doc["references"]
    if not references:
        return {}
    pair = (answer, references)
    score = text_metrics.sentence_bleu(answer, references)
    return {"sentence_bleu": score, "bleu": pair, "chrf": pair}


def summarization(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """rougeL (primary), rouge1, rouge2."""
    if not doc["references"]:
        return {}
    return dict(text_metrics.rouge(_answer(doc, results), doc["references"]))


def question_answering(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """f1 (primary), exact_match, f1_joined."""
    answer, references = _answer(doc, results), doc["references"]
    if not references:
        return {}
    return {
        "f1": text_metrics.token_f1(answer, references),
        "exact_match": text_metrics.exact_match(answer, references),
        "f1_joined": text_metrics.f1_joined(answer, references),
    }


def letter(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """acc: the letter read from the generated answer is the right one."""
    return {"acc": float(answer_letter(_answer(doc, results)) == doc["references"][0])}


def letter_loglikelihood(doc: Doc, results: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """acc: the most likely letter is the right one; of equal ones the first counts."""
    loglikelihoods = [loglikelihood for loglikelihood, _ in results]
    best = loglikelihoods.index(max(loglikelihoods))
    return {"acc": float("ABCD"[best] == doc["references"][0])}


def last_number_equals(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """acc: the last number of the answer is the one after "####" in the reference."""
    if not doc["references"]:
        return {}
    right = reference_number(doc["references"][0])
    return {"acc": float(numbers_equal(last_number(_answer(doc, results)), right))}


def unscored(doc: Doc, results: Sequence[str]) -> dict[str, Any]:
    """Nothing: there is no judge for open answers."""
    return {}


def corpus_bleu(pairs: Sequence[TextPair]) -> float:
    """Corpus BLEU, 0 … 1."""
    return text_metrics.corpus_bleu(*_columns(pairs))


def corpus_chrf(pairs: Sequence[TextPair]) -> float:
    """Corpus chrF, 0 … 1."""
    return text_metrics.chrf(*_columns(pairs))


def _answer(doc: Doc, results: Sequence[str]) -> str:
    """The answer to score: the first line after a completion prompt, else the whole text."""
    text = str(results[0])
    if doc["prompt_style"] == "completion":
        text = text.strip().split("\n", 1)[0]
    return text.strip()


def _columns(pairs: Sequence[TextPair]) -> tuple[list[str], list[Sequence[str]]]:
    return [answer for answer, _ in pairs], [references for _, references in pairs]
