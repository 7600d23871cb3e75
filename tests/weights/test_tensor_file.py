"""Tensors on disk. May import: pytest, torch, safetensors, transformers, tss_bench.weights."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import LlamaConfig, LlamaForCausalLM

from tss_bench.weights.tensor_file import write_model, write_tensors


@pytest.fixture
def small_disk() -> Iterator[None]:
    """Files end at 4096 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_is_for_all_to_read_and_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.arange(3)}, {"format": "pt"})
    assert path.stat().st_mode & 0o777 == 0o644
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("x").tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(1)})
    with pytest.raises(OSError, match=re.escape(f"cannot write {path}: ")):
        write_tensors(path, {"x": torch.ones(5000)})
    with safe_open(path, "pt") as file:
        assert file.get_tensor("x").tolist() == [1.0]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_is_an_error_that_names_the_folder_of_a_model(tmp_path: Path) -> None:
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=64,
    )
    with pytest.raises(OSError, match=re.escape(f"cannot write {tmp_path}: ")):
        write_model(LlamaForCausalLM(config), tmp_path)
