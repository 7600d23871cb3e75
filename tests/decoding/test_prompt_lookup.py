"""Prompt lookup against a search through the whole text."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.prompt_lookup import PromptLookup
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance

# Few letters, so that matches of every length happen.
TEXTS = st.lists(st.integers(0, 3), min_size=2, max_size=40)
NOTHING = torch.zeros(0)


def begun(text: Sequence[int], **sizes: int) -> PromptLookup:
    """A drafter that has read `text`, whose last id is the first one of the answer."""
    drafter = PromptLookup(**sizes)
    drafter.begin(Prompt(text[:-1], NOTHING, lambda hidden: hidden, text[-1]))
    return drafter


def step(*accepted: int) -> Step:
    """A step that emits these ids; what the tree was does not matter."""
    tree = DraftTree.chain(0, accepted[:-1])
    return Step(tree, NOTHING, NOTHING, Acceptance(tuple(range(len(tree))), accepted[-1]))


def drafted(drafter: PromptLookup, root: int, depth: int = 99) -> list[int]:
    tree = drafter.propose(root, depth)
    assert tree == DraftTree.chain(root, tree.tokens[1:])
    return list(tree.tokens[1:])


def searched(text: Sequence[int], ngram: int, length: int) -> list[int]:
    """What follows the latest earlier place of the longest n-gram that ends the text."""
    for n in range(min(ngram, len(text) - 1), 0, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                return list(text[start + n : start + n + length])
    return []


@settings(max_examples=200, deadline=None)
@given(TEXTS, st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=8), st.data())
def test_it_drafts_what_a_search_through_the_text_finds(
    text: list[int], steps: list[list[int]], data: st.DataObject
) -> None:
    ngram, length = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 7))
    drafter = begun(text, max_ngram_size=ngram, num_pred_tokens=length)
    assert drafted(drafter, text[-1]) == searched(text, ngram, length)
    for accepted in steps:
        drafter.observe(step(*accepted))
        text = [*text, *accepted]
        assert drafted(drafter, text[-1]) == searched(text, ngram, length)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Three ids win over a later match of two, two over a later one of one.
        ([1, 2, 3, 7, 9, 2, 3, 8, 9, 3, 6, 1, 2, 3], [7, 9, 2, 3, 8, 9, 3, 6, 1, 2]),
        ([2, 3, 8, 9, 3, 6, 5, 2, 3], [8, 9, 3, 6, 5, 2, 3]),
        # Of two equal matches the later one.
        ([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], [8, 1, 2, 3]),
        # The end of the text is no earlier place; overlapping it is.
        ([4, 5, 6], []),
        ([4, 4, 4, 4], [4]),
    ],
)
def test_by_hand(text: list[int], expected: list[int]) -> None:
    drafter = begun(text)
    assert drafted(drafter, text[-1]) == expected
    assert drafter.max_nodes == 11


def test_it_drafts_no_deeper_than_is_of_use() -> None:
    drafter = begun([1, 2, 3, 4, 5, 1])
    assert drafted(drafter, 1, depth=2) == [2, 3]
    assert drafted(drafter, 1, depth=0) == []
    assert drafted(drafter, 1, depth=-1) == []


def test_a_request_starts_empty() -> None:
    drafter = begun([1, 2, 3, 1])
    drafter.begin(Prompt([5], NOTHING, lambda hidden: hidden, 1))
    assert drafted(drafter, 1) == []


def test_a_fork_goes_its_own_way() -> None:
    first = begun([1, 2, 3, 1])
    second = first.fork()
    first.observe(step(7, 1))
    assert drafted(first, 1) == [7, 1]
    assert drafted(second, 1) == [2, 3, 1]


@pytest.mark.parametrize("name", ["max_ngram_size", "num_pred_tokens"])
def test_a_size_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        PromptLookup(**{name: 0})
