"""Captured layer inputs against those of a Hugging Face model without the skipped blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests import tiny
from tests.decoding.reference import without_blocks
from tss_bench.decoding.batch_cache import Prefix
from tss_bench.decoding.capture import Capture
from tss_bench.types import SkipSet

IDS = [5, 9, 11, 7, 30]
LAYERS = (1, 2, 3)


def hub_inputs(family: str, skip: SkipSet) -> list[torch.Tensor]:
    """What enters block 0, 1, 2 and 3, found in the model that lacks the skipped ones."""
    seen: dict[int, torch.Tensor] = {}

    def noting(layer: int) -> Callable[..., None]:
        return lambda module, given: seen.update({layer: given[0][0]})

    with without_blocks(tiny.model(family), skip) as model, torch.no_grad():
        entered = zip(
            (*model.get_decoder().layers, model.get_decoder().norm), (*skip.active, 4), strict=True
        )
        hooks = [module.register_forward_pre_hook(noting(layer)) for module, layer in entered]
        model(input_ids=torch.tensor([IDS]), use_cache=False)
        for hook in hooks:
            hook.remove()
    # A skipped block is entered by what the next active one is entered by.
    return [seen[min(place for place in seen if place >= layer)] for layer in range(4)]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("layers", [[], [1], [2], [1, 2], [0, 3], [0, 1, 2, 3]])
def test_features_are_the_inputs_of_the_layers_whatever_is_skipped(
    family: str, layers: list[int]
) -> None:
    target, skip = tiny.target(family), SkipSet.of(layers, tiny.LAYERS)
    capture = Capture(LAYERS)
    hidden = target.prefill(torch.tensor([IDS]), target.new_cache(5), skip, capture)
    features = capture.features(hidden)[0]
    expected = torch.cat([hub_inputs(family, skip)[layer] for layer in LAYERS], dim=-1)
    torch.testing.assert_close(features, expected, atol=2e-4, rtol=1e-3)
    # What is captured changes nothing else.
    plain = target.prefill(torch.tensor([IDS]), target.new_cache(5), skip)
    assert torch.equal(hidden, plain)


def test_a_skipped_layer_is_entered_by_the_last_active_one_s_output() -> None:
    target = tiny.target()
    capture = Capture((0, 1, 2, 3, 4))
    skip = SkipSet.of([1, 2], tiny.LAYERS)
    hidden = target.prefill(torch.tensor([IDS]), target.new_cache(5), skip, capture)
    states = capture.features(hidden)[0].split(tiny.HIDDEN, dim=-1)
    assert torch.equal(states[0], target.embed(torch.tensor(IDS)))
    assert torch.equal(states[1], states[2])
    assert torch.equal(states[2], states[3])
    assert not torch.equal(states[0], states[1])
    assert not torch.equal(states[3], states[4])
    # The last one is what the final norm makes the result of.
    assert torch.equal(target._norm(states[4]), hidden[0])


def test_rows_of_different_skip_sets_have_their_own_features() -> None:
    target = tiny.target()
    skips = [SkipSet.of(layers, tiny.LAYERS) for layers in ([], [1], [2, 3], [0, 1, 2, 3])]
    prompt = target.new_cache(3)
    target.prefill(torch.tensor([[3, 4, 6]]), prompt, SkipSet.dense(tiny.LAYERS))
    ids = torch.tensor([IDS[:2]] * len(skips))
    cache = target.new_batch(len(skips), 8)
    for _ in skips:
        cache.add(Prefix.of(prompt))
    cache.open(2)
    capture = Capture((1, 2, 3, 4))
    seen = cache.visible(torch.ones(2, 2, dtype=torch.bool).tril().expand(len(skips), -1, -1))
    positions = cache.positions()[:, None] + torch.arange(2)
    hidden = target.forward_rows(ids, positions, seen, cache, skips, capture)
    features = capture.features(hidden)
    for row, skip in enumerate(skips):
        own = target.new_cache(8)
        target.prefill(torch.tensor([[3, 4, 6]]), own, SkipSet.dense(tiny.LAYERS))
        alone = Capture((1, 2, 3, 4))
        expected = target.prefill(ids[:1], own, skip, alone)
        torch.testing.assert_close(features[row], alone.features(expected)[0], atol=2e-4, rtol=1e-3)


def test_without_layers_the_result_is_the_feature() -> None:
    result = torch.randn(1, 2, 4)
    capture = Capture(())
    capture.see(0, torch.zeros(1, 2, 4))
    assert capture.features(result) is result
