"""A LoRA directory is a target model: its base with the LoRA merged in, or one clear error."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from model_adapters.adapters import NativeAR
from model_adapters.arguments import Arguments
from model_adapters.loaded import load
from tss_bench.weights import (
    DEFAULT_MODEL,
    PACKAGED_MODELS,
    WeightsUnavailable,
    describe,
    load_config,
    load_model,
    load_tokenizer,
    weights_fingerprint,
)
from tss_bench.weights.default_models import packaged_lora, packaged_names

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
IDS = torch.tensor([[3, 4, 5, 2, 1, 4, 4, 3]])
Q_PROJ = "base_model.model.model.layers.1.self_attn.q_proj"


def edit(directory: Path, **fields: Any) -> None:
    path = directory / CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_weights(directory: Path, **changes: Any) -> None:
    """Replace, add or (None) remove tensors."""
    state = load_file(directory / WEIGHTS)
    state |= changes
    save_file({k: v for k, v in state.items() if v is not None}, directory / WEIGHTS)


def loaded(directory: Path, dtype: str = "float32") -> Any:
    return load_model(str(directory), dtype=dtype, device="cpu")[0]


def refusal(directory: Path) -> str:
    """The message of a LoRA that is refused before any weight of its base is read."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        describe(str(directory))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def misfit(directory: Path) -> str:
    """The message of a LoRA that is whole but does not fit."""
    describe(str(directory))
    with pytest.raises(ValueError, match="does not fit its base") as caught:
        loaded(directory)
    message = str(caught.value)
    assert "\n" not in message
    assert directory.name in message
    assert str(directory / CONFIG) in message
    return message


# Merged.


def test_a_merged_matrix_by_hand(make_lora, llama_dir):
    directory = make_lora()
    lora = load_file(directory / WEIGHTS)
    a, b = (lora[f"{Q_PROJ}.lora_{x}.weight"].float() for x in "AB")
    base = load_file(llama_dir / "model.safetensors")
    key = "model.layers.1.self_attn.q_proj.weight"
    state = loaded(directory).state_dict()
    assert lora[f"{Q_PROJ}.lora_A.weight"].dtype == torch.bfloat16
    assert (a.shape, b.shape) == ((4, 32), (32, 4))
    torch.testing.assert_close(state[key], base[key] + (8 / 4) * b @ a, rtol=0, atol=1e-6)
    untouched = "model.layers.1.self_attn.k_proj.weight"
    assert torch.equal(state[untouched], base[untouched])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"use_rslora": True},
        {"use_dora": True},
        {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"down_proj": 7}},
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.1\.mlp\.(up|gate)_proj"},
        {"layers_to_transform": [1]},
        {"init_lora_weights": "gaussian"},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
def test_merged_logits_are_those_of_peft(make_lora, llama_dir, fields):
    directory = make_lora(**fields)
    base = AutoModelForCausalLM.from_pretrained(llama_dir, dtype=torch.float32)
    with torch.no_grad():
        plain = base(IDS).logits.clone()
        own = PeftModel.from_pretrained(base, directory)(IDS).logits
        merged = loaded(directory)(IDS).logits
    assert (own - plain).abs().max() > 1e-2
    torch.testing.assert_close(merged, own, rtol=0, atol=1e-4)


def test_the_merge_is_done_before_the_cast(make_lora, llama_dir):
    """1.003 and 1.003 to the nearest bfloat16 are 1: only their sum 1.006 rounds to 1 + 2^-7."""
    directory = make_lora(target_modules=["q_proj"], layers_to_transform=[1])
    state = load_file(llama_dir / "model.safetensors")
    key = "model.layers.1.self_attn.q_proj.weight"
    state[key] = torch.full_like(state[key], 1.003)
    save_file(state, llama_dir / "model.safetensors", metadata={"format": "pt"})
    # Scale 2, four ranks: 2 * 4 * 0.000375 = 0.003 in each place.
    save_file(
        {
            f"{Q_PROJ}.lora_A.weight": torch.full((4, 32), 0.000375),
            f"{Q_PROJ}.lora_B.weight": torch.ones(32, 4),
        },
        directory / WEIGHTS,
    )
    assert torch.all(loaded(directory, "bfloat16").state_dict()[key] == 1 + 2**-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_it_is_like_its_base_in_all_but_weights(make_lora, llama_dir, dtype):
    base, model = loaded(llama_dir, dtype), loaded(make_lora(), dtype)
    assert type(model) is type(base)
    assert [n for n, _ in model.named_modules()] == [n for n, _ in base.named_modules()]
    for (name, ours), (_, theirs) in zip(model.named_buffers(), base.named_buffers(), strict=True):
        assert ours.dtype == theirs.dtype, name
        assert torch.equal(ours, theirs), name
    kinds = [(p.dtype, p.requires_grad) for p in model.parameters()]
    assert kinds == [(p.dtype, p.requires_grad) for p in base.parameters()]
    assert model.config.dtype == base.config.dtype == getattr(torch, dtype)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert not model.training
    assert not hasattr(model, "peft_config")


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_auto_is_the_stored_dtype_of_the_base(make_lora, llama_dir, stored):
    directory = make_lora()
    LlamaForCausalLM.from_pretrained(llama_dir, dtype=stored).save_pretrained(llama_dir)
    assert loaded(directory, "auto").dtype == stored


def test_no_random_numbers_are_drawn(make_lora):
    directory = make_lora()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    loaded(directory)
    assert torch.equal(torch.rand(3), expected)


# Described.


def test_description_and_tokenizer_are_the_base_s_under_its_own_id(make_lora, llama_dir):
    directory = make_lora()
    info, base = describe(str(directory)), describe(str(llama_dir))
    assert (info.id, base.id) == ("tiny-lora", "tiny-llama")
    assert info.revision != base.revision
    assert len(info.revision) == 64
    assert info.base == base.id
    assert dataclasses.replace(info, id=base.id, revision=base.revision, base=None) == base
    _, tokenizer, loaded_info = load_model(str(directory), device="cpu")
    assert loaded_info == info
    assert tokenizer.get_vocab() == load_tokenizer(str(directory)).get_vocab()
    assert load_config(str(directory)).to_dict() == load_config(str(llama_dir)).to_dict()
    assert tokenizer.get_vocab()["a"] == 3


def test_the_revision_follows_base_weights_and_settings(make_lora, llama_dir):
    directory = make_lora()
    seen = {describe(str(directory)).revision}
    edit(directory, lora_alpha=9)
    seen.add(describe(str(directory)).revision)
    edit_weights(directory, **{f"{Q_PROJ}.lora_A.weight": torch.zeros(4, 32)})
    seen.add(describe(str(directory)).revision)
    state = load_file(llama_dir / "model.safetensors")
    state["model.norm.weight"] = state["model.norm.weight"] * 2
    save_file(state, llama_dir / "model.safetensors", metadata={"format": "pt"})
    seen.add(describe(str(directory)).revision)
    assert len(seen) == 4


def test_the_fingerprint_is_of_its_own_two_files(make_lora):
    directory = make_lora()
    before = weights_fingerprint(directory)
    save_file({"step": torch.ones(1)}, directory / "optimizer.safetensors")
    (directory / "provenance.json").write_text("{}")
    assert weights_fingerprint(directory) == before
    edit(directory, lora_alpha=9)
    assert weights_fingerprint(directory) != before
    (directory / WEIGHTS).unlink()
    with pytest.raises(ValueError, match=r"holds no weights \(adapter_model\.safetensors\)"):
        weights_fingerprint(directory)


def test_describing_one_on_a_packaged_base_fetches_nothing(make_lora, no_index, cache):
    directory = make_lora(base=DEFAULT_MODEL)
    assert describe(str(directory)).num_layers == describe(DEFAULT_MODEL).num_layers
    assert not cache.exists()


# Packaged.


@pytest.fixture
def packaged(make_lora, tmp_path, monkeypatch) -> Path:
    """A LoRA that comes with the package, of the name tiny-layerdrop."""
    directory = make_lora("shelf/tiny-layerdrop")
    monkeypatch.setattr(
        "tss_bench.weights.default_models.packaged_loras", lambda: tmp_path / "shelf"
    )
    return directory


def test_a_packaged_name(packaged):
    info = describe("tiny-layerdrop")
    assert info == describe(str(packaged))
    assert info.id == "tiny-layerdrop"
    assert load_model("tiny-layerdrop", device="cpu")[2] == info
    assert load_tokenizer("tiny-layerdrop").get_vocab()["a"] == 3


def test_a_packaged_name_is_listed_and_suggested(packaged):
    assert packaged_names() == (DEFAULT_MODEL, "gemma-3-270m", "tiny-layerdrop")
    with pytest.raises(ValueError, match="did you mean 'tiny-layerdrop'") as caught:
        describe("tiny-layerdorp")
    assert f"{DEFAULT_MODEL}, gemma-3-270m, tiny-layerdrop;" in str(caught.value)


def test_what_is_no_packaged_lora(packaged, tmp_path, monkeypatch):
    (packaged.parent / "empty").mkdir()
    assert [packaged_lora(name) for name in ("", ".", "empty", "../tiny-llama")] == [None] * 4
    monkeypatch.setattr("tss_bench.weights.default_models.packaged_loras", lambda: tmp_path / "no")
    assert set(packaged_names()) == set(PACKAGED_MODELS)
    assert packaged_lora("tiny-layerdrop") is None


def test_a_revision_is_refused(packaged):
    for name in ("tiny-layerdrop", str(packaged)):
        with pytest.raises(ValueError, match="only models on the hub have revisions"):
            describe(name, "abc")
        describe(name, "main")


# Where a name is taken.


def test_the_adapters_take_it(make_lora):
    arguments = Arguments(pretrained=str(make_lora()), dtype="float32", device="cpu")
    adapter = NativeAR(pretrained=arguments.pretrained, dtype="float32", device="cpu")
    assert adapter.info == load(arguments).info == describe(arguments.pretrained)
    configuration = adapter.get_model_info()
    assert configuration["model_revision"] == adapter.info.revision
    assert configuration["tss_bench"]["model"] == "tiny-lora"
    assert adapter.target.num_layers == 2


# Refused from its files alone.


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"base_model_name_or_path": None}, "has no base_model_name_or_path; set it to"),
        ({"base_model_name_or_path": " "}, "has no base_model_name_or_path; set it to"),
        ({"peft_type": "LOHA"}, "peft_type must be LORA, not 'LOHA'"),
        ({"peft_type": None}, "peft_type must be LORA, not None"),
        ({"modules_to_save": ["lm_head"]}, "carries whole modules beside its updates"),
        ({"trainable_token_indices": [3]}, "carries rows of an embedding"),
        ({"layer_replication": [[0, 1], [0, 2]]}, "repeats layers of its base"),
        ({"alora_invocation_tokens": [3]}, "works on some tokens only"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4'"),
        ({"revision": 3}, "revision must be a text or null, not 3"),
    ],
)
def test_a_config_that_is_refused(make_lora, fields, expected):
    directory = make_lora()
    edit(directory, **fields)
    message = refusal(directory)
    assert expected in message
    assert str(directory) in message


@pytest.mark.parametrize(("text", "expected"), [("{", "cannot read"), ("[]", "no JSON object")])
def test_a_config_that_is_torn(make_lora, text, expected):
    directory = make_lora()
    (directory / CONFIG).write_text(text)
    assert expected in refusal(directory)
    assert str(directory / CONFIG) in refusal(directory)


def test_weights_that_are_absent_or_torn(make_lora):
    directory = make_lora()
    weights = directory / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-10])
    assert "cut short" in refusal(directory)
    weights.rename(directory / "adapter_model.bin")
    assert f"has no {WEIGHTS}" in refusal(directory)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model-00001-of-00002.bin"])
def test_a_lora_beside_a_whole_model(make_lora, llama_dir, name):
    directory = make_lora()
    shutil.copy(llama_dir / "model.safetensors", directory / name)
    message = refusal(directory)
    assert f"holds a LoRA ({CONFIG}) and a whole model ({name})" in message
    with pytest.raises(ValueError, match="whole model"):
        load_tokenizer(str(directory))


def test_a_config_of_the_base_in_the_same_directory_changes_nothing(make_lora, llama_dir):
    directory = make_lora()
    before = describe(str(directory))
    shutil.copy(llama_dir / "config.json", directory)
    assert describe(str(directory)) == before


@pytest.mark.parametrize("base", ["/home/someone/base", "./no-base", "smollm2-135m-instrukt"])
def test_a_base_that_is_not_here(make_lora, base):
    directory = make_lora(base=base)
    message = refusal(directory)
    assert f"the base model {base!r} of the LoRA 'tiny-lora' cannot be used" in message
    assert "write that as base_model_name_or_path" in message
    assert str(directory / CONFIG) in message
    with pytest.raises(ValueError, match="the base model"):
        load_tokenizer(str(directory))
    with pytest.raises(ValueError, match="the base model"):
        load_model(str(directory), device="cpu")


def test_a_base_that_is_out_of_reach(make_lora, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(WeightsUnavailable, match=r"'out/base' of the LoRA.*adapter_config\.json"):
        describe(str(make_lora(base="out/base")))


def test_a_revision_of_a_base_that_has_none(make_lora):
    directory = make_lora(base=DEFAULT_MODEL)
    edit(directory, revision="abc")
    assert "only models on the hub have revisions" in refusal(directory)


def test_a_base_that_is_a_lora(make_lora):
    first = make_lora("first")
    message = refusal(make_lora(base=str(first)))
    assert repr(str(first)) in message
    assert "it is a LoRA itself" in message
    edit(first, base_model_name_or_path=str(first))
    assert "it is a LoRA itself" in refusal(first)
    with pytest.raises(ValueError, match="LoRA itself"):
        load_tokenizer(str(first))


# Refused at its base.


def test_another_rank(make_lora):
    directory = make_lora()
    edit(directory, r=3)
    message = misfit(directory)
    # q_proj and down_proj in two layers, two matrices each.
    assert "8 of its weights have another shape" in message
    assert "layers.0.mlp.down_proj.lora_A.weight: (4, 64) instead of (3, 64)" in message


def test_a_base_of_another_width(make_lora, tmp_path, llama_dir):
    other = tmp_path / "other"
    shutil.copytree(llama_dir, other)
    config = LlamaConfig.from_pretrained(llama_dir)
    config.intermediate_size = 80
    LlamaForCausalLM(config).save_pretrained(other)
    message = misfit(make_lora(base=str(other)))
    assert "2 of its weights have another shape" in message
    assert "down_proj.lora_A.weight: (4, 64) instead of (4, 80)" in message


def test_a_base_of_another_depth(make_lora, tmp_path, llama_dir):
    for layers, expected in [(1, "4 of its weights have no place"), (3, "it lacks 4 weights")]:
        other = tmp_path / f"depth-{layers}"
        shutil.copytree(llama_dir, other)
        config = LlamaConfig.from_pretrained(llama_dir)
        config.num_hidden_layers = layers
        LlamaForCausalLM(config).save_pretrained(other)
        assert expected in misfit(make_lora(base=str(other)))


@pytest.mark.parametrize("targets", [["nope"], ["q_proj", "down_proj", "nope"]])
def test_modules_that_the_base_lacks(make_lora, targets):
    directory = make_lora()
    edit(directory, target_modules=targets)
    assert "nope" in misfit(directory)


def test_a_missing_weight(make_lora):
    directory = make_lora()
    edit_weights(directory, **{f"{Q_PROJ}.lora_B.weight": None})
    assert f"it lacks 1 weights, first {Q_PROJ}.lora_B.weight" in misfit(directory)


@pytest.mark.parametrize(
    "key",
    [
        "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.lora_A.weight",
    ],
)
def test_a_weight_without_a_place(make_lora, key):
    directory = make_lora()
    edit_weights(directory, **{key: torch.zeros(20, 32)})
    assert f"1 of its weights have no place there, first {key}" in misfit(directory)


@pytest.mark.parametrize("module", ["lm_head", "embed_tokens"])
def test_a_matrix_that_the_base_uses_twice(make_lora, module):
    """Merged into a tied matrix, an update of one end would change the other end too."""
    message = misfit(make_lora(target_modules=["q_proj", module]))
    assert module in message
    assert "uses in 2 places" in message


def test_an_update_that_is_no_number(make_lora):
    directory = make_lora()
    edit_weights(directory, **{f"{Q_PROJ}.lora_B.weight": torch.full((32, 4), torch.nan)})
    assert "NaN" in misfit(directory)


def test_a_setting_of_a_newer_peft(make_lora):
    directory = make_lora()
    edit(directory, some_new_variant=None)
    loaded(directory)
    edit(directory, some_new_variant=True, peft_version="99.0")
    with pytest.raises(ValueError, match=r"some_new_variant=True, unknown.*PEFT 99\.0"):
        loaded(directory)


def test_a_rank_below_one(make_lora):
    directory = make_lora()
    edit(directory, r=0)
    assert "positive integer" in misfit(directory)
