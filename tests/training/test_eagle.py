"""`tss-bench train eagle` as a whole. May import: pytest, torch, tss_bench, tests."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, Qwen3Config, StableLmConfig

from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.generate import DecodingOptions, generate
from tss_bench.decoding.target import Target
from tss_bench.training import eagle
from tss_bench.training.batch_answers import Answers
from tss_bench.training.eagle_objective import Hits
from tss_bench.training.eagle_scaling import Scales, fold, training_config
from tss_bench.training.eagle_trainer import Report
from tss_bench.training.self_generation import (
    features_path,
    read_answers,
    shard_paths,
    write_answers,
)
from tss_bench.training.smoke import make_tiny_target
from tss_bench.types import SkipSet
from tss_bench.weights import load_eagle_head, load_model


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    eagle.add_arguments(parser)
    return parser.parse_args(words)


SMALL = ("--prompts", "12", "--max-new-tokens", "6", "--generation-batch", "4", "--workers", "1",
         "--epochs", "1", "--batch-slots", "512", "--draft-vocab", "64", "--held-out", "0.2",
         "--device", "cpu")  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `target`, a tiny model, and `run`, a finished training run."""
    place = tmp_path_factory.mktemp("train")
    make_tiny_target(place / "target")
    words = ("--pretrained", str(place / "target"), "--out", str(place / "run"), *SMALL)
    eagle.run(parse(*words))
    return place


def test_the_head_drafts_for_its_target_without_loss(trained: Path) -> None:
    model, tokenizer, info = load_model(str(trained / "target"), dtype="float32", device="cpu")
    target = Target(model)
    head = load_eagle_head(
        trained / "run" / "head",
        target_hidden_size=target.hidden_size,
        target_vocab_size=target.vocab_size,
    )
    assert head.config.draft_vocab_size == 64
    drafter = Eagle(head, target, DynamicTree(6, 2, 3))
    options = DecodingOptions(12, frozenset({2}))
    skip = SkipSet.dense(info.num_layers)
    prompt = [4, 9, 25, 7]
    drafted = generate(target, drafter, prompt, skip, options, tokenizer)
    plain = generate(target, NoDraft(), prompt, skip, options, tokenizer)
    assert drafted.ids == plain.ids
    assert drafted.stats.drafted > 0


def test_provenance_tells_how_to_make_it_again_but_no_places(trained: Path) -> None:
    text = (trained / "run" / "head" / "provenance.json").read_text("utf-8")
    made = json.loads(text)
    assert "--epochs 1" in made["command"]
    assert "--prompts 12" in made["command"]
    assert str(trained / "run") not in text
    assert made["data"]["answers"] <= 12
    assert made["data_recipes"][0]["prompts"] == 12
    assert made["best"]["feature_loss"] > 0
    assert set(made["versions"]) == {"tss_bench", "torch", "transformers"}


def test_a_finished_run_is_finished_again_without_training(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--pretrained", str(trained / "target"), "--out", str(trained / "run"), *SMALL)
    weights = (trained / "run" / "head" / "model.safetensors").read_bytes()
    # As after a torn file: training computes these features again, rounded another way.
    features_path(shard_paths(trained / "run" / "data")[0]).unlink()
    killed = trained / "run" / "head" / f"model.safetensors.{10**30}.part"
    killed.touch()
    eagle.run(parse(*words))
    assert not killed.exists()
    assert (trained / "run" / "head" / "model.safetensors").read_bytes() == weights
    assert "wrote" in capsys.readouterr().out


def test_another_part_of_the_text_does_not_resume(trained: Path) -> None:
    words = ("--pretrained", str(trained / "target"), "--out", str(trained / "run"), *SMALL)
    with pytest.raises(ValueError, match="--data, --held-out or --train-tokens was another"):
        eagle.run(parse(*words, "--train-tokens", "9"))


def test_the_head_is_the_folded_best_one_in_bfloat16(trained: Path) -> None:
    run = trained / "run"
    config = EagleConfig.from_dict(json.loads((run / "head" / "config.json").read_text("utf-8")))
    state = torch.load(run / "checkpoint.pt")
    scales = Scales(**state["run"]["scales"])
    best = EagleHead(training_config(config, scales))
    best.load_state_dict(state["best"])
    expected = fold(best, config, scales).to(torch.bfloat16).state_dict()
    found = load_file(run / "head" / "model.safetensors")
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert value.dtype == expected[name].dtype
        assert torch.equal(value, expected[name]), name


def test_the_curves_are_drawn(trained: Path) -> None:
    picture = (trained / "run" / "curves.svg").read_text("utf-8")
    for title in ("held-out loss", "accepted", "depth 5", "accept length of a chain"):
        assert title in picture


def test_nothing_is_drawn_of_what_was_not_measured() -> None:
    nothing, some = Hits((0, 0), (0, 0)), Hits((4, 2), (0, 0))
    reports = [Report(step, 1.0, 1.0, 1.0, hits) for step, hits in ((5, nothing), (6, some))]
    assert set(eagle._panels(reports[:1])) == {"held-out loss"}
    panels = eagle._panels(reports)
    assert panels["accepted"] == {"depth 1": [(6, 0.0)], "depth 2": []}
    assert panels["accept length of a chain"] == {"": [(6, 1.0)]}


def test_fewer_tokens_and_a_vocabulary_by_coverage(trained: Path, tmp_path: Path) -> None:
    data = str(trained / "run" / "data")
    small = [word for word in SMALL if word not in ("--draft-vocab", "64")]
    words = ("--pretrained", str(trained / "target"), "--out", str(tmp_path / "x"), "--data", data)
    eagle.run(parse(*words, *small, "--train-tokens", "9", "--draft-coverage", "1"))
    made = json.loads((tmp_path / "x" / "head" / "provenance.json").read_text("utf-8"))
    whole = json.loads((trained / "run" / "head" / "provenance.json").read_text("utf-8"))
    assert 9 <= made["data"]["training_answer_tokens"] < 9 + 6
    assert made["data"]["held_out_answers"] == whole["data"]["held_out_answers"]
    assert 1 <= made["draft_vocab"] <= made["data"]["training_answer_tokens"]
    assert "--draft-coverage 1.0" in made["command"]
    assert "--train-tokens 9" in made["command"]


def test_answers_to_held_out_prompts_of_another_directory_are_dropped(
    trained: Path, tmp_path: Path
) -> None:
    data = [trained / "run" / "data", tmp_path / "data"]
    shutil.copytree(*data)
    # The same answers in another order: the copy holds out others.
    path = shard_paths(data[1])[0]
    answers = read_answers(path)
    places = range(len(answers.ids))[::-1]
    parts = [[values[i] for i in places] for values in (answers.ids, answers.prompt_lengths)]
    write_answers(path, Answers(*parts, [answers.sampled[i] for i in places]))
    features_path(path).unlink()
    words = ("--pretrained", str(trained / "target"), "--out", str(tmp_path / "x"))
    eagle.run(parse(*words, *SMALL, "--data", *map(str, data)))
    made = json.loads((tmp_path / "x" / "head" / "provenance.json").read_text("utf-8"))["data"]
    whole = json.loads((trained / "run" / "head" / "provenance.json").read_text("utf-8"))["data"]
    assert whole["training_answers_dropped"] == 0 < made["training_answers_dropped"]
    assert made["held_out_answers"] == 2 * whole["held_out_answers"]


def test_a_head_has_the_shape_of_one_of_the_target_s_blocks() -> None:
    # The heads' size is one of its own, as in Gemma and Qwen 3: not 64 / 4.
    config = Qwen3Config(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=50,
        rms_norm_eps=1e-3,
    )
    assert eagle.head_config(config) == EagleConfig(64, 96, 4, 2, 8, 50, rms_norm_eps=1e-3)


def test_a_family_with_other_norms_gets_a_head_too() -> None:
    config = StableLmConfig(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
    )
    assert not hasattr(config, "rms_norm_eps")
    assert eagle.head_config(config) == EagleConfig(64, 96, 4, 2, 16, 50, rms_norm_eps=1e-6)


def test_a_size_that_the_target_does_not_tell_is_named() -> None:
    with pytest.raises(ValueError, match="'gpt2' has no intermediate_size that is one number"):
        eagle.head_config(GPT2Config())


def test_a_target_without_a_head_s_shape_is_refused_before_text_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tiny_target(tmp_path / "target")
    config = json.loads((tmp_path / "target" / "config.json").read_text("utf-8"))
    (tmp_path / "target" / "config.json").write_text(
        json.dumps({**config, "num_key_value_heads": 3})
    )
    monkeypatch.setattr("tss_bench.training.eagle.text_directories", pytest.fail)
    words = ("--pretrained", str(tmp_path / "target"), "--out", str(tmp_path / "x"))
    with pytest.raises(ValueError, match="num_attention_heads 4 is no multiple of"):
        eagle.run(parse(*words, *SMALL))


def test_data_of_another_target_are_refused(trained: Path, tmp_path: Path) -> None:
    make_tiny_target(tmp_path / "other", seed=1)
    data = str(trained / "run" / "data")
    words = ("--pretrained", str(tmp_path / "other"), "--out", str(tmp_path / "x"), "--data", data)
    with pytest.raises(ValueError, match="train on text that the model wrote itself"):
        eagle.run(parse(*words, *SMALL))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs --out"),
        (("--out", "x", "--draft-vocab", "0"), "--draft-vocab must be at least 1"),
        (("--out", "x", "--draft-coverage", "1.2"), "--draft-coverage must lie in 0 … 1"),
        (("--out", "x", "--train-tokens", "0"), "--train-tokens must be at least 1"),
        (("--out", "x", "--held-out", "1"), "--held-out must lie between 0 and 1"),
        (("--out", "x", "--max-minutes", "-1"), "--max-minutes must not be negative, got -1"),
        (("--out", "x", "--max-minutes", "nan"), "--max-minutes must not be negative, got nan"),
        (("--out", "x", "--epochs", "0"), "epochs must be at least 1"),
    ],
)
def test_bad_arguments_are_named_before_anything_loads(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        eagle.run(parse(*words))
    assert not list(tmp_path.iterdir())


def test_smoke_trains_a_head(tmp_path: Path) -> None:
    eagle.run(parse("--smoke", "--out", str(tmp_path / "run")))
    assert (tmp_path / "run" / "head" / "model.safetensors").is_file()
