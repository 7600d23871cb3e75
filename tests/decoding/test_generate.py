"""Counts, stop rules and limits of the decoding loop on a tiny target."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
import torch

from tests import tiny
from tests.decoding import reference
from tss_bench.decoding.answer import Answer
from tss_bench.decoding.drafters.base import Drafter, Prompt
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.generate import (
    DecodingOptions,
    Generation,
    finish,
    generate,
    generate_steps,
)
from tss_bench.protocols import StopRule
from tss_bench.types import SkipSet

PROMPT = [5, 6, 7, 8]
DENSE = SkipSet.dense(tiny.LAYERS)


def answer_of(limit: int, prompt: Sequence[int] = PROMPT) -> list[int]:
    """The dense greedy answer without any end of text, by Hugging Face."""
    model = tiny.model()
    ids = list(prompt)
    with torch.no_grad():
        while len(ids) < len(prompt) + limit:
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


def run(drafter: Drafter, options: DecodingOptions, prompt: Sequence[int] = PROMPT) -> Generation:
    return generate(tiny.target(), drafter, prompt, DENSE, options, tiny.tokenizer())


def test_plain_decoding_counts_no_step_for_the_prefill_id() -> None:
    stats = run(NoDraft(), DecodingOptions(5, frozenset())).stats
    assert (stats.new_tokens, stats.verify_steps, stats.stop) == (5, 4, "length")
    assert stats.accept_lengths == (1, 1, 1, 1)
    assert (stats.drafted, stats.accepted) == (0, 0)


def test_a_first_id_that_ends_the_text_needs_no_step() -> None:
    first = answer_of(1)[0]
    result = run(NoDraft(), DecodingOptions(9, frozenset({first})))
    assert result.ids == (first,)
    assert result.text == ""
    assert (result.stats.new_tokens, result.stats.verify_steps) == (1, 0)
    assert result.stats.stop == "eos"


def test_accepted_drafts_and_bonus_are_counted_apart() -> None:
    answer = answer_of(9)
    stats = run(tiny.Oracle(answer, length=3), DecodingOptions(9, frozenset())).stats
    # 1 id from prefill, then 3 drafts + bonus twice; each right draft has one wrong sibling.
    assert stats.accept_lengths == (4, 4)
    assert (stats.accepted, stats.drafted) == (6, 12)


def test_the_limit_cuts_inside_a_block_and_drafts_no_deeper_than_it() -> None:
    answer = answer_of(9)
    result = run(tiny.Oracle(answer, length=8), DecodingOptions(4, frozenset()))
    assert list(result.ids) == answer[:4]
    assert result.stats.accept_lengths == (3,)
    assert (result.stats.accepted, result.stats.drafted) == (2, 4)
    assert result.stats.stop == "length"


def test_end_of_text_inside_a_block_ends_there() -> None:
    answer = answer_of(8)
    end = answer[3]
    assert end not in answer[:3], "the tiny model's answer must not repeat before the end"
    result = run(tiny.Oracle(answer, length=6), DecodingOptions(8, frozenset({end})))
    assert list(result.ids) == answer[:4]
    assert result.stats.accept_lengths == (3,)
    assert result.stats.accepted == 3
    assert result.stats.stop == "eos"
    assert result.text.split() == [f"t{token}" for token in answer[:3]]


def test_paper_protocol_runs_past_the_end_and_the_limit() -> None:
    answer = answer_of(12)
    options = DecodingOptions(5, frozenset({answer[2]}), protocol="paper")
    result = run(tiny.Oracle(answer, length=6), options)
    assert list(result.ids) == answer[:8]
    assert result.stats.accept_lengths == (7,)
    assert result.stats.stop == "length"


def test_the_context_limits_the_answer() -> None:
    prompt = [3 + i % 40 for i in range(tiny.CONTEXT - 4)]
    answer = answer_of(4, prompt)
    for drafter in (NoDraft(), tiny.Oracle([*answer, 9, 9, 9, 9], length=8)):
        result = run(drafter, DecodingOptions(50, frozenset()), prompt)
        assert list(result.ids) == answer
        assert result.stats.stop == "context"
        assert result.stats.limit_clamped


def test_a_limit_that_fits_is_not_flagged() -> None:
    assert not run(NoDraft(), DecodingOptions(3, frozenset())).stats.limit_clamped


def test_zero_new_tokens_is_an_empty_answer() -> None:
    result = run(NoDraft(), DecodingOptions(0, frozenset()))
    assert (result.ids, result.text, result.stats.stop) == ((), "", "length")


def test_steps_hand_out_the_answer_while_it_grows() -> None:
    answer = answer_of(9)
    drafter = tiny.Oracle(answer, length=3)
    options = DecodingOptions(9, frozenset())
    seen = []
    steps = generate_steps(tiny.target(), drafter, PROMPT, DENSE, options, tiny.tokenizer())
    for growing in steps:
        # The mode is the thread's: what the caller computes here is not in it.
        assert not torch.is_inference_mode_enabled()
        seen.append(list(growing.ids))
    # The prefill's id, then 3 drafts + bonus; the last step is in what is returned.
    assert seen == [answer[:1], answer[:5]]
    again = generate_steps(tiny.target(), drafter, PROMPT, DENSE, options, tiny.tokenizer())
    assert list(finish(again).ids) == answer


def test_the_time_between_two_steps_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("tss_bench.decoding.answer.time.perf_counter", lambda: now[0])
    options = DecodingOptions(4, frozenset())
    steps = generate_steps(tiny.target(), NoDraft(), PROMPT, DENSE, options, tiny.tokenizer())

    def slowly() -> Generation:
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            now[0] += 100.0

    stats = slowly().stats
    assert (stats.wall_s, stats.prefill_s, stats.draft_s, stats.verify_s) == (0, 0, 0, 0)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="the prompt is empty"):
        run(NoDraft(), DecodingOptions(3, frozenset()), [])


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match=r"64 tokens leaves no room .* context of 64"):
        run(NoDraft(), DecodingOptions(3, frozenset()), [5] * tiny.CONTEXT)


def test_a_skip_set_of_another_depth_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\{5\} is for 6 layers, the target has 4"):
        generate(
            tiny.target(),
            NoDraft(),
            PROMPT,
            SkipSet.of([5], 6),
            DecodingOptions(3, frozenset()),
            tiny.tokenizer(),
        )


def test_a_stop_string_ends_the_answer_inside_a_block() -> None:
    answer = answer_of(8)
    stop = f"t{answer[3]}"
    result = run(tiny.Oracle(answer, length=6), DecodingOptions(8, frozenset(), (stop,)))
    assert list(result.ids) == answer[:4]
    assert result.text.split() == [f"t{token}" for token in answer[:3]]
    assert result.stats.stop == "stop_string"
    assert result.stats.accept_lengths == (3,)


class Pieces:
    """A tokenizer whose id i is the i-th piece of a list."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(self._pieces[i] for i in ids)


def piecewise(pieces: list[str], blocks: list[list[int]], stop: str) -> Answer:
    rule = StopRule(frozenset(), 99, "length", "strict")
    answer = Answer(rule, [stop], Pieces(pieces))  # type: ignore[arg-type]
    for block in blocks:
        answer.append_step(block, drafted=len(block) - 1)
        if answer.stop:
            break
    return answer


def test_a_stop_string_may_span_two_steps() -> None:
    answer = piecewise(["ans", "wer\n", "\nQ", ": x"], [[0, 1], [2, 3]], "\n\nQ:")
    assert (answer.text(), answer.stop, answer.ids) == ("answer", "stop_string", [0, 1, 2, 3])


def test_a_stop_string_may_be_the_prefix_of_a_piece() -> None:
    answer = piecewise(["yes", ".)", " more"], [[0, 1, 2]], ".")
    assert (answer.text(), answer.ids) == ("yes", [0, 1])


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        DecodingOptions(3, frozenset(), ("",))


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_sampling_depends_on_the_seed_alone(temperature: float) -> None:
    def sample(seed: int) -> tuple[int, ...]:
        options = DecodingOptions(12, frozenset(), temperature=temperature, seed=seed)
        return run(NoDraft(), options).ids

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(6)}) > 1


class Slow(NoDraft):
    """A drafter that takes its time with the prompt."""

    def begin(self, prompt: Prompt) -> None:
        time.sleep(0.05)


def test_what_a_drafter_does_with_the_prompt_is_drafting_time() -> None:
    stats = run(Slow(), DecodingOptions(3, frozenset())).stats
    assert stats.draft_s >= 0.05


def test_times_add_up_to_no_more_than_the_wall_clock() -> None:
    stats = run(NoDraft(), DecodingOptions(6, frozenset())).stats
    assert 0 < stats.prefill_s + stats.draft_s + stats.verify_s <= stats.wall_s


def test_hub_generate_and_this_file_agree_on_the_answer() -> None:
    assert reference.hub_generate("llama", PROMPT, 1) == answer_of(1)
