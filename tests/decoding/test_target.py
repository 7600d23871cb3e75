from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, Phi3Config

from tests import tiny
from tests.decoding.reference import without_blocks
from tss_bench.decoding.target import Target
from tss_bench.types import SkipSet

FAMILIES = ["llama", "qwen2", "gemma3"]


def hub_logits(family: str, ids: list[int], skip: SkipSet) -> torch.Tensor:
    with without_blocks(tiny.model(family), skip) as model, torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [[], [0], [3], [1, 2], [0, 1, 2, 3]])
def test_score_is_the_model_without_its_skipped_blocks(family: str, layers: list[int]) -> None:
    skip = SkipSet.of(layers, tiny.LAYERS)
    ids = [5, 9, 11, 7, 30, 2, 8, 40, 12]
    expected = hub_logits(family, ids, skip)
    torch.testing.assert_close(tiny.target(family).score(ids, skip), expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [[], [0], [3]])
def test_a_tree_pass_scores_every_path_as_if_it_were_alone(family: str, layers: list[int]) -> None:
    target, skip = tiny.target(family), SkipSet.of(layers, tiny.LAYERS)
    prompt, tokens, parents = [5, 9, 11, 7, 21, 33], [30, 8, 40, 12, 13], [-1, 0, 0, 1, 2]
    paths = {3: [30, 8, 12], 4: [30, 40, 13]}
    cache = target.new_cache(16)
    target.prefill(torch.tensor([prompt]), cache, skip)
    seen = torch.zeros(5, 5, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            seen[node] = seen[parent]
        seen[node, node] = True
    mask = torch.cat((torch.ones(5, len(prompt), dtype=torch.bool), seen), dim=1)
    positions = torch.tensor([[0, 1, 1, 2, 2]]) + len(prompt)
    hidden = target.forward(torch.tensor([tokens]), positions, mask[None], cache, skip)
    logits = target.logits(hidden[0])
    for node, path in paths.items():
        expected = hub_logits(family, prompt + path, skip)[-1]
        torch.testing.assert_close(logits[node], expected, atol=2e-4, rtol=1e-3)


def test_skipped_blocks_run_and_store_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny.target()
    ran: list[int] = []
    run = target._blocks.run
    monkeypatch.setattr(
        target._blocks, "run", lambda layer, *rest: (ran.append(layer), run(layer, *rest))[1]
    )
    cache = target.new_cache(4)
    cache.data.fill_(7.0)
    target.prefill(torch.tensor([[5, 6]]), cache, SkipSet.of([0, 2], tiny.LAYERS))
    assert ran == [1, 3]
    assert (cache.data[[0, 2]] == 7).all()
    assert not (cache.data[[1, 3], ..., :2, :] == 7).any()
    assert cache.length == 2


def test_joined_projections_share_memory_with_the_model() -> None:
    model = tiny.model()
    tiny.target()
    attention = model.model.layers[0].self_attn
    joined = attention.q_proj.weight.data_ptr()
    offset = attention.q_proj.weight.numel() * attention.q_proj.weight.element_size()
    assert attention.k_proj.weight.data_ptr() == joined + offset


@pytest.fixture
def scaled_model() -> Iterator[torch.nn.Module]:
    """A model whose forward pass does something behind its head."""
    model = tiny.model()
    original = model.forward

    def scaled(*args: object, **kwargs: object) -> object:
        output = original(*args, **kwargs)
        output.logits = output.logits * 1.5
        return output

    model.forward = scaled
    yield model
    del model.forward


_SHAPE = {
    "vocab_size": tiny.VOCAB,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    ("family", "message"),
    [
        (Phi3Config, r"the attention of Phi3ForCausalLM is of an unknown kind \(it lacks k_proj\)"),
        (GPTNeoXConfig, "GPTNeoXForCausalLM is no decoder of pre-norm blocks"),
    ],
)
def test_a_family_of_other_parts_is_refused(family: type, message: str) -> None:
    model = AutoModelForCausalLM.from_config(family(**_SHAPE))
    with pytest.raises(ValueError, match=f"{message}.*; use a Llama-like causal LM"):
        Target(model)


def test_a_family_that_computes_more_is_refused(scaled_model: torch.nn.Module) -> None:
    with pytest.raises(ValueError, match=r"LlamaForCausalLM is not supported: .* differs"):
        Target(scaled_model)  # type: ignore[arg-type]


def test_reduced_logits_are_columns_of_the_full_ones() -> None:
    target = tiny.target()
    rows = torch.tensor([4, 9, 30])
    hidden = torch.randn(2, tiny.HIDDEN)
    torch.testing.assert_close(
        target.logits(hidden, target.head_rows(rows)), target.logits(hidden)[:, rows]
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [[], [0], [2], [1, 3], [3]])
def test_a_pass_may_start_at_the_first_skipped_block(family: str, layers: list[int]) -> None:
    target, skip = tiny.target(family), SkipSet.of(layers, tiny.LAYERS)
    ids = torch.tensor([[5, 9, 11, 7, 30], [8, 40, 12, 6, 3]])
    positions, cache = torch.arange(5).expand(2, 5), target.new_cache(5, batch=2)
    inputs = target.layer_inputs(ids, positions, None, cache)
    assert [tuple(hidden.shape) for hidden in inputs] == [(2, 5, tiny.HIDDEN)] * 5
    first = min(layers, default=tiny.LAYERS)
    hidden = target.forward_from(first, inputs[first], positions, None, cache, skip)
    for row in range(2):
        expected = hub_logits(family, ids[row].tolist(), skip)
        torch.testing.assert_close(target.logits(hidden[row]), expected, atol=2e-4, rtol=1e-3)


def test_an_exit_after_a_block_is_the_model_without_the_later_ones() -> None:
    target, ids = tiny.target(), [5, 9, 11, 7, 30]
    positions, cache = torch.arange(5)[None], target.new_cache(5)
    dense = SkipSet.dense(tiny.LAYERS)
    inputs = target.layer_inputs(torch.tensor([ids]), positions, None, cache)
    for layer in range(tiny.LAYERS):
        hidden = inputs[layer + 1]
        normed = target.forward_from(tiny.LAYERS, hidden, positions, None, cache, dense)
        later = SkipSet.of(range(layer + 1, tiny.LAYERS), tiny.LAYERS)
        expected = hub_logits("llama", ids, later)
        torch.testing.assert_close(target.logits(normed[0]), expected, atol=2e-4, rtol=1e-3)
