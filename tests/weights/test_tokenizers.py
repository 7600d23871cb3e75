"""A draft model must have the target's tokenizer; padded rows do not matter."""

from __future__ import annotations

import pytest

from tss_bench.weights.tokenizers import require_same_tokenizer, same_tokenizer


def test_same_vocabulary_is_accepted_whatever_the_matrix_rows(make_tokenizer):
    target, draft = make_tokenizer(), make_tokenizer()
    assert same_tokenizer(target, draft)
    require_same_tokenizer(target, draft, target_name="big", draft_name="small")


@pytest.mark.parametrize("words", [("a", "b", "d"), ("b", "a", "c"), ("a", "b", "c", "d")])
def test_another_vocabulary_is_refused_with_both_names(make_tokenizer, words):
    target, draft = make_tokenizer(), make_tokenizer(words)
    assert not same_tokenizer(target, draft)
    with pytest.raises(ValueError, match=r"'small' has another tokenizer than target 'big'"):
        require_same_tokenizer(target, draft, target_name="big", draft_name="small")


def test_the_message_counts_and_shows_a_difference(make_tokenizer):
    with pytest.raises(ValueError, match=r"1 tokens differ of 6 and 7 \('d' is absent in the tar"):
        require_same_tokenizer(
            make_tokenizer(),
            make_tokenizer(("a", "b", "c", "d")),
            target_name="big",
            draft_name="small",
        )
