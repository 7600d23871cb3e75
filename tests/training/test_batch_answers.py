"""Batched answers. May import: pytest, torch, tss_bench, tests."""

from __future__ import annotations

import pytest
import torch

from tests import tiny
from tests.training import helpers
from tss_bench.training.batch_answers import Answers, answer_batch, encode_prompt
from tss_bench.types import SkipSet

PROMPTS = [[5, 9, 11], [7, 3, 20, 31, 14, 6], [40], [8, 8, 22, 19], [12, 33], [4, 5, 6, 7, 8]]


def greedy(eos: frozenset[int] = frozenset(), new: int = 12) -> Answers:
    return answer_batch(
        tiny.target(),
        PROMPTS,
        sampled=[False] * len(PROMPTS),
        max_new_tokens=new,
        eos=eos,
        generator=torch.Generator(),
    )


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
    assert [r.tolist() for r in first.ids] == [r.tolist() for r in same.ids]
    prompts = [ids[:n].tolist() for ids, n in zip(first.ids, first.prompt_lengths, strict=True)]
    other = answer_batch(
        tiny.target(),
        prompts,
        sampled=first.sampled,
        max_new_tokens=9,
        eos=frozenset({tiny.EOS}),
        generator=torch.Generator().manual_seed(99),
    )
    changed = [a.tolist() != b.tolist() for a, b in zip(first.ids, other.ids, strict=True)]
    assert any(changed)
    assert not any(c for c, warm in zip(changed, first.sampled, strict=True) if not warm)


def test_a_prompt_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"1 … 60 tokens fit this target.*got 61 … 61"):
        answer_batch(
            tiny.target(),
            [[3] * 61],
            sampled=[False],
            max_new_tokens=4,
            eos=frozenset(),
            generator=torch.Generator(),
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
