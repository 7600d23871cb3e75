"""The steps of an answer from its ids alone; one id is one byte here."""

from __future__ import annotations

import random

import pytest

from tests.model_adapters.conftest import make_tokenizer
from tss_bench.answer_steps import AnswerStep, StepReader
from tss_bench.types import GenerationStats, StopReason

TOKENIZER = make_tokenizer()
END = 1
# A letter of one, two, three and four bytes, then bytes that are no letter.
TEXT = "aé€😀 "


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False))


def stats(stop: StopReason, accepted: int = 0) -> GenerationStats:
    return GenerationStats(4, 9, 0, 9, accepted, (), 0.0, 0.0, 0.0, 0.0, stop)


def read(
    ids: list[int],
    sizes: list[int],
    text: str,
    *stop_strings: str,
    stop: StopReason = "length",
    accepted: int = 0,
) -> list[AnswerStep]:
    """The steps of an answer that grew by `sizes` ids a step; the rest is its last step."""
    reader, steps, at = StepReader(TOKENIZER, stop_strings), [], 0
    for size in sizes:
        at += size
        steps.append(reader.step(ids[:at]))
    return [*steps, reader.last(ids, text, stats(stop, accepted))]


def test_the_first_id_is_the_prefill_s_then_drafts_come_before_their_bonus() -> None:
    ids = ids_of("abcdef")
    first, second, last = read(ids, [1, 3], "abcdef", accepted=3)
    assert [piece.source for piece in first.pieces] == ["prefill"]
    assert (first.verified, first.drafts, first.bonus) == (False, (), None)
    assert [piece.source for piece in second.pieces] == ["draft", "draft", "bonus"]
    assert (second.drafts, second.bonus, second.text) == (tuple(ids[1:3]), ids[3], "bcd")
    # Three drafts were accepted in all, so one in the last step.
    assert [piece.source for piece in last.pieces] == ["draft", "bonus"]
    assert str(last) == "ef"


def test_a_last_step_that_is_cut_may_lack_its_bonus() -> None:
    *_, last = read(ids_of("abc"), [1], "abc", accepted=2)
    assert [piece.source for piece in last.pieces] == ["draft", "draft"]
    assert last.bonus is None


def test_a_letter_of_several_ids_comes_with_the_last_of_them() -> None:
    ids = ids_of(TEXT)
    assert len(ids) == 1 + 2 + 3 + 4 + 1
    steps = read(ids, [1] * (len(ids) - 1), TEXT)
    assert [step.text for step in steps] == ["a", "", "é", "", "", "€", "", "", "", "😀", " "]


def test_pieces_join_to_the_text_however_the_answer_grew() -> None:
    draw = random.Random(3)
    for _ in range(60):
        # Random bytes are mostly no UTF-8: the text is full of replacement characters.
        ids = [*ids_of(TEXT), *(draw.randrange(6, 262) for _ in range(12))]
        draw.shuffle(ids)
        text = TOKENIZER.decode(ids, skip_special_tokens=True)
        sizes = [1]
        while sum(sizes) < len(ids) - 4:
            sizes.append(draw.randint(1, 4))
        steps = read(ids, sizes, text)
        assert "".join(step.text for step in steps) == text
        assert [token for step in steps for token in step.ids] == ids


def test_what_may_become_a_stop_string_is_held_back() -> None:
    # "ab" ends the answer; the first "a" does not begin it after all.
    ids = ids_of("xacab")
    steps = read(ids, [1, 1, 1, 1], "xac", "ab", stop="stop_string")
    assert [step.text for step in steps] == ["x", "", "ac", "", ""]


def test_of_several_stop_strings_the_longest_beginning_is_held_back() -> None:
    ids = ids_of("x\n\n\ny")
    steps = read(ids, [1, 1, 1, 1], "x\n\n\ny", "\n\n\n!", "\n.")
    assert [step.text for step in steps] == ["x", "", "", "", "\n\n\ny"]


def test_an_end_of_text_has_no_text_and_what_was_held_back_comes_before_it() -> None:
    ids = [*ids_of("ab"), END]
    (first, last) = read(ids, [1], "ab", "bc", stop="eos", accepted=1)
    assert [piece.text for piece in last.pieces] == ["b", ""]
    assert first.text == "a"
    *_, alone = read(ids, [1, 1], "ab", "bc", stop="eos")
    assert alone.text == "b"


@pytest.mark.parametrize("stop", ["eos", "length"])
def test_an_answer_of_one_id(stop: StopReason) -> None:
    ids = [END] if stop == "eos" else ids_of("a")
    (only,) = read(ids, [], "" if stop == "eos" else "a", stop=stop)
    assert (only.verified, only.text) == (False, "" if stop == "eos" else "a")
