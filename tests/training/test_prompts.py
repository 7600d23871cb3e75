"""The prompt recipe. May import: pytest, tss_bench.training.prompts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tss_bench.training.prompts import (
    SHARES,
    Overlap,
    allot,
    fill,
    german_sentence,
    make_prompts,
)

THIRTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen"


def test_five_thousand_prompts_are_different_and_cover_every_kind() -> None:
    prompts = make_prompts(5000, seed=0)
    assert len({prompt.text for prompt in prompts}) == 5000
    assert set(Counter(prompt.kind for prompt in prompts)) == set(SHARES)


def test_the_recipe_depends_on_the_seed_only() -> None:
    assert make_prompts(200, seed=3) == make_prompts(200, seed=3)
    assert make_prompts(200, seed=3) != make_prompts(200, seed=4)


def test_no_slot_or_wrong_article_is_left() -> None:
    for prompt in make_prompts(3000, seed=1):
        assert "{" not in prompt.text
        assert "}" not in prompt.text
        assert " a elephant" not in prompt.text
        assert " a architect" not in prompt.text


def test_articles_have_80_to_400_words() -> None:
    texts = [p.text for p in make_prompts(1000, seed=2) if p.kind == "summarization"]
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 80
    assert max(lengths) <= 400
    assert max(lengths) > 200


def test_long_kinds_are_several_times_as_long_as_short_ones() -> None:
    prompts = make_prompts(60, seed=2, kinds=["passages", "articles"])
    assert Counter(prompt.kind for prompt in prompts) == {"articles": 30, "passages": 30}
    lengths = sorted(len(prompt.text.split()) for prompt in prompts)
    assert lengths[0] >= 100
    assert lengths[30] >= 300
    assert lengths[-1] <= 1000


def test_german_sentences_are_closed_and_start_with_a_capital() -> None:
    rng = random.Random(0)
    sentences = [german_sentence(rng) for _ in range(500)]
    assert all(s[-1] in ".?" and s[0].isupper() for s in sentences)
    assert not any(" ." in s or " ," in s or "  " in s for s in sentences)


def test_allot_gives_every_prompt_away() -> None:
    # 18, 10, 5, 17, 10, 5, 7, 14, 5, 9 percent of 10: 1.8, 1, 0.5, 1.7, 1, 0.5, 0.7, 1.4, 0.5, 0.9.
    assert allot(10) == {
        "translation": 2,
        "summarization": 1,
        "articles": 1,
        "questions": 2,
        "contexts": 1,
        "passages": 0,
        "choices": 1,
        "sums": 1,
        "code": 0,
        "chat": 1,
    }
    assert allot(4, ["articles", "passages"]) == {"articles": 2, "passages": 2}
    assert sum(allot(5001).values()) == 5001


def test_thirteen_words_in_a_row_are_an_overlap_twelve_are_not() -> None:
    overlap = Overlap([f"Start here: {THIRTEEN}, and so on."])
    assert f"Say {THIRTEEN.upper()}!" in overlap
    twelve = THIRTEEN.rsplit(" ", 1)[0]
    assert f"Say {twelve}, stop." not in overlap


def test_a_short_row_is_an_overlap_only_as_a_whole() -> None:
    overlap = Overlap(["Who wrote Hamlet?"])
    assert "who wrote hamlet" in overlap
    assert "Who wrote Hamlet? Explain briefly." not in overlap


def test_excluded_texts_are_replaced_by_others() -> None:
    before = make_prompts(400, seed=0)
    # Long articles share whole sentences with one another, as they do with no evaluation row.
    unwanted = [prompt.text for prompt in before if prompt.kind in ("questions", "chat")][::3]
    after = {prompt.text for prompt in make_prompts(400, seed=0, excluded=unwanted)}
    assert len(after) == 400
    assert after.isdisjoint(unwanted)


def test_a_named_slot_keeps_its_value_and_a_second_pick_differs() -> None:
    text = fill("{x} {x2} {x} {n:5-9} {n:5-9}", random.Random(0), {"x": ["p", "q"]}, {})
    first, second, again, number, same = text.split()
    assert first == again != second
    assert number == same
    assert 5 <= int(number) <= 9


@pytest.mark.parametrize(
    ("template", "expected"),
    [("a otter", "an otter"), ("A animal", "An animal"), ("a unit", "a unit"), ("a one", "a one")],
)
def test_articles_before_vowels(template: str, expected: str) -> None:
    assert fill(template, random.Random(0), {}, {}) == expected


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        make_prompts(0)
    with pytest.raises(ValueError, match="unknown kind of prompt 'poems'; name one or more of tr"):
        make_prompts(5, kinds=["chat", "poems"])
    with pytest.raises(ValueError, match="kinds must differ"):
        make_prompts(5, kinds=["chat", "chat"])
    with pytest.raises(ValueError, match="no word list 'colour'"):
        fill("{colour}", random.Random(0), {}, {})
    with pytest.raises(ValueError, match="'questions' give no more new prompts"):
        make_prompts(100_000)
