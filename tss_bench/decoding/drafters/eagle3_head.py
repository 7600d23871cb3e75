"""The EAGLE-3 draft head as a module whose parameters carry the official file's names.

Features are the inputs of three of the target's blocks, fused by `fc`. One Llama block reads the
normed embedding of token i+1 beside the normed fused feature i; its output goes through the
head's own norm and output matrix, and is itself, before that norm, the next feature.
Source: EAGLE-3 (arXiv 2503.01840), SafeAILab/EAGLE `cnets.py`; `norm_before_residual` and
`norm_before_fc` as in vllm-project/speculators.

May import: torch, decoding.batch_cache, drafters.head_block. Knows nothing of trees, targets or
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from tss_bench.decoding.batch_cache import BatchCache
from tss_bench.decoding.drafters.head_block import (
    HeadAttention,
    HeadMLP,
    HeadShape,
    KeyValues,
    read_shape,
    target_ids,
)

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
"""The config's key for feature layers: vLLM and speculators name the blocks whose input is taken;
inside `eagle_config` (SGLang, ModelOpt) it names those whose output is."""


@dataclass(frozen=True)
class Eagle3Config(HeadShape):
    """Shape of a head. `target_hidden_size` None: as wide as the head; `layer_ids` None: the
    features are the published choice, else as the config names them, `of_outputs` or of inputs.
    """

    target_hidden_size: int | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    layer_ids: tuple[int, ...] | None = None
    of_outputs: bool = False

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Eagle3Config:
        """Read a Llama-style `config.json`; raises ValueError naming a missing or bad key."""
        target = config.get("target_hidden_size")
        nested = config.get("eagle_config") or {}
        if not nested.get("use_aux_hidden_state", True):
            raise ValueError(
                "the draft head's config.json has use_aux_hidden_state false; only heads that "
                "fuse the features of several layers are supported"
            )
        layers, nested_layers = config.get(LAYER_IDS), nested.get(LAYER_IDS)
        return cls(
            **read_shape(config),
            target_hidden_size=None if target is None else int(target),
            norm_before_residual=bool(config.get("norm_before_residual", False)),
            norm_before_fc=bool(config.get("norm_before_fc", False)),
            layer_ids=_layer_ids(layers or nested_layers),
            of_outputs=not layers and bool(nested_layers),
        )

    @property
    def feature_size(self) -> int:
        """Hidden size of the target that the head belongs to."""
        return self.target_hidden_size or self.hidden_size

    @property
    def num_features(self) -> int:
        """How many of the target's hidden states `fc` fuses."""
        return 3 if self.layer_ids is None else len(self.layer_ids)

    def feature_layers(self, num_layers: int) -> tuple[int, ...]:
        """The blocks of a target of L = `num_layers` whose inputs are the features, ascending.

        Raises ValueError where the target has no such blocks.
        """
        default = (2, num_layers // 2, num_layers - 3)
        # Files are not careful about the two ways of counting: in either, these mean the default.
        usual = (None, default, tuple(layer - 1 for layer in default))
        if self.layer_ids not in usual:
            layers = tuple(layer + self.of_outputs for layer in self.layer_ids or ())
            if layers[-1] > num_layers:
                raise ValueError(
                    f"the EAGLE-3 head reads the inputs of layers {list(layers)}, the target has "
                    f"only {num_layers}; pass a head of this target as draft="
                )
            return layers
        if not default[0] < default[1] < default[2]:
            raise ValueError(
                f"an EAGLE-3 head reads the inputs of layers 2, L//2 and L-3, which are three "
                f"from L = 7 on; the target has {num_layers} layers. Use an EAGLE-1/2 head, or "
                f"one whose config.json names its layers in {LAYER_IDS}"
            )
        return default


def _layer_ids(given: Any) -> tuple[int, ...] | None:
    if not given:
        return None
    if not isinstance(given, list) or not all(type(layer) is int for layer in given):
        raise ValueError(f"{LAYER_IDS} must be a list of layers, got {given!r}")
    layers = tuple(sorted(given))
    if layers[0] < 0 or len(set(layers)) < len(layers):
        raise ValueError(f"{LAYER_IDS} must be different layers from 0 on, got {given}")
    return layers


class Eagle3Head(nn.Module):
    """Predicts the next token and feature from (embedding of token i+1, fused feature i).

    `embed_tokens` and `d2t` exist as in `EagleHead`; the output matrix has a row a draft id.
    """

    def __init__(self, config: Eagle3Config, *, own_embedding: bool = False) -> None:
        super().__init__()
        self.config = config
        hidden, eps = config.hidden_size, config.rms_norm_eps
        fused = config.num_features * config.feature_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if own_embedding else None
        self.input_norm = nn.RMSNorm(fused, eps=eps) if config.norm_before_fc else None
        self.fc = nn.Linear(fused, hidden, bias=False)
        self.midlayer = _Block(config)
        self.norm = nn.RMSNorm(hidden, eps=eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size or config.vocab_size, bias=False)
        if config.draft_vocab_size is not None:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))

    @property
    def draft_rows(self) -> Tensor | None:
        """Target ids of the draft vocabulary, int64 [draft_vocab]; None when it is the full one."""
        if self.config.draft_vocab_size is None:
            return None
        return target_ids(self.get_buffer("d2t"))

    def feature_layers(self, num_layers: int) -> tuple[int, ...]:
        """See `Eagle3Config.feature_layers`."""
        return self.config.feature_layers(num_layers)

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features [.., k * H of the target] as one feature [.., H] of the head."""
        return self.fc(features if self.input_norm is None else self.input_norm(features))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores [.., draft_vocab] of the ids after predicted features [.., H]."""
        return self.lm_head(self.norm(hidden))

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        past: KeyValues | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Next features and the keys/values seen so far; arguments as `EagleHead.forward`.

        features: fused ones, or the head's own output of the position before.
        """
        residual, inputs = self.midlayer.inputs(embeddings, features)
        attended, key_values = self.midlayer.self_attn(inputs, positions, mask, past)
        return self.midlayer.finish(residual + attended), key_values

    def forward_rows(
        self,
        embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: BatchCache,
    ) -> Tensor:
        """`forward` of an open pass over a batch, see `EagleHead.forward_rows`."""
        residual, inputs = self.midlayer.inputs(embeddings, features)
        attended = self.midlayer.self_attn.forward_rows(inputs, positions, mask, cache)
        return self.midlayer.finish(residual + attended)


class _Block(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self._norm_before_residual = config.norm_before_residual
        self.hidden_norm = nn.RMSNorm(hidden, eps=eps)
        self.input_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.self_attn = HeadAttention(config, 2 * hidden)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps=eps)
        self.mlp = HeadMLP(config)

    def inputs(self, embeddings: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """The residual [B, n, H], and what attention reads [B, n, 2H]: the embedding first."""
        normed = self.hidden_norm(features)
        residual = normed if self._norm_before_residual else features
        return residual, torch.cat((self.input_layernorm(embeddings), normed), dim=-1)

    def finish(self, hidden: Tensor) -> Tensor:
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
