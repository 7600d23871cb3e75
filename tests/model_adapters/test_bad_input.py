"""Bad input ends in one clear last line before any weight is loaded.

May import: pytest, torch, safetensors, transformers, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import copy
import json
import shutil
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast

from model_adapters.adapters import (
    NativeAR,
    NativeEagle,
    NativeTokenRecycling,
    TssAR,
    TssEagle,
    TssTokenRecycling,
)
from model_adapters.arguments import AdapterError
from model_adapters.base import SpeculativeLM
from tests import eagle3
from tests.model_adapters.conftest import make_tokenizer
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.types import SkipSet

pytestmark = pytest.mark.usefixtures("no_loading")


def last_line(adapter: type[SpeculativeLM], **arguments: Any) -> str:
    """What a user sees last: the last line of the traceback."""
    with pytest.raises(AdapterError) as caught:
        adapter(**arguments)
    return traceback.format_exception(caught.value)[-1].removesuffix("\n")


def expect(line: str, *parts: str) -> None:
    assert "\n" not in line
    kinds = ("AdapterError: ", "IncompleteError: ")
    assert line.removeprefix("model_adapters.arguments.").startswith(kinds)
    for part in parts:
        assert part in line


@pytest.mark.parametrize("layers", [[3, 30], "3+30", "{3,30}", 30, -1])
def test_an_unknown_layer(layers: object) -> None:
    line = last_line(TssAR, skip_layers=layers)
    bad = "-1" if layers == -1 else "30"
    expect(line, "skip_layers=", f"skip layer {bad} does not exist", "30 layers", "0 to 29")


@pytest.mark.parametrize("layers", ["3+x", [1.5], True, 2.5])
def test_what_is_no_layer(layers: object) -> None:
    expect(last_line(TssAR, skip_layers=layers), "skip_layers=")


def test_an_unknown_argument() -> None:
    line = last_line(TssEagle, skiplayers=[3])
    expect(line, "tss_eagle has no argument 'skiplayers'", "did you mean 'skip_layers'")


def test_skip_sets_for_a_native_adapter() -> None:
    for adapter in (NativeAR, NativeEagle, NativeTokenRecycling):
        expect(last_line(adapter, skip_layers=[3]), "runs every layer", "use tss_")
        expect(last_line(adapter, domain_map="x.json"), "takes no domain_map")


def test_a_torn_map(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text('{"schema": 1, "mo', encoding="utf-8")
    expect(last_line(TssEagle, domain_map=str(path), draft=str(tmp_path)), str(path), "cut off")


def test_a_map_that_is_not_there() -> None:
    line = last_line(TssAR, domain_map="published/vicuna-7b-eagle")
    expect(line, "no domain map", "did you mean published/vicuna-7b-v1.3-eagle")


def test_a_map_of_another_model() -> None:
    line = last_line(TssAR, domain_map="published/vicuna-7b-v1.3-eagle")
    expect(line, "lmsys/vicuna-7b-v1.3", "smollm2-135m-instruct")


def test_a_map_of_another_layer_count(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    config = DomainConfig(SkipSet.of([3], 32))
    DomainMap("smollm2-135m-instruct", "none", 32, domains={"qa": config}).save(path)
    expect(last_line(TssAR, domain_map=str(path)), "has 32 layers", "has 30")


@pytest.mark.parametrize("adapter", [NativeEagle, TssEagle])
def test_a_missing_draft(adapter: type[SpeculativeLM], tmp_path: Path) -> None:
    missing = tmp_path / "no-head"
    expect(last_line(adapter, draft=str(missing)), str(missing), "draft=")


def test_no_packaged_head_for_this_model(chat_model: Path) -> None:
    expect(last_line(TssEagle, pretrained=str(chat_model)), "tiny-chat", "draft=")


@pytest.mark.parametrize("size", [2, "2", "auto:4", 0])
def test_a_batch_size_above_one(size: object) -> None:
    expect(last_line(TssAR, batch_size=size), f"batch_size must be 1 or auto, got {size!r}")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    missing = tmp_path / "no-model"
    expect(last_line(NativeAR, pretrained=str(missing)), str(missing), "does not exist")


def test_an_unknown_tree() -> None:
    line = last_line(TssTokenRecycling, tree="token_recycling_16")
    expect(line, "token_recycling_16", "did you mean 'token_recycling_61'")


def test_a_tree_with_too_many_children(tmp_path: Path) -> None:
    path = tmp_path / "wide.json"
    path.write_text(json.dumps({"paths": [[rank] for rank in range(9)]}), encoding="utf-8")
    expect(last_line(TssTokenRecycling, tree=str(path)), "9 children", "8 candidates")


def head_for_default(directory: Path, **config: Any) -> Path:
    """A head's config for the default target, with a weight file whose header is whole."""
    fields = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "vocab_size": 49152,
        **config,
    }
    (directory / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    save_file({"fc.weight": torch.zeros(2)}, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("adapter", [NativeEagle, TssEagle])
@pytest.mark.parametrize(
    ("config", "parts"),
    [
        ({"hidden_size": 4096}, ["hidden_size 4096", "576"]),
        ({"vocab_size": 49153}, ["vocab_size 49153", "49152"]),
        ({"speculators_model_type": "eagle"}, ["speculators format"]),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, ["no EAGLE-3 head", "missing", "norm"]),
        ({"num_hidden_layers": 30}, ["num_hidden_layers 30", "an EAGLE head has 1"]),
    ],
)
def test_a_head_that_does_not_fit(
    adapter: type[SpeculativeLM], config: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    head = head_for_default(tmp_path, **config)
    expect(last_line(adapter, draft=str(head)), str(head), *parts)


def test_an_eagle_3_head_of_another_shape(tmp_path: Path) -> None:
    head = head_for_default(tmp_path)
    save_file({"midlayer.hidden_norm.weight": torch.zeros(2)}, head / "model.safetensors")
    line = last_line(NativeEagle, draft=str(head))
    expect(line, str(head), "midlayer.hidden_norm.weight has shape [2]", "means [576]")


def test_an_eagle_3_head_for_a_target_of_four_layers(chat_model: Path, tmp_path: Path) -> None:
    vocab = len(make_tokenizer())
    state = eagle3.official_state(vocab, 9)
    head = eagle3.write(tmp_path / "head", eagle3.official_config(vocab, 9), state)
    line = last_line(NativeEagle, pretrained=str(chat_model), draft=str(head))
    expect(line, "inputs of layers 2, L//2 and L-3", "the target has 4 layers")


def test_a_directory_without_a_head(tmp_path: Path) -> None:
    expect(last_line(NativeEagle, draft=str(tmp_path)), str(tmp_path), "has no config.json")
    head = head_for_default(tmp_path)
    (head / "model.safetensors").write_bytes(b"torn")
    expect(last_line(NativeEagle, draft=str(head)), str(head), "cannot read the weights")
    (head / "model.safetensors").unlink()
    expect(last_line(NativeEagle, draft=str(head)), "neither model.safetensors nor pytorch_model")


def test_a_head_of_another_tokenizer(
    chat_model: Path, tokenizer: PreTrainedTokenizerFast, eagle_head: Path, tmp_path: Path
) -> None:
    head = tmp_path / "head"
    shutil.copytree(eagle_head, head)
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["Hallo"])
    other.save_pretrained(head)
    line = last_line(NativeEagle, pretrained=str(chat_model), draft=str(head))
    expect(line, str(head), "another tokenizer than target 'tiny-chat'", "'Hallo'")


def test_a_revision_of_a_local_head(eagle_head: Path, chat_model: Path) -> None:
    line = last_line(
        NativeEagle, pretrained=str(chat_model), draft=str(eagle_head), draft_revision="v2"
    )
    expect(line, "draft_revision='v2'", "only heads on the hub have revisions")


def test_a_context_above_the_model_s(chat_model: Path) -> None:
    line = last_line(NativeAR, pretrained=str(chat_model), max_length=257)
    expect(line, "max_length=257 is above the context of tiny-chat, which is 256")
    expect(last_line(TssAR, max_length=8193), "max_length=8193", "which is 8192")


def test_a_chat_template_that_is_not_there(base_model: Path) -> None:
    line = last_line(NativeAR, pretrained=str(base_model), chat_template=True)
    expect(line, "tiny-base has no chat template", "leave chat_template out")


def test_a_fixed_and_a_dynamic_tree_at_once(tmp_path: Path) -> None:
    line = last_line(
        NativeEagle, draft=str(tmp_path), tree="eagle_mc_sim_7b_63", total_token=8, depth=3
    )
    expect(line, "tree=eagle_mc_sim_7b_63", "total_token, depth", "one or the other")


def test_more_than_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = last_line(TssAR)
    expect(line, "one process, but 2 were started", "accelerate launch --num_processes 1")
