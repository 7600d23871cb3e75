"""How an answer is shown: colours, accept lengths, comparison, JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tss_bench.answer_steps import AnswerStep, Piece
from tss_bench.answer_view import comparison, comparison_text, record, step_text, summary, visible
from tss_bench.api import Answer
from tss_bench.types import GenerationStats, SkipSet

STEP = AnswerStep((Piece(1, "a ", "draft"), Piece(2, "", "draft"), Piece(3, "b", "bonus")))


def answer(*lengths: int, skip: tuple[int, ...] = (), wall_s: float = 2.0) -> Answer:
    new = 1 + sum(lengths)
    accepted = sum(lengths) - len(lengths)
    stats = GenerationStats(
        7, new, len(lengths), 2 * accepted, accepted, lengths, 0.5, 0.5, 1.0, wall_s, "length"
    )
    ids = tuple(range(new))
    steps = (AnswerStep((Piece(0, "x", "prefill"),)), STEP)
    return Answer(
        "text", ids, steps, stats, "tss_eagle", SkipSet.of(skip, 30), "verify", "strict", None, "so"
    )


def test_accepted_drafts_are_green_and_the_target_s_own_ids_plain() -> None:
    assert step_text(STEP, color=True) == "\x1b[32ma \x1b[0mb"
    assert step_text(STEP, color=False) == "a b"


def test_an_answer_cannot_steer_a_terminal() -> None:
    assert visible("a\x1b[2J\r\n\tü€😀\x9b\u200b") == "a\\x1b[2J\\r\n\tü€😀\\x9b\u200b"


def test_the_summary_shows_steps_counts_and_the_skip_set() -> None:
    lines = summary(answer(3, 1, 1, 3, 1, skip=(3, 10)), "tiny").splitlines()
    assert lines[0] == "accept lengths 3 1 1 3 1"
    # Three ones are the longest bar, 40 wide; two threes are two thirds of it, rounded up.
    assert lines[1] == f"  1 {'#' * 40} 3"
    assert lines[2].split() == ["2", "0"]
    assert lines[3].split() == ["3", "#" * 27, "2"]
    # 9 ids in 5 steps, 4 of 8 drafts accepted; 10 ids in 2 s.
    assert lines[4] == "accept_len 1.80, accepted_per_step 0.80, accept_rate 0.50"
    assert lines[5].startswith("10 new tokens in 2.00 s: 5.0 tokens/s, 5 verification steps")
    assert lines[5].endswith("stop: length")
    assert " ".join(lines[6:]) == (
        "tss_eagle: skips {3,10} of 30 layers of tiny (so; scope verify, protocol strict)"
    )


def test_a_long_answer_stays_compact() -> None:
    lines = summary(answer(*[1] * 500), "tiny").splitlines()
    assert max(map(len, lines)) <= 100
    assert "… and 300 more" in " ".join(lines)
    assert len(lines) < 12


def test_an_answer_without_a_step_shows_its_counts_alone() -> None:
    assert summary(answer(), "tiny").startswith("1 new tokens in 2.00 s: 0.5 tokens/s, 0 verif")


def test_a_comparison_tells_text_speed_and_why_texts_differ() -> None:
    def compare(
        one: Answer, dtype: str = "bfloat16", temperature: float = 0.0, **change: Any
    ) -> Any:
        plain = dataclasses.replace(answer(1, 1, wall_s=3.0), model="native_ar", **change)
        return comparison(one, plain, dtype, temperature)

    same = compare(answer(2))
    # 3 ids in 2 s against 3 in 3 s.
    assert (same["same_text"], same["parts_at"], same["speed_up"]) == (True, None, 1.5)
    text = comparison_text(same, "tss_eagle")
    assert text.splitlines()[0] == "native_ar gives the same text"
    assert "1.50x its tokens/s (1.5 against 1.0): one prompt, a look" in text.replace("\n ", "")
    other = {"ids": (0, 1, 5), "text": "other"}
    parted = compare(answer(2), **other)
    assert (parted["same_text"], parted["parts_at"]) == (False, 2)
    assert "rounding may change places" in comparison_text(parted, "m").replace("\n ", "")
    assert compare(answer(2), text="longer", ids=(0, 1, 2, 3))["parts_at"] == 3
    assert "layers are skipped" in compare(answer(2, skip=(1,)), **other)["reason"]
    assert "sampled" in compare(answer(2), temperature=1.0, **other)["reason"]
    assert "should be equal" in compare(answer(2), "float32", **other)["reason"]


def test_the_record_is_json_with_every_step() -> None:
    found = json.loads(json.dumps(record(answer(3, skip=(1,)), "tiny", "float32", "cpu")))
    assert (found["target"], found["skip"], found["num_layers"]) == ("tiny", [1], 30)
    assert found["steps"][1][0] == {"id": 1, "text": "a ", "source": "draft"}
    assert found["stats"]["accept_lengths"] == [3]
    assert found["figures"]["tokens_per_second"] == 2.0
