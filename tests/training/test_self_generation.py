"""Self-generation. May import: pytest, torch, tss_bench.training, tests.tiny."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from tests.training import helpers
from tss_bench import __version__
from tss_bench.locks import only_writer
from tss_bench.training import self_generation as sg
from tss_bench.training.batch_answers import Answers
from tss_bench.training.prompts import Prompt
from tss_bench.training.records import source_state
from tss_bench.training.smoke import make_tiny_target
from tss_bench.weights.tensor_file import write_tensors


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
    recipe = sg.GenerationRecipe("m", "r", shard_size=4)
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
        str(directory),
        "r1",
        prompts=12,
        max_new_tokens=6,
        batch_size=3,
        shard_size=4,
        sampled_share=0.5,
    )


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.safetensors"))}


def test_a_killed_run_ends_with_the_same_data(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    sg.generate_data(whole, tiny_recipe, device="cpu")

    write, calls = sg.write_answers, []

    def kill_at_second(path: Path, answers: Answers) -> None:
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


def test_another_name_of_the_target_and_another_version_go_on(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe
) -> None:
    made = sg.generate_data(tmp_path, tiny_recipe, device="cpu", keep_features=False)
    record = sg.read_recipe(tmp_path)
    assert record["versions"]["tss_bench"] == __version__
    assert record["commit"] == source_state()
    # As a version wrote it that recorded neither.
    old = json.dumps(asdict(tiny_recipe))
    (tmp_path / sg.RECIPE).write_text(old, "utf-8")
    whole = contents(tmp_path)
    made[0].unlink()
    there = Path(tiny_recipe.pretrained)
    renamed = replace(tiny_recipe, pretrained=f"{there.parent}/../{there.parent.name}/{there.name}")
    sg.generate_data(tmp_path, renamed, device="cpu", keep_features=False)
    assert contents(tmp_path) == whole
    assert (tmp_path / sg.RECIPE).read_text("utf-8") == old
    with pytest.raises(ValueError, match=r"another revision \('r1', asked for 'r2'\)"):
        sg.generate_data(tmp_path, replace(renamed, revision="r2"), device="cpu")


def test_data_of_an_older_version_are_refused(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe
) -> None:
    old = asdict(tiny_recipe)
    del old["shard_size"]
    (tmp_path / sg.RECIPE).write_text(json.dumps(old), "utf-8")
    helpers.write_corpus(tmp_path, shards=1)
    with pytest.raises(ValueError, match=r"made without shard_size; train on it with --data"):
        sg.generate_data(tmp_path, tiny_recipe, device="cpu")


def test_workers_end_with_a_killed_parent() -> None:
    """The pipe that they inherit ends when the last of them has."""
    code = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from tss_bench.training import self_generation as sg
with ProcessPoolExecutor(1, get_context("spawn"), initializer=sg._start_process) as pool:
    print(pool.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        worker = int(run.stdout.readline())
        run.kill()
        try:
            run.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.kill(worker, signal.SIGKILL)
            pytest.fail("the worker outlived its parent")


def test_a_worker_that_is_killed_is_told(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel does when memory runs out."""
    monkeypatch.setattr(sg, "_make_shard", helpers.kill_own_process)
    with pytest.raises(ValueError, match=r"a worker died \(out of memory\?\).*lower --workers"):
        sg.generate_data(tmp_path, tiny_recipe, device="cpu", workers=2)


def test_workers_below_none_are_refused() -> None:
    parser = argparse.ArgumentParser()
    sg.add_arguments(parser)
    args = parser.parse_args(["--out", "nowhere", "--workers", "-1"])
    with pytest.raises(ValueError, match=r"--workers must be at least 1, or 0 .*, got -1"):
        sg.run(args)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_prompt_without_room_is_refused_before_any_is_answered(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe, workers: int
) -> None:
    # The tiny target has 512 positions.
    recipe = replace(tiny_recipe, max_new_tokens=500)
    with pytest.raises(ValueError, match=r"no room for 500 new ones in the context of .*, 512;"):
        sg.generate_data(tmp_path, recipe, device="cpu", workers=workers)
    assert not sg.shard_paths(tmp_path)
    # What the message advises works in the same directory.
    mended = replace(recipe, max_new_tokens=6, prompts=4)
    (tmp_path / "features-00000.safetensors").write_bytes(b"of other text")
    (shard,) = sg.generate_data(tmp_path, mended, device="cpu", keep_features=False)
    assert sg.read_recipe(tmp_path)["max_new_tokens"] == 6
    assert len(sg.read_prompts(tmp_path)) == len(sg.read_answers(shard).ids) == 4
    assert not sg.features_path(shard).exists()


def test_a_first_try_that_failed_leaves_nothing_of_its_prompts(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sg, "_run", lambda *_: iter(()))
    for count, source in ((3, "a"), (2, "b")):
        recipe = replace(tiny_recipe, prompts=count)
        sg.generate_data(tmp_path, recipe, excluded_sources=[{"domain": source}])
        assert len(sg.read_prompts(tmp_path)) == count
        assert sg.read_excluded(tmp_path) == [{"domain": source}]


def test_what_a_killed_run_was_writing_is_removed(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sg, "_run", lambda *_: iter(()))
    old, new = tmp_path / ".tmpAbc123", tmp_path / ".tmpDef456"
    part = tmp_path / f"shard-00000.safetensors.{10**30}.part"
    for path in (old, new, part):
        path.touch()
    os.utime(old, (0, 0))
    sg.generate_data(tmp_path, tiny_recipe)
    assert [path.exists() for path in (old, new, part)] == [False, True, False]


def test_shards_of_unknown_origin_are_refused(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe
) -> None:
    helpers.write_corpus(tmp_path, shards=1)
    with pytest.raises(ValueError, match=r"holds shards without a recipe\.json"):
        sg.generate_data(tmp_path, tiny_recipe, device="cpu")


def test_two_runs_do_not_write_to_one_directory(
    tmp_path: Path, tiny_recipe: sg.GenerationRecipe
) -> None:
    with (
        only_writer(tmp_path / ".lock", "held"),
        pytest.raises(ValueError, match=f"another run makes data in {tmp_path}; wait for it"),
    ):
        sg.generate_data(tmp_path, tiny_recipe, device="cpu")
    assert not list(tmp_path.glob("*.json*"))


def test_a_directory_without_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no self-generated data"):
        sg.read_recipe(tmp_path)


def test_a_file_for_a_directory_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.touch()
    with pytest.raises(ValueError, match=f"{path} holds no self-generated data"):
        sg.read_recipe(path)


def test_a_file_that_is_no_shard_is_named(tmp_path: Path) -> None:
    path = sg.shard_path(tmp_path, 0)
    write_tensors(path, {"ids": torch.arange(3)})
    with pytest.raises(ValueError, match=f"{path} is no shard .*lacks lengths, sampled.; delete"):
        sg.read_answers(path)


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        (sg.EXCLUDED, '[{"domain": "q', sg.read_excluded),
        (sg.PROMPTS, '{"text": "Hel', sg.read_prompts),
        (sg.PROMPTS, '{"kind": "chat"}', sg.read_prompts),
    ],
)
def test_a_torn_file_is_named(
    tmp_path: Path, name: str, text: str, read: Callable[[Path], object]
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    with pytest.raises(ValueError, match=f"{tmp_path / name} is torn .*; make the data again in"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": 0}, "prompts must be at least 1, got 0"),
        ({"kinds": "chat,poems"}, "unknown kind of prompt 'poems'"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"shard_size": -1}, "shard_size must be at least 1, got -1"),
        ({"sampled_share": 1.5}, r"sampled_share must lie in 0 … 1, got 1.5"),
    ],
)
def test_bad_recipes(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sg.GenerationRecipe("m", "r", **change)  # type: ignore[arg-type]


def test_what_the_prompts_keep_away_from_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sg, "_run", lambda *_: iter(()))
    monkeypatch.setattr(sg, "make_prompts", lambda *_, **__: [Prompt("chat", "Hello there.")])
    sources = [{"domain": "qa", "kind": "mini", "sha256": "0" * 64, "rows": 40}]
    recipe = sg.GenerationRecipe("m", "r", prompts=1)
    sg.generate_data(tmp_path, recipe, excluded=["Who?"], excluded_sources=sources)
    assert sg.read_excluded(tmp_path) == sources
    assert sg.read_excluded(tmp_path / "elsewhere") == []
