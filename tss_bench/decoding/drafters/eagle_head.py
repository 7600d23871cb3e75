"""The EAGLE-1/2 draft head as a module whose parameters carry the official file's names.

One Llama block without an input norm, on top of a linear layer that fuses a token's embedding
with the target's feature (its last hidden state after the final norm) of the position before.
Source: EAGLE (arXiv 2401.15077), EAGLE-2 (arXiv 2406.16858).

May import: torch, decoding.batch_cache, drafters.head_block. Knows nothing of trees, targets or
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
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


@dataclass(frozen=True)
class EagleConfig(HeadShape):
    """Shape of a head; the fields of its `config.json`."""

    bias: bool = True

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> EagleConfig:
        """Read a Llama-style `config.json`; raises ValueError naming a missing key."""
        return cls(**read_shape(config), bias=bool(config.get("bias", True)))

    def to_dict(self) -> dict[str, Any]:
        """The `config.json` of a head with this shape."""
        fields = {key: value for key, value in asdict(self).items() if value is not None}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            **fields,
        }


class EagleHead(nn.Module):
    """Predicts the next feature from (embedding of token i+1, feature i).

    `embed_tokens` exists only when the file brings its own; else the target's embedding is
    used. `d2t` (int64 [draft_vocab], target id = draft id + d2t) exists only for a reduced
    draft vocabulary.
    """

    def __init__(self, config: EagleConfig, *, own_embedding: bool = False) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, hidden) if own_embedding else None
        self.fc = nn.Linear(2 * hidden, hidden, bias=config.bias)
        self.layers = nn.ModuleList([_Block(config)])
        if config.draft_vocab_size is not None:
            self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.long))

    @property
    def draft_rows(self) -> Tensor | None:
        """Target ids of the draft vocabulary, int64 [draft_vocab]; None when it is the full one."""
        if self.config.draft_vocab_size is None:
            return None
        return target_ids(self.get_buffer("d2t"))

    def feature_layers(self, num_layers: int) -> tuple[int, ...]:
        """None: features are the target's final hidden states."""
        return ()

    def fuse(self, features: Tensor) -> Tensor:
        """The target's features as they are: what the head predicts is of the same kind."""
        return features

    def forward(
        self,
        embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        past: KeyValues | None = None,
    ) -> tuple[Tensor, KeyValues]:
        """Next features and the keys/values seen so far.

        embeddings, features [B, n, H]; positions int [B, n]; mask bool, broadcastable to
        [B, heads, n, past + n], True = may attend (None: causal); past: keys and values, each
        [B, kv_heads, past, D]. Returns hidden [B, n, H] and keys/values of length past + n.
        """
        hidden = self.fc(torch.cat((embeddings, features), dim=-1))
        return self.layers[0](hidden, positions, mask, past)

    def forward_rows(
        self,
        embeddings: Tensor,
        features: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: BatchCache,
    ) -> Tensor:
        """`forward` of an open pass over a batch, whose cache has one layer: next features.

        `mask` as `BatchCache.visible` gives it.
        """
        block: Any = self.layers[0]
        hidden = self.fc(torch.cat((embeddings, features), dim=-1))
        hidden = hidden + block.self_attn.forward_rows(hidden, positions, mask, cache)
        return hidden + block.mlp(block.post_attention_layernorm(hidden))


class _Block(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.self_attn = HeadAttention(config, config.hidden_size)
        self.mlp = HeadMLP(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, hidden: Tensor, positions: Tensor, mask: Tensor | None, past: KeyValues | None
    ) -> tuple[Tensor, KeyValues]:
        attended, key_values = self.self_attn(hidden, positions, mask, past)
        hidden = hidden + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), key_values
