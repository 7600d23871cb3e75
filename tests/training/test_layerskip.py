"""The command `tss-bench train layerskip`. May import: pytest, torch, tss_bench, tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tss_bench.cli import main
from tss_bench.decoding.target import Target
from tss_bench.training.checkpoint import only_run
from tss_bench.training.corpora import split_by_directory
from tss_bench.training.eagle_data import Corpus, split
from tss_bench.training.self_generation import shard_paths
from tss_bench.types import SkipSet
from tss_bench.weights import describe, load_model

SMALL = ["--rank", "4", "--max-drop", "2", "--warmup", "2", "--batch-slots", "512"]
TEXT = ["--prompts", "16", "--max-new-tokens", "6", "--generation-batch", "8", "--workers", "1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_target: Path) -> Path:
    out = tmp_path_factory.mktemp("layerskip") / "run"
    command = ["train", "layerskip", "--pretrained", str(tiny_target), "--out", str(out)]
    assert main([*command, "--drop", "uniform", "--held-out", "0.2", *SMALL, *TEXT]) == 0
    return out


def test_the_adapter_is_a_model_of_its_own(run: Path, tiny_target: Path) -> None:
    adapter = run / "adapter"
    info, base = describe(str(adapter)), describe(str(tiny_target))
    assert info.num_layers == base.num_layers
    assert info.revision != base.revision
    ids = [5, 9, 4, 7]
    logits = [
        Target(load_model(str(name), dtype="float32", device="cpu")[0]).score(
            ids, SkipSet.dense(base.num_layers)
        )
        for name in (adapter, tiny_target)
    ]
    assert not torch.equal(*logits)


def test_the_adapter_is_called_after_its_run(run: Path) -> None:
    assert describe(str(run / "adapter")).id == "run"


def test_another_model_does_not_resume(
    run: Path,
    tmp_path: Path,
    tiny_target: Path,
    other_target: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    shutil.copytree(run, out)
    shutil.rmtree(out / "data")
    command = ["train", "layerskip", "--pretrained", str(other_target), "--out", str(out)]
    assert main([*command, "--drop", "uniform", "--held-out", "0.2", *SMALL, *TEXT]) == 2
    assert "was made with another base" in capsys.readouterr().err


def test_only_one_run_at_a_time(
    run: Path, tiny_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "layerskip", "--pretrained", str(tiny_target), "--out", str(run)]
    with only_run(run):
        assert main([*command, *SMALL, *TEXT]) == 2
    assert "another training runs in" in capsys.readouterr().err


def test_torn_text_is_named(
    run: Path, tmp_path: Path, tiny_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run / "data", tmp_path / "data")
    shard = shard_paths(tmp_path / "data")[0]
    shard.write_bytes(shard.read_bytes()[:100])
    words = ["--pretrained", str(tiny_target), "--data", str(tmp_path / "data")]
    assert main(["train", "layerskip", *words, "--out", str(tmp_path / "out")]) == 2
    assert f"{shard} is torn" in capsys.readouterr().err


def test_provenance_tells_how_to_make_it_again(run: Path) -> None:
    found = json.loads((run / "adapter" / "provenance.json").read_text("utf-8"))
    assert found["command"].startswith("tss-bench train layerskip --out OUT --pretrained")
    assert "--drop uniform" in found["command"]
    assert found["settings"]["max_drop"] == 2
    assert found["data_recipes"][0]["prompts"] == 16
    assert found["evaluations"][-1]["step"] == found["steps"] == found["planned_steps"]
    assert str(run) not in json.dumps(found)


def test_the_curves_are_a_picture(run: Path) -> None:
    picture = (run / "adapter" / "curves.svg").read_text("utf-8")
    assert "full depth" in picture
    assert "<svg" in picture


def test_a_finished_run_is_not_trained_again(
    run: Path, tiny_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((run / "adapter" / "adapter_config.json").read_text("utf-8"))
    assert config["target_modules"] == sorted(config["target_modules"])
    before = (run / "adapter" / "adapter_model.safetensors").read_bytes()
    command = ["train", "layerskip", "--pretrained", str(tiny_target), "--out", str(run)]
    assert main([*command, "--drop", "uniform", "--held-out", "0.2", *SMALL, *TEXT]) == 0
    assert (run / "adapter" / "adapter_model.safetensors").read_bytes() == before
    assert "resumed from step" in capsys.readouterr().out


def test_held_out_answers_are_those_of_each_directory_alone(run: Path) -> None:
    shards = shard_paths(run / "data")
    corpus = Corpus(shards)
    alone = split(corpus.sequences, 0.2, 0)
    both = split_by_directory(corpus, shards, 0.2, 0)
    assert [[id(s) for s in part] for part in both] == [[id(s) for s in part] for part in alone]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs --out DIR"),
        (["--out", "OUT", "--pool", "99"], "pool names layer 99"),
        (["--out", "OUT", "--held-out", "1"], "--held-out must lie between 0 and 1"),
        (["--out", "OUT", "--checkpoint-every", "0"], "--checkpoint-every must be at least 1"),
        (["--out", "OUT", "--max-minutes", "nan"], "--max-minutes must not be negative"),
        (["--out", "OUT", "--epochs", "inf"], "epochs must be a finite number, got inf"),
        (["--out", "OUT", "--pool", "dense"], "pool='dense' names no layer"),
        (["--out", "OUT", "--drop", "uniform", "--max-drop", "6"], "max_drop is 6 of 6 layers"),
        (["--out", "OUT", "--data", "NOWHERE", "NOWHERE"], "twice; name each directory once"),
        (["--out", "OUT", "--drop", "all"], "drop='all' is unknown"),
        (["--out", "OUT", "--data", "NOWHERE"], "holds no self-generated data"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    tiny_target: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"OUT": str(tmp_path / "out"), "NOWHERE": str(tmp_path / "nowhere")}
    words = [places.get(word, word) for word in words]
    assert main(["train", "layerskip", "--pretrained", str(tiny_target), *words]) == 2
    assert message in capsys.readouterr().err


def test_text_of_another_model_is_refused(
    run: Path, tmp_path: Path, other_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--pretrained", str(other_target), "--data", str(run / "data")]
    assert main(["train", "layerskip", *words, "--out", str(tmp_path / "out")]) == 2
    assert "train on text that the model wrote itself" in capsys.readouterr().err


def test_a_lora_on_a_lora_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--pretrained", str(run / "adapter"), "--out", str(tmp_path / "out")]
    assert main(["train", "layerskip", *words]) == 2
    assert "run is a LoRA itself" in capsys.readouterr().err


def test_full_training_with_exits_writes_a_model(
    tmp_path: Path, run: Path, tiny_target: Path
) -> None:
    out = tmp_path / "full"
    command = ["train", "layerskip", "--pretrained", str(tiny_target), "--out", str(out)]
    words = ["--train", "full", "--exits", "rotational", "--objective", "cross-entropy"]
    words += ["--data", str(run / "data"), "--held-out", "0.2", *SMALL]
    assert main([*command, *words]) == 0
    model, _, info = load_model(str(out / "model"), dtype="float32", device="cpu")
    assert info.num_layers == describe(str(tiny_target)).num_layers
    assert model.dtype == torch.float32
    provenance: dict[str, Any] = json.loads((out / "model" / "provenance.json").read_text("utf-8"))
    assert provenance["settings"]["exits"] == "rotational"


@pytest.mark.parametrize("drop", ["uniform", "layerskip"])
def test_smoke_trains_an_adapter(tmp_path: Path, drop: str) -> None:
    assert main(["train", "layerskip", "--smoke", "--drop", drop, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_two_processes_share_a_run(tmp_path: Path) -> None:
    words = ["train", "layerskip", "--smoke", "--drop", "uniform", "--out", str(tmp_path)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "-m", "tss_bench", *words], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    alone = tmp_path / "alone"
    assert main([*words[:-1], str(alone)]) == 0
    found = [
        json.loads((place / "adapter" / "provenance.json").read_text("utf-8"))
        for place in (tmp_path, alone)
    ]
    # Each step takes a batch a process; an odd one at the end of an epoch is left out.
    assert found[0]["planned_steps"] == found[1]["planned_steps"] // 4 * 2
    assert found[0]["evaluations"][0] == found[1]["evaluations"][0]
