"""The EAGLE-1/2 draft head as a module whose parameters carry the official file's names.

One Llama block without an input norm, on top of a linear layer that fuses a token's embedding
with the target's feature (its last hidden state after the final norm) of the position before.
Source: EAGLE (arXiv 2401.15077), EAGLE-2 (arXiv 2406.16858).

May import: torch, decoding.{attention, batch_cache}. Knows nothing of trees, targets or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tss_bench.decoding.attention import grouped_mask
from tss_bench.decoding.batch_cache import BatchCache

DEFAULT_ROPE_THETA = 10000.0

KeyValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class EagleConfig:
    """Shape of a head; the fields of its `config.json`."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = DEFAULT_ROPE_THETA
    bias: bool = True
    hidden_act: str = "silu"

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} is no multiple of "
                f"num_key_value_heads {self.num_key_value_heads}"
            )
        if self.hidden_act != "silu":
            raise ValueError(
                f"hidden_act {self.hidden_act!r} is not supported; EAGLE heads use 'silu'"
            )

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> EagleConfig:
        """Read a Llama-style `config.json`; raises ValueError naming a missing key."""
        required = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
        missing = [key for key in required if key not in config]
        if missing:
            raise ValueError(f"the draft head's config.json lacks {', '.join(missing)}")
        heads = int(config["num_attention_heads"])
        draft_vocab = config.get("draft_vocab_size")
        return cls(
            hidden_size=int(config["hidden_size"]),
            intermediate_size=int(config["intermediate_size"]),
            num_attention_heads=heads,
            num_key_value_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            vocab_size=int(config["vocab_size"]),
            draft_vocab_size=None if draft_vocab is None else int(draft_vocab),
            rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_theta=_rope_theta(config),
            bias=bool(config.get("bias", True)),
            hidden_act=str(config.get("hidden_act", "silu")),
        )

    def to_dict(self) -> dict[str, Any]:
        """The `config.json` of a head with this shape."""
        fields = {key: value for key, value in asdict(self).items() if value is not None}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": 1,
            **fields,
        }


def _rope_theta(config: Mapping[str, Any]) -> float:
    """transformers 5 moved it into `rope_parameters`; a wrong base halves accept length."""
    nested = config.get("rope_parameters") or {}
    value = config.get("rope_theta", nested.get("rope_theta"))
    return DEFAULT_ROPE_THETA if value is None else float(value)


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
        offsets = self.get_buffer("d2t")
        return offsets + torch.arange(len(offsets), device=offsets.device)

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
        self.self_attn = _Attention(config)
        self.mlp = _MLP(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(
        self, hidden: Tensor, positions: Tensor, mask: Tensor | None, past: KeyValues | None
    ) -> tuple[Tensor, KeyValues]:
        attended, key_values = self.self_attn(hidden, positions, mask, past)
        hidden = hidden + attended
        return hidden + self.mlp(self.post_attention_layernorm(hidden)), key_values


class _Attention(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.rope_theta = config.rope_theta
        query, key = (
            n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads)
        )
        self.q_proj = nn.Linear(config.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)

    def forward(
        self, hidden: Tensor, positions: Tensor, mask: Tensor | None, past: KeyValues | None
    ) -> tuple[Tensor, KeyValues]:
        query, key, value = self._project(hidden, positions)
        if past is not None:
            key = torch.cat((past[0], key), dim=2)
            value = torch.cat((past[1], value), dim=2)
        if mask is None:
            mask = causal_mask(query.shape[2], key.shape[2], hidden.device)
        mixed = _attend(query, key, value, mask, explicit=self.training)
        return self.o_proj(mixed.transpose(1, 2).flatten(2)), (key, value)

    def forward_rows(
        self, hidden: Tensor, positions: Tensor, mask: Tensor, cache: BatchCache
    ) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in self._project(hidden, positions))
        groups = query.shape[2] // key.shape[2]
        packed = grouped_mask(mask, groups, hidden.dtype)
        return self.o_proj(cache.attend(0, query, key, value, packed))

    def _project(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turned queries and keys, and values, each [B, heads, n, D]."""
        cos, sin = rotary(positions, self.head_dim, self.rope_theta, hidden.dtype)
        return (
            rotate(self._heads(self.q_proj(hidden)), cos, sin),
            rotate(self._heads(self.k_proj(hidden)), cos, sin),
            self._heads(self.v_proj(hidden)),
        )

    def _heads(self, projected: Tensor) -> Tensor:
        """[B, n, heads * D] -> [B, heads, n, D]."""
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class _MLP(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, explicit: bool) -> Tensor:
    """Grouped-query attention; explicit in training, where the CPU's fused backward is slow."""
    if not explicit:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1) @ value


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """bool [queries, keys]: query i sees the keys up to its own place at the end of the row."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def rotary(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> KeyValues:
    """cos and sin [B, 1, n, D] of rotary embeddings (arXiv 2104.09864), in Llama's layout."""
    exponents = (
        torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    )
    angles = positions.float()[..., None] * theta**-exponents
    angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply `rotary` angles to [B, heads, n, D]."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin
