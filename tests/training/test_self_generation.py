"""Self-generation. May import: pytest, torch, tss_bench.training, tests.tiny."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.training import helpers
from tss_bench.training import self_generation as sg
from tss_bench.training.eagle_smoke import make_tiny_target
from tss_bench.types import SkipSet

PROMPTS = [[5, 9, 11], [7, 3, 20, 31, 14, 6], [40], [8, 8, 22, 19], [12, 33], [4, 5, 6, 7, 8]]


def greedy(eos: frozenset[int] = frozenset(), new: int = 12) -> sg.Answers:
    return sg.answer_batch(
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
    other = sg.answer_batch(
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
        sg.answer_batch(
            tiny.target(),
            [[3] * 61],
            sampled=[False],
            max_new_tokens=4,
            eos=frozenset(),
            generator=torch.Generator(),
        )


def test_a_shard_is_read_as_it_was_written(tmp_path: Path) -> None:
    answers = helpers.answers()
    path = sg.shard_path(tmp_path, 3)
    sg.write_answers(path, answers)
    read = sg.read_answers(path)
    assert [r.tolist() for r in read.ids] == [r.tolist() for r in answers.ids]
    assert read.prompt_lengths == answers.prompt_lengths
    assert read.sampled == answers.sampled
    assert read.new_tokens == sum(len(r) for r in answers.ids) - sum(answers.prompt_lengths)
    assert answers.features is not None
    stored = sg.read_features(sg.features_path(path))[:]
    assert torch.equal(stored, torch.cat(answers.features))


def test_shards_hold_every_prompt_once_and_lengths_alike() -> None:
    recipe = sg.GenerationRecipe("m", "r", batch_size=4)
    lengths = [(i * 37) % 101 for i in range(30)]
    shards = sg.plan_shards(lengths, recipe)
    assert sorted(i for shard in shards for i in shard) == list(range(30))
    spans = sorted((min(lengths[i] for i in s), max(lengths[i] for i in s)) for s in shards)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    assert shards == sg.plan_shards(lengths, recipe)


@pytest.fixture(scope="module")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory) -> sg.GenerationRecipe:
    directory = tmp_path_factory.mktemp("target")
    make_tiny_target(directory)
    return sg.GenerationRecipe(
        str(directory), "r1", prompts=12, max_new_tokens=6, batch_size=4, sampled_share=0.5
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.safetensors"))}


def test_a_killed_run_ends_with_the_same_data(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    sg.generate_data(whole, tiny_recipe, device="cpu")

    write, calls = sg.write_answers, []

    def kill_at_second(path: Path, answers: sg.Answers) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        write(path, answers)

    monkeypatch.setattr(sg, "write_answers", kill_at_second)
    with pytest.raises(KeyboardInterrupt):
        sg.generate_data(broken, tiny_recipe, device="cpu")
    assert len(sg.shard_paths(broken)) == 1
    monkeypatch.undo()
    assert len(sg.generate_data(broken, tiny_recipe, device="cpu")) == 3
    assert contents(broken) == contents(whole)


def test_another_recipe_is_refused(tmp_path: Path, tiny_recipe: sg.GenerationRecipe) -> None:
    sg.generate_data(tmp_path, tiny_recipe, device="cpu", keep_features=False)
    assert not list(tmp_path.glob("features-*"))
    with pytest.raises(ValueError, match=r"another seed \(0, asked for 5\)"):
        sg.generate_data(tmp_path, replace(tiny_recipe, seed=5), device="cpu")


def test_a_directory_without_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no self-generated data"):
        sg.read_recipe(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": 0}, "prompts must be at least 1, got 0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"sampled_share": 1.5}, r"sampled_share must lie in 0 … 1, got 1.5"),
    ],
)
def test_bad_recipes(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sg.GenerationRecipe("m", "r", **change)  # type: ignore[arg-type]


def test_chat_models_get_their_template_and_base_models_plain_text() -> None:
    tokenizer = tiny.tokenizer()
    assert sg.encode_prompt(tokenizer, "t5 t6") == [5, 6]
    chat = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
    chat.chat_template = (
        "{% for m in messages %}t30 {{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %} t31{% endif %}"
    )
    assert sg.encode_prompt(chat, "t5 t6") == [30, 5, 6, 31]


def test_the_mini_set_is_among_the_texts_to_avoid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TSS_BENCH_DATA", raising=False)
    path = next(iter(sorted(sg.MINI_DIRECTORY.glob("*.jsonl"))))
    first = json.loads(path.read_text("utf-8").splitlines()[0])["turns"][0]
    assert first in sg.evaluation_texts()


def test_official_rows_are_among_the_texts_to_avoid(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", str(data_dir))
    lines = (data_dir / "specbench" / "question.jsonl").read_text("utf-8").splitlines()
    assert json.loads(lines[5])["turns"][0] in sg.evaluation_texts()
