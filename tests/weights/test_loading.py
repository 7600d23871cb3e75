"""Finding, describing and loading models; every bad name is one clear error."""

from __future__ import annotations

import dataclasses
import json
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from tss_bench.weights.cache import WeightsUnavailable
from tss_bench.weights.default_models import DEFAULT_MODEL, PACKAGED_MODELS
from tss_bench.weights.loading import (
    describe,
    load_config,
    load_model,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
)


@pytest.fixture
def hub_offline(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def test_describe_a_packaged_name_fetches_nothing(no_index, cache):
    for name, model in PACKAGED_MODELS.items():
        info = describe(name)
        assert (info.id, info.num_layers, info.revision) == (name, model.num_layers, model.sha256)
        sizes = (model.hidden_size, model.vocab_size, model.context_length)
        assert (info.hidden_size, info.vocab_size, info.context_length) == sizes
    assert not cache.exists()


def test_directory_without_chat_template(llama_dir):
    info = describe(str(llama_dir))
    assert (info.id, info.num_layers, info.is_chat) == ("tiny-llama", 2, False)
    assert info.model_type == "llama"
    assert (info.hidden_size, info.vocab_size, info.context_length) == (32, 20, 2048)
    assert len(info.revision) == 64


@pytest.mark.parametrize("place", ["chat_template.jinja", "tokenizer_config.json"])
def test_directory_with_chat_template(llama_dir, place):
    path = llama_dir / place
    text = "{{ messages }}"
    if place.endswith(".json"):
        text = json.dumps({**json.loads(path.read_text()), "chat_template": text})
    path.write_text(text)
    assert describe(str(llama_dir)).is_chat


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "auto"])
def test_load_a_directory(llama_dir, dtype):
    model, tokenizer, info = load_model(str(llama_dir), dtype=dtype, device="cpu")
    assert model.dtype == (torch.float32 if dtype == "auto" else getattr(torch, dtype))
    assert not model.training
    assert tokenizer.get_vocab()["a"] == 3
    assert info == describe(str(llama_dir))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_default_dtype_is_bfloat16(llama_dir):
    assert load_model(str(llama_dir), device="cpu")[0].dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["bf16", "int8", "Float32", ""])
def test_unknown_dtype_names_the_allowed(dtype):
    with pytest.raises(ValueError, match="one of bfloat16, float16, float32, auto"):
        resolve_dtype(dtype)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "cpu:1", "auto:0", ""])
def test_unknown_device_names_the_allowed(device):
    with pytest.raises(ValueError, match="auto, cpu, cuda, cuda:N or mps"):
        resolve_device(device)


def test_without_cuda(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("auto") == "cpu"
    assert capsys.readouterr().err == ""
    assert resolve_device("cuda:0") == "cpu"
    assert capsys.readouterr().err.count("\n") == 1


def test_with_two_cuda_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("auto") == "cuda"
    assert resolve_device("cuda:1") == "cuda:1"
    with pytest.raises(ValueError, match="cuda:0 to cuda:1"):
        resolve_device("cuda:2")


def test_bad_dtype_fails_before_the_model_is_looked_for():
    with pytest.raises(ValueError, match="dtype='int3'"):
        load_model("./does-not-exist", dtype="int3")


def test_empty_name():
    with pytest.raises(ValueError, match="name is empty"):
        describe("")


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere", "a/b/c", "~/nowhere-at-all"])
def test_missing_directory(name):
    with pytest.raises(ValueError, match="does not exist"):
        describe(name)


def test_a_file_is_no_model(llama_dir):
    with pytest.raises(ValueError, match="is a file; pass the directory"):
        describe(str(llama_dir / "config.json"))


@pytest.mark.parametrize("name", ["smollm2-135m", "SmolLM2-135M-Instruct", "gemma3-270m"])
def test_near_miss_of_a_packaged_name_is_suggested(name):
    with pytest.raises(ValueError, match=r"did you mean '(smollm2-135m-\w+|gemma-3-270m)'"):
        describe(name)


def test_revision_belongs_to_the_hub(llama_dir):
    for name in (DEFAULT_MODEL, str(llama_dir)):
        with pytest.raises(ValueError, match="only models on the hub have revisions"):
            describe(name, "abc")
        describe(name, "main")


def test_offline_hub_fails_within_seconds(hub_offline):
    start = time.monotonic()
    with pytest.raises(WeightsUnavailable) as caught:
        load_model("someone/some-model")
    assert time.monotonic() - start < 10
    message = str(caught.value)
    assert "'someone/some-model'" in message
    assert "\n" not in message
    assert "local directory" in message


def test_config_without_depth(llama_dir):
    (llama_dir / "config.json").write_text('{"model_type": "resnet"}')
    with pytest.raises(ValueError, match="num_hidden_layers"):
        describe(str(llama_dir))


def test_config_that_is_missing_or_unreadable(llama_dir):
    (llama_dir / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"cannot read .*config\.json"):
        describe(str(llama_dir))
    (llama_dir / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json"):
        describe(str(llama_dir))


def test_absent_tensor_is_refused_not_made_up(llama_dir):
    state = load_file(llama_dir / "model.safetensors")
    del state["model.layers.1.mlp.up_proj.weight"]
    save_file(state, llama_dir / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lack 1 tensors, first model\.layers\.1\.mlp\.up_proj"):
        load_model(str(llama_dir), device="cpu")


def test_tokenizer_and_config_need_no_weights(llama_dir):
    hidden_size = describe(str(llama_dir)).hidden_size
    (llama_dir / "model.safetensors").unlink()
    assert load_tokenizer(str(llama_dir)).get_vocab()["a"] == 3
    assert load_config(str(llama_dir)).hidden_size == hidden_size


@pytest.mark.parametrize("field", ["hidden_size", "vocab_size", "max_position_embeddings"])
def test_config_without_a_size(llama_dir, field):
    path = llama_dir / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: 0}))
    with pytest.raises(ValueError, match=f"has no {field} of at least 1"):
        describe(str(llama_dir))


def test_directory_without_tokenizer(llama_dir):
    for path in llama_dir.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match="cannot load"):
        load_model(str(llama_dir), device="cpu")


def test_model_info_cannot_change(llama_dir):
    with pytest.raises(dataclasses.FrozenInstanceError):
        describe(str(llama_dir)).id = "other"  # type: ignore[misc]
