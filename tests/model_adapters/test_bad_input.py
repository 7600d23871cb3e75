"""Bad input ends in one clear last line before any weight is loaded.

May import: pytest, the standard library, model_adapters, tss_bench.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

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
    assert line.startswith("model_adapters.arguments.AdapterError: ")
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


def test_a_fixed_and_a_dynamic_tree_at_once(tmp_path: Path) -> None:
    line = last_line(
        NativeEagle, draft=str(tmp_path), tree="eagle_mc_sim_7b_63", total_token=8, depth=3
    )
    expect(line, "tree=eagle_mc_sim_7b_63", "total_token, depth", "one or the other")


def test_more_than_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = last_line(TssAR)
    expect(line, "one process, but 2 were started", "accelerate launch --num_processes 1")
