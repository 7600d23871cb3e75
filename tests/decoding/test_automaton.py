"""The suffix automata against a search of every end of a text at every earlier place.

May import: pytest, hypothesis, numpy, safetensors, tss_bench.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from tss_bench.decoding.drafters.automaton import Match, SuffixAutomaton
from tss_bench.decoding.drafters.static_automaton import FORMAT, Cursor, StaticAutomaton

ALPHABETS = st.integers(1, 4)


@st.composite
def texts(draw: st.DrawFn, least: int = 0, most: int = 24) -> list[int]:
    letters = st.integers(0, draw(ALPHABETS) - 1)
    return draw(st.lists(letters, min_size=least, max_size=most))


DOCUMENTS = st.lists(texts(least=1, most=10), min_size=1, max_size=5)


def longest(documents: Sequence[list[int]], text: list[int], behind: int) -> Match:
    """The longest end of `text` in `documents` with `behind` ids after it, and its first place."""
    for length in range(len(text), 0, -1):
        start = 0
        for document in documents:
            for end in range(length - 1, len(document) - behind):
                if document[end - length + 1 : end + 1] == text[-length:]:
                    return Match(length, start + end)
            start += len(document) + 1
    return Match(0, -1)


@given(texts(most=40))
def test_the_longest_earlier_match_of_a_text(text: list[int]) -> None:
    automaton = SuffixAutomaton()
    for place, token in enumerate(text):
        automaton.append(token)
        # The occurrence that ends here is no earlier one: an id must follow.
        seen = text[: place + 1]
        assert automaton.match() == longest([seen], seen, behind=1)
    assert len(automaton) <= max(2 * len(text), 1)


@given(DOCUMENTS)
def test_matches_do_not_run_over_the_end_of_a_document(documents: list[list[int]]) -> None:
    automaton = SuffixAutomaton()
    for place, document in enumerate(documents):
        if place:
            automaton.separate()
        for size, token in enumerate(document, start=1):
            automaton.append(token)
            elsewhere = longest(documents[:place], document[:size], behind=0)
            start = sum(len(earlier) + 1 for earlier in documents[:place])
            here = longest([document[:size]], document[:size], behind=1)
            expected = elsewhere
            if here.length > elsewhere.length:
                expected = Match(here.length, here.end + start)
            assert automaton.match() == expected
    assert len(automaton) <= 2 * sum(map(len, documents))


@given(DOCUMENTS, texts(most=30))
def test_the_longest_match_in_a_corpus_that_something_follows(
    documents: list[list[int]], text: list[int]
) -> None:
    corpus = StaticAutomaton.build(documents, {})
    cursor = Cursor(corpus)
    for size, token in enumerate(text, start=1):
        cursor.extend([token])
        match = cursor.match()
        assert match == longest(documents, text[:size], behind=1)
        if match.length:
            assert cursor.following(match.end, 1)
    assert cursor.hops <= len(text)
    assert corpus.states <= 2 * corpus.tokens
    assert corpus.nbytes <= 60 * corpus.tokens + 16 + 4 * len(documents)


def test_a_draft_ends_with_the_text_or_the_document() -> None:
    automaton = SuffixAutomaton()
    automaton.extend([5, 6, 7, 8, 5, 6])
    assert automaton.match() == Match(2, 1)
    assert automaton.following(1, 40) == [7, 8, 5, 6]
    assert automaton.following(1, 2) == [7, 8]
    corpus = StaticAutomaton.build([[1, 2, 3], [4, 5], [9, 2, 7]], {})
    assert (corpus.tokens, corpus.largest_id) == (8, 9)
    assert corpus.following(0, 40) == [2, 3]
    assert corpus.following(4, 40) == [5]
    cursor = Cursor(corpus)
    cursor.extend([4, 5])
    # Nothing follows 5: neither 3 … nor the next document is proposed.
    assert cursor.match() == Match(0, -1)
    cursor.extend([9, 2])
    assert cursor.match() == Match(2, 8)
    assert cursor.following(8, 40) == [7]


def test_the_first_place_is_one_that_something_follows() -> None:
    cursor = Cursor(StaticAutomaton.build([[3, 4], [3, 4, 5]], {}))
    cursor.extend([3, 4])
    assert cursor.match() == Match(2, 4)


def test_forks_go_their_own_way() -> None:
    one = SuffixAutomaton()
    one.extend([1, 2, 3, 1, 4, 1])
    other = one.fork()
    other.extend([2, 3, 1, 5, 1])
    one.append(4)
    assert one.match() == Match(2, 4)
    assert other.match() == Match(1, 0)
    one.extend([1])
    assert one.match() == Match(3, 5)


def fibonacci(size: int) -> list[int]:
    before, text = [1], [0]
    while len(text) < size:
        before, text = text, text + before
    return text[:size]


def splitting(size: int) -> list[int]:
    """A much-branched string that ever shorter ends of it split again and again."""
    block = list(range(1, 33))
    text: list[int] = []
    for branch in range(size // 2 // len(block)):
        text += [*block, 100 + branch]
    for length in range(len(block) - 1, 0, -1):
        text += [10_000 + length, *block[-length:]]
    return text


ADVERSARIES: dict[str, Callable[[int], list[int]]] = {
    "one id": lambda size: [0] * size,
    "two halves": lambda size: [0] * (size // 2) + [1] * (size // 2),
    "one id, once broken": lambda size: [0] * (size // 2) + [1] + [0] * (size // 2),
    "alternating": lambda size: [place % 2 for place in range(size)],
    "all different": lambda size: list(range(size)),
    "growing runs": lambda size: [x for run in range(size) for x in [0] * run + [1]][:size],
    "fibonacci": fibonacci,
    "splitting": splitting,
    "random bits": lambda size: random.Random(1).choices([0, 1], k=size),
    "random ids": lambda size: random.Random(1).choices(range(500), k=size),
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_the_work_a_token_does_not_grow_with_the_text(name: str) -> None:
    """3n transitions are ever written or copied; redirected ones are paid by suffix links."""
    for size in (500, 4_000):
        text = ADVERSARIES[name](size)
        automaton = SuffixAutomaton()
        automaton.extend(text)
        assert automaton.work <= 5 * len(text)
        assert len(automaton) <= 2 * len(text)
        cursor = Cursor(StaticAutomaton.build([text[: size // 2], text[size // 2 :]], {}))
        cursor.extend([*text, *text[::-1]])
        assert cursor.hops <= 2 * len(text)


def test_a_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "corpus.sam"
    written = StaticAutomaton.build([[1, 2, 3, 1, 2], [7, 2, 3]], {"pretrained": "x"})
    written.save(path)
    assert [item.name for item in tmp_path.iterdir()] == ["corpus.sam"]
    read = StaticAutomaton.load(path)
    assert read.source == {"pretrained": "x"}
    assert (read.fingerprint, read.nbytes) == (written.fingerprint, written.nbytes)
    assert read.fingerprint != StaticAutomaton.build([[1, 2, 3]], {}).fingerprint
    cursors = [Cursor(written), Cursor(read)]
    for cursor in cursors:
        cursor.extend([9, 1, 2])
        assert cursor.match() == Match(2, 1)
        assert cursor.following(1, 40) == [3, 1, 2]


def test_no_document_and_empty_documents() -> None:
    with pytest.raises(ValueError, match="the corpus holds no text"):
        StaticAutomaton.build([[], []], {})
    assert StaticAutomaton.build([[], [5, 6], [], [7]], {}).tokens == 3


def test_what_is_no_whole_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "corpus.sam"
    with pytest.raises(ValueError, match=r"there is no file .*corpus.sam; make one with `tss-b"):
        StaticAutomaton.load(path)
    StaticAutomaton.build([[1, 2, 3, 1, 2]], {}).save(path)
    whole = path.read_bytes()
    arrays = load_file(path)
    for torn in (b"", b"torn", whole[:100], whole[:-1]):
        path.write_bytes(torn)
        with pytest.raises(ValueError, match=r"corpus.sam is torn .* build it again"):
            StaticAutomaton.load(path)
    save_file(arrays, path)
    with pytest.raises(ValueError, match="its format is not"):
        StaticAutomaton.load(path)
    save_file({"text": arrays["text"]}, path, {"format": FORMAT})
    with pytest.raises(ValueError, match="it holds text, not text, links"):
        StaticAutomaton.load(path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("links", lambda values: values + 1, "point outside"),
        ("targets", lambda values: values + 1, "point outside"),
        ("targets", lambda values: values - 1, "point outside"),
        ("ends", lambda values: values + 9, "point outside"),
        ("starts", lambda values: values[::-1].copy(), "point outside"),
        ("text", lambda values: values - 9, "point outside"),
        ("lengths", lambda values: values[1:], "lengths has"),
        ("ids", lambda values: values.astype(np.int64), "ids is no list of int32"),
    ],
)
def test_arrays_that_lead_astray_are_refused(
    tmp_path: Path, name: str, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    path = tmp_path / "corpus.sam"
    StaticAutomaton.build([[1, 2, 3, 1, 2]], {}).save(path)
    arrays = load_file(path)
    save_file({**arrays, name: change(arrays[name])}, path, {"format": FORMAT})
    with pytest.raises(ValueError, match=message):
        StaticAutomaton.load(path)
