"""Train a head on unit-variance inputs, then fold both scales into its weights.

Hidden states of a target have any size; a head learns best when they and the embeddings have
standard deviation one. With the feature scale s and the embedding scale e, a head that maps
(embedding / e, feature / s) to (next feature) / s equals the folded one on raw inputs exactly:
its residual stream is s times larger everywhere.

May import: torch and tss_bench.decoding.drafters.eagle_head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead


@dataclass(frozen=True)
class Scales:
    """Standard deviations of hidden states and of embeddings; raises ValueError unless > 0."""

    feature: float
    embedding: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise ValueError(f"the {name} scale must be a positive number, got {value}")


def training_config(config: EagleConfig, scales: Scales) -> EagleConfig:
    """The head's shape while it trains: the norm's eps is in units of squared features."""
    return replace(config, rms_norm_eps=config.rms_norm_eps / scales.feature**2)


def fold(head: EagleHead, config: EagleConfig, scales: Scales) -> EagleHead:
    """A plain head in true units, of shape `config`, that computes what `head` learnt."""
    folded = EagleHead(config)
    state = {key: value.detach().clone() for key, value in head.state_dict().items()}
    s, hidden = scales.feature, config.hidden_size
    state["fc.weight"][:, :hidden] *= s / scales.embedding
    if "fc.bias" in state:
        state["fc.bias"] *= s
    for name in ("q_proj", "k_proj", "v_proj"):
        state[f"layers.0.self_attn.{name}.weight"] /= s
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        state[f"layers.0.{name}.weight"] *= s
    folded.load_state_dict(state)
    return folded.eval()


# Of the matrices that write into the residual stream, relative to fan-in scaling: small first
# features give nearly uniform first logits, where full ones start at twice the loss of guessing.
_STREAM_SCALE = {"fc.weight": 0.3, "o_proj.weight": 0.15, "down_proj.weight": 0.15}


def initialise(head: EagleHead, seed: int) -> None:
    """Random weights by fan-in, smaller into the residual stream; norms one, biases zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if parameter.ndim == 2:
                draws = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(draws * _initial_std(name, parameter))
            elif name.endswith("bias"):
                parameter.zero_()


def _initial_std(name: str, weight: Tensor) -> float:
    stream = (scale for end, scale in _STREAM_SCALE.items() if name.endswith(end))
    return float(weight.shape[1]) ** -0.5 * next(stream, 1.0)
