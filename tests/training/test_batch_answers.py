"""Batched answers. May import: pytest, torch, scipy, tss_bench, tests."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from scipy.stats import chisquare

from tests import tiny
from tests.training import helpers
from tss_bench.training import batch_answers
from tss_bench.training.batch_answers import Answers, answer_prompts, choose, encode_prompt
from tss_bench.types import SkipSet

PROMPTS = [[5, 9, 11], [7, 3, 20, 31, 14, 6], [40], [8, 8, 22, 19], [12, 33], [4, 5, 6, 7, 8]]


def greedy(eos: frozenset[int] = frozenset(), new: int = 12, rows: int = 4) -> Answers:
    return answer_prompts(
        tiny.target(),
        PROMPTS,
        sampled=[False] * len(PROMPTS),
        max_new_tokens=new,
        eos=eos,
        seed=0,
        rows=rows,
    )


def lists(answers: Answers) -> list[list[int]]:
    return [ids.tolist() for ids in answers.ids]


def test_greedy_answers_are_those_of_hugging_face_generate() -> None:
    found = greedy()
    for prompt, ids in zip(PROMPTS, found.ids, strict=True):
        expected = tiny.model().generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None
        )
        assert ids.tolist() == expected[0].tolist()


def test_rows_stop_at_their_own_end_and_the_others_go_on() -> None:
    free = greedy()
    answers = [ids[len(p) :].tolist() for ids, p in zip(free.ids, PROMPTS, strict=True)]
    eos = answers[0][3]
    for answer, ids, prompt in zip(answers, greedy(frozenset({eos})).ids, PROMPTS, strict=True):
        cut = answer[: answer.index(eos) + 1] if eos in answer else answer
        assert ids[len(prompt) :].tolist() == cut


@pytest.mark.parametrize("rows", [1, 2, 64])
def test_answers_do_not_depend_on_how_many_grow_at_once(rows: int) -> None:
    eos = frozenset({int(greedy().ids[0][-5])})
    assert lists(greedy(eos, rows=rows)) == lists(greedy(eos))
    assert lists(helpers.answers(rows_at_once=rows)) == lists(helpers.answers())


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_prompts_of_all_lengths_share_a_batch(family: str) -> None:
    generator = torch.Generator().manual_seed(3)
    prompts = [
        torch.randint(3, tiny.VOCAB, (length,), generator=generator).tolist()
        for length in (2, 50, 1, 33, 50, 7, 48)
    ]
    found = answer_prompts(
        tiny.target(family),
        prompts,
        sampled=[False] * len(prompts),
        max_new_tokens=8,
        eos=frozenset(),
        seed=0,
        rows=2,
    )
    for prompt, ids in zip(prompts, found.ids, strict=True):
        expected = tiny.model(family).generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=None
        )
        assert ids.tolist() == expected[0].tolist()


def test_draws_follow_the_probabilities() -> None:
    weights = torch.tensor([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    logits = weights.log().expand(4000, -1)
    draws = random.Random(7)
    ids = choose(logits, [draws] * 4000)
    counts = [ids.count(i) for i in range(6)]
    assert counts[0] == counts[2] == counts[5] == 0
    assert chisquare([counts[1], counts[3], counts[4]], [800, 2000, 1200]).pvalue > 1e-3
    assert choose(logits[:2], [None, None]) == [3, 3]


def test_the_highest_draw_picks_no_impossible_id() -> None:
    class Highest(random.Random):
        def random(self) -> float:
            return 1 - 2**-53

    logits = torch.tensor([[0.3, -0.2, 1.1, float("-inf"), float("-inf")]])
    assert choose(logits, [Highest()]) == [2]


def test_features_are_the_target_s_own_hidden_states() -> None:
    target = tiny.target()
    found = greedy()
    assert found.features is not None
    for ids, features in zip(found.ids, found.features, strict=True):
        cache = target.new_cache(len(ids))
        with torch.inference_mode():
            own = target.prefill(ids[None, :-1], cache, SkipSet.dense(tiny.LAYERS))[0]
        assert features.shape == own.shape
        torch.testing.assert_close(features, own.bfloat16(), rtol=2e-2, atol=2e-2)


def test_sampling_follows_the_seed_and_leaves_greedy_rows_alone() -> None:
    first, same, other = helpers.answers(0), helpers.answers(0), helpers.answers(0)
    assert lists(first) == lists(same)
    prompts = [ids[:n].tolist() for ids, n in zip(first.ids, first.prompt_lengths, strict=True)]
    other = answer_prompts(
        tiny.target(),
        prompts,
        sampled=first.sampled,
        max_new_tokens=9,
        eos=frozenset({tiny.EOS}),
        seed=99,
        rows=len(prompts),
    )
    changed = [a.tolist() != b.tolist() for a, b in zip(first.ids, other.ids, strict=True)]
    assert any(changed)
    assert not any(c for c, warm in zip(changed, first.sampled, strict=True) if not warm)


def test_prompts_are_read_together_up_to_a_number_of_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_answers, "_PROMPT_TOKENS", 8)
    widths = []
    target = tiny.target()
    prefill = target.prefill

    def seen(ids: torch.Tensor, *others: Any) -> torch.Tensor:
        widths.append(tuple(ids.shape))
        return prefill(ids, *others)

    monkeypatch.setattr(target, "prefill", seen)
    assert lists(greedy(rows=6)) == lists(greedy(rows=1))
    # Prompts of 3 6 1 4 2 5 ids, padded to at most 8; then those of rows=1, one by one.
    assert widths[:6] == [(1, 3), (1, 6), (2, 4), (1, 2), (1, 5), (1, 3)]


def test_a_prompt_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 … 60 tokens fit this target.*got 61 … 61"):
        answer_prompts(
            tiny.target(),
            [[3] * 61],
            sampled=[False],
            max_new_tokens=4,
            eos=frozenset(),
            seed=0,
            rows=1,
        )


def test_chat_models_get_their_template_and_base_models_plain_text() -> None:
    tokenizer = tiny.tokenizer()
    assert encode_prompt(tokenizer, "t5 t6") == [5, 6]
    chat = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
    chat.chat_template = (
        "{% for m in messages %}t30 {{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %} t31{% endif %}"
    )
    assert encode_prompt(chat, "t5 t6") == [30, 5, 6, 31]
