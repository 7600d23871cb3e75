"""Checkpoints and the order of steps. May import: pytest, torch, tss_bench."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tss_bench.training.checkpoint import (
    batches_from,
    learning_rate,
    load_checkpoint,
    only_run,
    save_checkpoint,
)


def test_the_learning_rate_rises_linearly_and_falls_to_a_twentieth() -> None:
    rates = [learning_rate(step, 12, 2, 1.0) for step in range(13)]
    assert rates[:2] == [0.5, 1.0]
    assert rates[2] == pytest.approx(1.0)
    assert rates[7] == pytest.approx(0.05 + 0.95 * 0.5)
    assert rates[12] == pytest.approx(0.05)


def plan(epoch: int) -> list[str]:
    return [f"{epoch}{letter}" for letter in "abc"]


def test_steps_go_on_where_they_were() -> None:
    whole = list(batches_from(0, 7, plan))
    assert whole == ["0a", "0b", "0c", "1a", "1b", "1c", "2a"]
    assert list(batches_from(4, 7, plan)) == whole[4:]
    assert list(batches_from(7, 7, plan)) == []


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    assert load_checkpoint(path, {"rank": 4}) is None
    save_checkpoint(path, {"run": {"rank": 4}, "step": 3, "weights": [torch.ones(2)]})
    state = load_checkpoint(path, {"rank": 4})
    assert state is not None
    assert state["step"] == 3
    with pytest.raises(ValueError, match=r"another rank \(4, now 8\).*another --out"):
        load_checkpoint(path, {"rank": 8})
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.pt"]


def test_other_text_is_put_down_to_arguments_not_digests(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"run": {"rank": 4, "text": "ab12"}})
    message = r"other text .* \(--data or --held-out was another.*use the same to resume"
    with pytest.raises(ValueError, match=message) as error:
        load_checkpoint(path, {"rank": 4, "text": "cd34"})
    assert "ab12" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", None])
def test_a_torn_checkpoint_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"run": {"rank": 4}})
    path.write_bytes(path.read_bytes()[:300] if content is None else content)
    with pytest.raises(ValueError, match=r"is torn or no checkpoint.*delete it to start over"):
        load_checkpoint(path, {"rank": 4})


def test_what_a_killed_run_was_writing_is_removed(tmp_path: Path) -> None:
    places = [tmp_path, tmp_path / "head", tmp_path / "data"]
    killed = [place / f"model.safetensors.{10**30}.part" for place in places]
    others = [tmp_path / "my.part", tmp_path / "checkpoint.pt"]
    for path in (*killed, *others):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    with only_run(tmp_path, "head"):
        # Another process may be writing text to `data`.
        assert [path.exists() for path in killed] == [False, False, True]
    assert all(path.exists() for path in others)


def test_a_run_that_is_refused_removes_nothing(tmp_path: Path) -> None:
    with only_run(tmp_path):
        part = tmp_path / f"checkpoint.pt.{10**30}.part"
        part.touch()
        with pytest.raises(ValueError, match="another training runs in"), only_run(tmp_path):
            pass
        assert part.exists()
