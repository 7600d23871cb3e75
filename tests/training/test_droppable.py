"""A model with droppable blocks. May import: pytest, torch, tss_bench, tests."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import tiny
from tss_bench.decoding.blocks import decoder
from tss_bench.decoding.target import Target
from tss_bench.training import droppable
from tss_bench.training.droppable import DroppableModel
from tss_bench.types import SkipSet

FAMILIES = ["llama", "qwen2", "gemma3"]
IDS = torch.tensor([[5, 9, 17, 30, 8, 11, 3, 21], [7, 7, 40, 12, 33, 6, 0, 0]])


def model(family: str = "llama") -> Any:
    """A copy that may be trained; `tiny.target` takes the shared one over."""
    fresh = copy.deepcopy(tiny.model(family))
    return fresh.requires_grad_(True)


def kept(dropped: dict[int, list[int]]) -> Tensor:
    """Blocks that run, bool [L, B, n]; `dropped[layer]` are the rows that leave it out."""
    mask = torch.ones(tiny.LAYERS, *IDS.shape, dtype=torch.bool)
    for layer, rows in dropped.items():
        mask[layer, rows] = False
    return mask


def sparse(target: Target, row: int, skip: set[int]) -> Tensor:
    """The engine's hidden states [n, H] of one row under a skip set, scope `all`."""
    cache = target.new_cache(IDS.shape[1])
    return target.prefill(IDS[row : row + 1], cache, SkipSet.of(skip, tiny.LAYERS))[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_dropped_is_the_model_itself(family: str) -> None:
    student = model(family)
    (found,) = DroppableModel(student)(IDS, kept({}))
    with torch.no_grad():
        expected = student.get_decoder()(IDS).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_row_runs_the_sparse_target_of_its_own_skip_set(family: str) -> None:
    (found,) = DroppableModel(model(family))(IDS, kept({1: [0], 2: [0, 1], 3: [1]}))
    target = Target(model(family).requires_grad_(False))
    for row, skip in enumerate(({1, 2}, {2, 3})):
        torch.testing.assert_close(found[row], sparse(target, row, skip), atol=1e-4, rtol=1e-4)


def test_a_dense_prompt_is_what_scope_verify_computes() -> None:
    prompt, skip = 5, SkipSet.of({0, 2}, tiny.LAYERS)
    mask = torch.ones(tiny.LAYERS, *IDS.shape, dtype=torch.bool)
    mask[[0, 2], :, prompt:] = False
    (found,) = DroppableModel(model())(IDS, mask)
    target = tiny.target()
    cache = target.new_cache(IDS.shape[1], batch=2)
    first = target.prefill(IDS[:, :prompt], cache, SkipSet.dense(tiny.LAYERS))
    rest = target.prefill(IDS[:, prompt:], cache, skip)
    torch.testing.assert_close(found, torch.cat((first, rest), dim=1), atol=1e-4, rtol=1e-4)


def test_exits_are_normed_states_after_their_layers() -> None:
    student = model()
    states = DroppableModel(student)(IDS, None, [0, 2])
    with torch.no_grad():
        hidden = student.get_decoder()(IDS, output_hidden_states=True).hidden_states
        norm = decoder(student).norm
        for state, layer in zip(states, (0, 2), strict=True):
            torch.testing.assert_close(state, norm(hidden[layer + 1]), atol=1e-5, rtol=1e-5)


def gradients(student: Any, mask: Tensor) -> list[float | None]:
    """The largest gradient in each block; None where there is none."""
    (hidden,) = DroppableModel(student)(IDS, mask)
    hidden.square().sum().backward()
    return [
        None if block.mlp.down_proj.weight.grad is None
        else float(block.mlp.down_proj.weight.grad.abs().max())
        for block in decoder(student).layers
    ]  # fmt: skip


def test_a_block_dropped_everywhere_gets_no_gradient() -> None:
    found = gradients(model(), kept({1: [0, 1]}))
    assert found[1] is None
    assert all(value and value > 0 for value in (found[0], found[2], found[3]))


def test_only_the_rows_that_keep_a_block_train_it() -> None:
    both, one = model(), model()
    gradients(both, kept({2: [1]}))
    (hidden,) = DroppableModel(one)(IDS[:1], None)
    hidden.square().sum().backward()
    weights = [decoder(m).layers[2].mlp.down_proj.weight.grad for m in (both, one)]
    torch.testing.assert_close(*weights, atol=1e-4, rtol=1e-4)


def test_recomputed_blocks_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = kept({1: [0, 1], 2: [1]})
    expected = gradients(model(), mask)
    monkeypatch.setattr(droppable, "_RECOMPUTED", 1)
    assert gradients(model(), mask) == expected
