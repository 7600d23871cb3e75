"""Text metrics on a 0 … 1 scale: BLEU, chrF, ROUGE, token F1, exact match.

Knows nothing of tasks, models or splits. An empty (blank) answer scores 0 everywhere. A row
without a usable reference has no score: callers ask `clean_references` first and leave such
a row out; the metrics raise ValueError when they are given one.

May import: the standard library, sacrebleu and rouge_score (layer L1 of the design).
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache

import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

References = str | Sequence[str]

ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


def clean_references(references: References) -> tuple[str, ...]:
    """The non-blank references of one row; an empty tuple means the row cannot be scored."""
    listed = (references,) if isinstance(references, str) else references
    return tuple(text for text in listed if text.strip())


def sentence_bleu(prediction: str, references: References) -> float:
    """sacrebleu `sentence_bleu` / 100 (effective order on) against all references at once."""
    texts = list(_required(references))
    return float(sacrebleu.sentence_bleu(prediction, texts).score) / 100


def corpus_bleu(predictions: Sequence[str], references: Sequence[References]) -> float:
    """sacrebleu corpus BLEU / 100.

    `references[i]` holds the references of `predictions[i]` (one string or several), so the
    shape is rows x references. sacrebleu wants references x rows; the transposition is done
    here. Rows may have different numbers of references.
    """
    streams = _reference_streams(predictions, references)
    return float(sacrebleu.corpus_bleu(predictions, streams).score) / 100


def chrf(predictions: Sequence[str], references: Sequence[References]) -> float:
    """sacrebleu corpus chrF (chrF2) / 100; shapes as in `corpus_bleu`."""
    streams = _reference_streams(predictions, references)
    return float(sacrebleu.corpus_chrf(predictions, streams).score) / 100


def rouge(prediction: str, references: References) -> dict[str, float]:
    """F1 of rouge1, rouge2 and rougeL (rouge-score, Porter stemmer on).

    Each type takes its own maximum over the references. rouge-score keeps ASCII letters and
    digits only, so a text in another script scores 0.
    """
    scores = _rouge_scorer().score_multi(_required(references), prediction)
    return {name: float(scores[name].fmeasure) for name in ROUGE_TYPES}


def token_f1(prediction: str, references: References) -> float:
    """Token F1 after SQuAD normalisation, multiset overlap, maximum over the references.

    Where the normalisation empties both sides ("A" against "A"), the pair is compared with
    its articles kept, and if it is still empty ("+" against "+") with its punctuation kept.
    If it empties one side only, the score is 0, as in SQuAD.
    """
    return max(_pair_f1(prediction, text) for text in _required(references))


def exact_match(prediction: str, references: References) -> float:
    """1.0 if the normalised answer equals a normalised reference, else 0.0.

    Normalisation and its fall-back for emptied pairs are those of `token_f1`.
    """
    pairs = [_normalised_pair(prediction, text) for text in _required(references)]
    return float(any(left and left == right for left, right in pairs))


def f1_joined(prediction: str, references: References) -> float:
    """Token F1 against all references joined by blanks to one string (the published rag F1)."""
    return token_f1(prediction, " ".join(_required(references)))


def _required(references: References) -> tuple[str, ...]:
    texts = clean_references(references)
    if not texts:
        raise ValueError(
            f"no reference in {references!r}: a metric needs at least one non-blank reference; "
            "leave rows without one out of the metric"
        )
    return texts


def _reference_streams(
    predictions: Sequence[str], references: Sequence[References]
) -> list[list[str]]:
    """sacrebleu's shape, references x rows: one stream per reference position.

    A row with fewer references than the longest repeats its last one, which changes neither
    BLEU nor chrF. Raises ValueError for an empty corpus and for a wrong shape.
    """
    if isinstance(references, str) or len(predictions) != len(references):
        count = "one string" if isinstance(references, str) else f"{len(references)} rows"
        raise ValueError(
            f"{len(predictions)} predictions but {count} of references; give one entry a "
            "prediction: [[r1], [r2], [r3]], not sacrebleu's [[r1, r2, r3]]"
        )
    if not predictions:
        raise ValueError("an empty corpus has no score; leave the row out of the table")
    rows = [_required(row) for row in references]
    width = max(map(len, rows))
    return [[row[min(i, len(row) - 1)] for row in rows] for i in range(width)]


@cache
def _rouge_scorer() -> RougeScorer:
    return RougeScorer(list(ROUGE_TYPES), use_stemmer=True)


def _plain_tokens(text: str) -> list[str]:
    return text.lower().split()


def _tokens_with_articles(text: str) -> list[str]:
    return text.lower().translate(_DROP_PUNCTUATION).split()


def _squad_tokens(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_DROP_PUNCTUATION)).split()


_NORMALISATIONS: tuple[Callable[[str], list[str]], ...] = (
    _squad_tokens,
    _tokens_with_articles,
    _plain_tokens,
)


def _normalised_pair(prediction: str, reference: str) -> tuple[list[str], list[str]]:
    """Tokens under the strictest normalisation that leaves at least one side non-empty."""
    for tokens in _NORMALISATIONS:
        left, right = tokens(prediction), tokens(reference)
        if left or right:
            break
    return left, right


def _pair_f1(prediction: str, reference: str) -> float:
    left, right = _normalised_pair(prediction, reference)
    common = sum((Counter(left) & Counter(right)).values())
    return 2 * common / (len(left) + len(right)) if common else 0.0
