from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests import tiny
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.generate import DecodingOptions, generate
from tss_bench.decoding.linear import PackedLinear, can_pack, linear, pack_linears
from tss_bench.decoding.target import Target
from tss_bench.types import SkipSet

packs = pytest.mark.skipif(
    not can_pack(torch.zeros(2, 2, dtype=torch.bfloat16)),
    reason="this torch or CPU packs no bfloat16 weights",
)


@packs
@pytest.mark.parametrize("rows", [1, 3, 8, 70])
@pytest.mark.parametrize("biased", [False, True])
def test_a_packed_map_equals_the_plain_one(rows: int, biased: bool) -> None:
    weight = torch.randn(48, 32).bfloat16()
    bias = torch.randn(48).bfloat16() if biased else None
    x = torch.randn(2, rows, 32).bfloat16()
    found = linear(weight, bias)(x)
    assert found.shape == (2, rows, 48)
    torch.testing.assert_close(found, F.linear(x, weight, bias), atol=0.05, rtol=0.02)


def test_other_weights_stay_plain() -> None:
    assert not can_pack(torch.zeros(2, 2))
    assert not isinstance(linear(torch.zeros(2, 2)), PackedLinear)


@packs
def test_pack_linears_replaces_nested_maps_only() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2)))
    module = module.bfloat16()
    plain = copy.deepcopy(module)
    pack_linears(module)
    assert isinstance(module[0], PackedLinear)
    assert isinstance(module[1][0], nn.LayerNorm)
    assert isinstance(module[1][1], PackedLinear)
    x = torch.randn(3, 4).bfloat16()
    with torch.inference_mode():
        torch.testing.assert_close(module(x), plain(x), atol=0.05, rtol=0.02)


@packs
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
@pytest.mark.parametrize("layers", [[], [0, 2]])
def test_a_packed_target_scores_as_the_model_did(family: str, layers: list[int]) -> None:
    model = copy.deepcopy(tiny.model(family)).bfloat16()
    skip = SkipSet.of(layers, tiny.LAYERS)
    ids = [5, 9, 11, 7, 30, 2, 8]
    exact = tiny.target(family).score(ids, skip)
    found = Target(model).score(ids, skip)
    assert (found - exact).norm() / exact.norm() < 0.1


@packs
def test_a_packed_head_drafts_for_a_packed_target() -> None:
    target = Target(copy.deepcopy(tiny.model()).bfloat16())
    options = DecodingOptions(16, frozenset())
    skip = SkipSet.of([1], tiny.LAYERS)
    arguments = ([5, 6, 7], skip, options, tiny.tokenizer())
    drafter = Eagle(tiny.eagle_head(16), target, DynamicTree(6, 2, 3))
    answer = generate(target, drafter, *arguments)
    assert answer.stats.drafted > 0
    assert len(answer.ids) == len(generate(target, NoDraft(), *arguments).ids)
