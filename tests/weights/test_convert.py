"""GGUF to safetensors: weights exact, rows in order, tokenizer whole, cached once."""

from __future__ import annotations

import hashlib

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from tss_bench.weights.convert import convert_gguf, packaged_model_dir
from tss_bench.weights.default_models import DEFAULT_MODEL, PACKAGED_MODELS, PackagedModel, Part
from tss_bench.weights.loading import load_model


@pytest.fixture
def converted(tiny_gguf, tmp_path):
    out = tmp_path / "out"
    convert_gguf(tiny_gguf[0], out)
    return out


def test_weights_are_exact_and_float32(tiny_gguf, converted):
    stored = load_file(converted / "model.safetensors")
    assert stored.keys() == tiny_gguf[1].keys()
    for key, expected in tiny_gguf[1].items():
        assert stored[key].dtype == torch.float32
        assert torch.equal(stored[key], expected), key


def test_logits_of_the_cached_form_equal_the_direct_load(tiny_gguf, converted):
    direct = AutoModelForCausalLM.from_pretrained(
        tiny_gguf[0].parent,
        gguf_file=tiny_gguf[0].name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    cached = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    ids = torch.tensor([[5, 9, 200, 3, 7]])
    with torch.no_grad():
        assert torch.equal(direct(ids).logits, cached(ids).logits)
    assert cached.lm_head.weight is cached.model.embed_tokens.weight


def test_tokenizer_splits_digits_first_and_keeps_its_chat_template(converted):
    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.tokenize("x  42") == ["x", "ĠĠ", "4", "2"]
    assert tokenizer.decode(tokenizer("x  42é").input_ids) == "x  42é"
    rendered = tokenizer.apply_chat_template([{"content": "hi"}], tokenize=False)
    assert rendered == "<|im_start|>hi"
    assert tokenizer("<|im_start|>").input_ids == [1]
    assert (tokenizer.eos_token_id, tokenizer.model_max_length) == (2, 128)


def _packaged(gguf, make_wheel, sha256=None):
    data = gguf.read_bytes()
    part = Part("tss-test-model", "1.0", "tss_test_model/tiny.gguf")
    make_wheel(part.package, part.member, data)
    sha256 = sha256 or hashlib.sha256(data).hexdigest()
    return PackagedModel(
        id="tiny",
        parts=(part,),
        sha256=sha256,
        size_mb=1,
        num_layers=2,
        hidden_size=32,
        vocab_size=20,
        context_length=128,
        model_type="llama",
        is_chat=True,
        notice="terms apply",
    )


def test_packaged_model_is_fetched_once(
    tiny_gguf, make_wheel, cache, monkeypatch, capsys, tmp_path
):
    packaged = _packaged(tiny_gguf[0], make_wheel)
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", packaged)
    model, tokenizer, info = load_model("tiny", dtype="float32")
    assert "terms apply" in capsys.readouterr().err
    assert info.revision == packaged.sha256
    assert (model.config.num_hidden_layers, len(tokenizer)) == (2, 260)
    assert not list(cache.rglob("*.gguf"))

    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "gone"))
    load_model("tiny")
    assert "fetching" not in capsys.readouterr().err


def test_damaged_download_leaves_no_model(tiny_gguf, make_wheel, cache):
    packaged = _packaged(tiny_gguf[0], make_wheel, sha256="0" * 64)
    with pytest.raises(RuntimeError, match="SHA-256"):
        packaged_model_dir(packaged)
    assert not list(cache.rglob("config.json"))


@pytest.mark.slow
def test_default_model_answers_in_chat_form():
    model, tokenizer, info = load_model(DEFAULT_MODEL, dtype="float32")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (info.num_layers, info.model_type) == (len(model.model.layers), model.config.model_type)
    sizes = (info.hidden_size, info.vocab_size, info.context_length)
    assert sizes == (
        model.config.hidden_size,
        model.config.vocab_size,
        model.config.max_position_embeddings,
    )
    assert info.is_chat
    question = "What is the capital of France? Answer in one sentence."
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    ids = model.generate(**inputs, max_new_tokens=30, do_sample=False)[0]
    answer = tokenizer.decode(ids[inputs["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")
    assert tokenizer.tokenize("a\n\n2024") == ["a", "ĊĊ", "2", "0", "2", "4"]


@pytest.mark.slow
def test_gemma_completes():
    model, tokenizer, info = load_model("gemma-3-270m", dtype="float32")
    assert (info.num_layers, info.model_type) == (len(model.model.layers), model.config.model_type)
    sizes = (info.hidden_size, info.vocab_size, info.context_length)
    assert sizes == (
        model.config.hidden_size,
        model.config.vocab_size,
        model.config.max_position_embeddings,
    )
    assert model.config.layer_types.count("full_attention") == 3
    assert tokenizer.chat_template is None
    inputs = tokenizer(
        "German: Der Hund schläft.\nEnglish: The dog is sleeping.\n\n"
        "German: Ich trinke gern Kaffee.\nEnglish:",
        return_tensors="pt",
    )
    assert int(inputs.input_ids[0, 0]) == tokenizer.bos_token_id == 2
    ids = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0]
    assert "coffee" in tokenizer.decode(ids[inputs.input_ids.shape[1] :])
