"""A directory's fingerprint follows its weights."""

from __future__ import annotations

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tss_bench.weights.fingerprint import weights_fingerprint


def test_stable_across_copies(llama_dir, tmp_path):
    shutil.copytree(llama_dir, tmp_path / "copy")
    assert weights_fingerprint(llama_dir) == weights_fingerprint(tmp_path / "copy")


@pytest.mark.parametrize("key", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"])
def test_one_changed_tensor_shows(llama_dir, key):
    before = weights_fingerprint(llama_dir)
    state = load_file(llama_dir / "model.safetensors")
    state[key] = state[key] * 1.5
    save_file(state, llama_dir / "model.safetensors", metadata={"format": "pt"})
    assert weights_fingerprint(llama_dir) != before


def test_changed_config_shows(llama_dir):
    before = weights_fingerprint(llama_dir)
    config = llama_dir / "config.json"
    config.write_text(config.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 5.0'))
    assert weights_fingerprint(llama_dir) != before


def test_pickle_weights_count(tmp_path):
    torch.save({"a": torch.zeros(5)}, tmp_path / "pytorch_model.bin")
    zeros = weights_fingerprint(tmp_path)
    torch.save({"a": torch.ones(5)}, tmp_path / "pytorch_model.bin")
    assert weights_fingerprint(tmp_path) != zeros


def test_cut_file_is_refused(llama_dir):
    weights = llama_dir / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match="cut short"):
        weights_fingerprint(llama_dir)


def test_no_safetensors_content_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0not json at all")
    with pytest.raises(ValueError, match="no whole safetensors file"):
        weights_fingerprint(tmp_path)


def test_no_weights(tmp_path):
    with pytest.raises(ValueError, match="holds no weights"):
        weights_fingerprint(tmp_path)
