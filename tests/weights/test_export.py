"""Exported models against the target that skips, on plain transformers.

May import: pytest, torch, transformers, tests.tiny, tss_bench.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from tests import tiny
from tss_bench.decoding.target import Target
from tss_bench.types import SkipSet
from tss_bench.weights import export, load_model
from tss_bench.weights.export import PROVENANCE, export_model, shortened

IDS = [(7 * place) % 40 + 3 for place in range(30)]
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}"


def fresh(family: str) -> PreTrainedModel:
    """A tiny model of its own: a target takes over the weights. Gemma 3 has sliding windows."""
    return tiny._model.__wrapped__(family)


def qwen2_sliding() -> PreTrainedModel:
    torch.manual_seed(7)
    config = Qwen2Config(
        **tiny._SHAPE, use_sliding_window=True, sliding_window=5, max_window_layers=2
    )
    return Qwen2ForCausalLM(config).eval()


def smollm3() -> PreTrainedModel:
    """Every other block has no rotary positions."""
    torch.manual_seed(7)
    shape = {**tiny._SHAPE, "no_rope_layers": [1, 0, 1, 0], "pad_token_id": 0}
    return SmolLM3ForCausalLM(SmolLM3Config(**shape)).eval()


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: fresh("llama"),
    "qwen2": lambda: fresh("qwen2"),
    "qwen2 sliding": qwen2_sliding,
    "gemma3": lambda: fresh("gemma3"),
    "smollm3": smollm3,
}


def save(model: PreTrainedModel, directory: Path) -> Path:
    model.generation_config.repetition_penalty = 1.25
    model.save_pretrained(directory)
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(
    ("family", "layers"),
    [
        ("llama", [1]),
        ("llama", [0, 1, 3]),
        ("qwen2", [0, 3]),
        ("qwen2 sliding", [1]),
        ("qwen2 sliding", [0, 1]),
        ("gemma3", [1]),
        ("gemma3", [0, 3]),
        ("gemma3", [1, 3]),
        ("smollm3", [1]),
    ],
)
def test_plain_transformers_compute_what_the_sparse_target_does(
    tmp_path: Path, family: str, layers: list[int]
) -> None:
    source = save(FAMILIES[family](), tmp_path / "whole")
    skip = SkipSet.of(layers, tiny.LAYERS)
    export_model(str(source), skip, tmp_path / "out", provenance={})
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert exported.config.num_hidden_layers == tiny.LAYERS - len(layers)
    with torch.no_grad():
        found = exported(torch.tensor([IDS]), use_cache=False).logits[0]
    target = Target(FAMILIES[family]())
    torch.testing.assert_close(found, target.score(IDS, skip), atol=2e-4, rtol=1e-4)
    dense = target.score(IDS, SkipSet.dense(tiny.LAYERS))
    assert (found - dense).abs().max() > 0.1


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save(FAMILIES["llama"](), tmp_path / "whole")


SKIP = SkipSet.of([1, 2], tiny.LAYERS)


def test_it_is_a_whole_checkpoint(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    export_model(str(source), SKIP, out, provenance={"model": "whole", "skip": [1, 2]})
    assert json.loads((out / PROVENANCE).read_text()) == {"model": "whole", "skip": [1, 2]}
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.get_vocab() == tiny.tokenizer().get_vocab()
    assert tokenizer.chat_template == TEMPLATE
    settings = json.loads((out / "generation_config.json").read_text())
    assert settings["repetition_penalty"] == 1.25
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_others_may_read_it(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_model(str(source), SKIP, out, provenance={})
    assert (out / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_no_block_at_all_may_be_removed(source: Path, tmp_path: Path) -> None:
    export_model(str(source), SkipSet.dense(tiny.LAYERS), tmp_path / "out", provenance={})
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    for name, value in FAMILIES["llama"]().state_dict().items():
        assert torch.equal(value, found[name])


def test_dtype_is_that_of_the_weights(source: Path, tmp_path: Path) -> None:
    export_model(str(source), SKIP, tmp_path / "out", dtype="bfloat16", provenance={})
    assert AutoConfig.from_pretrained(tmp_path / "out").dtype == torch.bfloat16
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    original = FAMILIES["llama"]().model.layers[3].mlp.up_proj.weight
    assert torch.equal(found.model.layers[1].mlp.up_proj.weight, original.bfloat16())


def test_a_lora_is_merged(llama_dir: Path, make_lora: Callable[..., Path], tmp_path: Path) -> None:
    lora = make_lora()
    skip = SkipSet.of([0], 2)
    export_model(str(lora), skip, tmp_path / "out", provenance={})
    merged, _, _ = load_model(str(lora), dtype="float32", device="cpu")
    expected = Target(merged).score([3, 4, 5], skip)
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    with torch.no_grad():
        logits = found(torch.tensor([[3, 4, 5]])).logits[0]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def test_settings_by_layer_follow_their_layers() -> None:
    config = Qwen2Config(**tiny._SHAPE, max_window_layers=3)
    config.mlp_only_layers = [0, 2, 3]
    config.no_rope_layers = [1, 0, 1, 1]
    # As long as the model is deep, but no list of layers.
    config.eos_token_id = [2, 3, 4, 5]
    short = shortened(config, SkipSet.of([1, 2], tiny.LAYERS))
    assert short.num_hidden_layers == 2
    assert short.layer_types == ["full_attention"] * 2
    assert short.no_rope_layers == [1, 1]
    assert short.mlp_only_layers == [0, 1]
    assert short.max_window_layers == 1
    assert short.eos_token_id == [2, 3, 4, 5]
    assert config.num_hidden_layers == tiny.LAYERS


def test_a_place_that_is_taken_is_refused_before_loading(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "load_model", lambda *_, **__: pytest.fail("weights were loaded"))
    (tmp_path / "file").write_text("mine")
    for taken in (source, tmp_path / "file"):
        with pytest.raises(ValueError, match=r"is there already and not empty; choose .* --out"):
            export_model(str(source), SKIP, taken, provenance={})
    with pytest.raises(ValueError, match="all 4 layers would be removed; at least one must stay"):
        export_model(
            str(source), SkipSet.of(range(4), tiny.LAYERS), tmp_path / "out", provenance={}
        )


def test_a_killed_export_leaves_nothing_and_the_next_one_clears_up(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    out.mkdir()
    # What a process leaves that could not clear up any more.
    left = tmp_path / ".out.part" / "model.safetensors"
    left.parent.mkdir()
    left.write_bytes(b"half")
    with monkeypatch.context() as patch:
        patch.setattr(PreTrainedTokenizerFast, "save_pretrained", killed)
        with pytest.raises(KeyboardInterrupt):
            export_model(str(source), SKIP, out, provenance={})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]
    assert not any(out.iterdir())
    export_model(str(source), SKIP, out, provenance={})
    assert AutoConfig.from_pretrained(out).num_hidden_layers == 2


def test_two_exports_to_one_place_do_not_mix(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loading, go = threading.Event(), threading.Event()

    def slow(*args: Any, **given: Any) -> Any:
        loading.set()
        assert go.wait(30)
        return load_model(*args, **given)

    monkeypatch.setattr(export, "load_model", slow)
    first = threading.Thread(
        target=export_model, args=(str(source), SKIP, tmp_path / "out"), kwargs={"provenance": {}}
    )
    first.start()
    try:
        assert loading.wait(30)
        with pytest.raises(ValueError, match=r"another export writes .*out; wait for it"):
            export_model(str(source), SKIP, tmp_path / "out", provenance={})
    finally:
        go.set()
        first.join()
    assert (tmp_path / "out" / PROVENANCE).is_file()


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder nobody may write to")
def test_a_place_where_no_lock_can_be_made_is_no_other_export(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "load_model", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(OSError, match="/proc"):
        export_model(str(source), SKIP, Path("/proc/out"), provenance={})


def test_a_setting_that_the_export_does_not_know_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(fresh("gemma3"), tmp_path / "whole")

    def by_number(config: PreTrainedConfig, skip: SkipSet) -> PreTrainedConfig:
        short = copy.deepcopy(config)
        short.num_hidden_layers = len(skip.active)
        short.layer_types = config.layer_types[: len(skip.active)]
        return short

    monkeypatch.setattr(export, "shortened", by_number)
    with pytest.raises(ValueError, match=r"whole cannot be exported: .* block that becomes 0 is"):
        export_model(str(source), SkipSet.of([0, 2], 4), tmp_path / "out", provenance={})
    monkeypatch.setattr(export, "shortened", lambda config, skip: config)
    with pytest.raises(ValueError, match=r"lack .* tensors"):
        export_model(str(source), SkipSet.of([0, 2], 4), tmp_path / "out", provenance={})
    assert not (tmp_path / "out").exists()


def test_a_config_that_transformers_refuses_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(fresh("gemma3"), tmp_path / "whole")
    monkeypatch.setattr(export, "_NOT_BY_LAYER", ("layer_types",))
    with pytest.raises(ValueError, match="whole cannot be exported without these layers: ") as told:
        export_model(str(source), SKIP, tmp_path / "out", provenance={})
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out").exists()


def test_a_model_that_computes_something_else_is_seen(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_settings", lambda *_: [])
    calls: list[str] = []

    def other(name: str, **given: Any) -> Any:
        calls.append(name)
        found = load_model(name, **given)
        if len(calls) == 2:
            found[0].model.norm.weight.data *= 1.01
        return found

    monkeypatch.setattr(export, "load_model", other)
    with pytest.raises(ValueError, match=r"differs from the sparse target by 0\.01, allowed: 0.00"):
        export_model(str(source), SKIP, tmp_path / "out", provenance={})
    assert not (tmp_path / "out").exists()
