"""Scaling and folding. May import: pytest, torch, tss_bench."""

from __future__ import annotations

import pytest
import torch

from tests import tiny
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.training.eagle_scaling import Scales, fold, initialise, training_config


@pytest.mark.parametrize("bias", [True, False])
def test_a_folded_head_computes_the_same_in_true_units(bias: bool) -> None:
    scales = Scales(feature=3.7, embedding=0.11)
    # A large eps, so that the norm's eps matters.
    config = EagleConfig(16, 24, 4, 2, 4, tiny.VOCAB, 12, rms_norm_eps=0.5, bias=bias)
    head = EagleHead(training_config(config, scales))
    initialise(head, 1)
    if bias:
        torch.nn.init.normal_(head.fc.bias)
    head.get_buffer("d2t").copy_(torch.arange(12) * 2)
    embeddings, features = 0.11 * torch.randn(2, 7, 16), 3.7 * torch.randn(2, 7, 16)
    positions = torch.arange(7).expand(2, 7)
    scaled, _ = head.eval()(embeddings / 0.11, features / 3.7, positions)
    folded = fold(head, config, scales)
    plain, _ = folded(embeddings, features, positions)
    torch.testing.assert_close(plain, 3.7 * scaled, rtol=1e-4, atol=1e-4)
    assert folded.config == config
    assert torch.equal(folded.get_buffer("d2t"), head.get_buffer("d2t"))


def test_folding_leaves_the_trained_head_alone() -> None:
    config = EagleConfig(16, 24, 4, 2, 4, tiny.VOCAB)
    head = EagleHead(config)
    before = {key: value.clone() for key, value in head.state_dict().items()}
    fold(head, config, Scales(2.0, 0.5))
    assert all(torch.equal(value, before[key]) for key, value in head.state_dict().items())


def test_initial_weights_follow_the_seed_and_keep_the_norm() -> None:
    heads = [EagleHead(EagleConfig(16, 24, 4, 2, 4, tiny.VOCAB)) for _ in range(3)]
    for head, seed in zip(heads, (1, 1, 2), strict=True):
        initialise(head, seed)
    weights = [head.fc.weight.detach() for head in heads]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert float(heads[0].layers[0].post_attention_layernorm.weight.min()) == 1
    # Fan-in scaling, times 0.3 for the matrix that opens the residual stream.
    assert weights[0].std() == pytest.approx(0.3 * 32**-0.5, rel=0.2)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_is_positive(value: float) -> None:
    with pytest.raises(ValueError, match="feature scale must be a positive number"):
        Scales(value, 1.0)
