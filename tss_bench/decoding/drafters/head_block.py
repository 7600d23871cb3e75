"""What the draft heads of EAGLE-1/2 and EAGLE-3 share: their shape, attention, MLP, rotation.

May import: torch, transformers (inside a function, since it is slow to import),
decoding.{attention, batch_cache}. Parameters carry the names that a Llama block has on disk.
Shapes: B sequences, n positions, D head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tss_bench.decoding.attention import grouped_mask
from tss_bench.decoding.batch_cache import BatchCache

DEFAULT_ROPE_THETA = 10000.0
# Others turn a position by an angle that depends on the longest one in the pass.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

KeyValues = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head's block and vocabularies. `rope_scaling` is as in a Llama's config, with
    its `rope_type`; `draft_vocab_size` None: the head drafts from all of the vocabulary."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int | None = None
    rms_norm_eps: float = 1e-6
    rope_theta: float = DEFAULT_ROPE_THETA
    rope_scaling: Mapping[str, Any] | None = None
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
        kind = (self.rope_scaling or {}).get("rope_type", "default")
        if kind not in ROPE_TYPES:
            raise ValueError(
                f"rotary embeddings of type {kind!r} are not supported in a draft head; "
                f"{', '.join(ROPE_TYPES)} are"
            )

    @property
    def feature_size(self) -> int:
        """Hidden size of the target that the head belongs to."""
        return self.hidden_size


def read_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `HeadShape` in a Llama-style `config.json`.

    Raises ValueError naming a missing key.
    """
    required = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    missing = [key for key in required if key not in config]
    if missing:
        raise ValueError(f"the draft head's config.json lacks {', '.join(missing)}")
    heads = int(config["num_attention_heads"])
    draft_vocab = config.get("draft_vocab_size")
    return {
        "hidden_size": int(config["hidden_size"]),
        "intermediate_size": int(config["intermediate_size"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(config.get("num_key_value_heads") or heads),
        "head_dim": int(config.get("head_dim") or config["hidden_size"] // heads),
        "vocab_size": int(config["vocab_size"]),
        "draft_vocab_size": None if draft_vocab is None else int(draft_vocab),
        "rms_norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "rope_theta": _rope_theta(config),
        "rope_scaling": _rope_scaling(config),
        "hidden_act": str(config.get("hidden_act", "silu")),
    }


def _rope_theta(config: Mapping[str, Any]) -> float:
    """transformers 5 moved it into `rope_parameters`; a wrong base halves accept length."""
    nested = config.get("rope_parameters") or {}
    value = config.get("rope_theta", nested.get("rope_theta"))
    return DEFAULT_ROPE_THETA if value is None else float(value)


def _rope_scaling(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """`rope_parameters` since transformers 5, `rope_scaling` (its type once called `type`)
    before."""
    for place in ("rope_parameters", "rope_scaling"):
        given = dict(config.get(place) or {})
        old_name = given.pop("type", "default")
        kind = given.setdefault("rope_type", old_name)
        if kind != "default":
            given.pop("rope_theta", None)
            longest = config.get("max_position_embeddings")
            if kind != "linear" and longest is not None:
                given.setdefault("original_max_position_embeddings", longest)
            return given
    return None


class Rotary:
    """Angles of rotary embeddings (arXiv 2104.09864) in Llama's layout."""

    def __init__(self, shape: HeadShape) -> None:
        self._frequencies, self._scale = _frequencies(shape)

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> KeyValues:
        """cos and sin [B, 1, n, D] for positions [B, n]."""
        if self._frequencies.device != positions.device:
            self._frequencies = self._frequencies.to(positions.device)
        angles = positions.float()[..., None] * self._frequencies
        angles = torch.cat((angles, angles), dim=-1).unsqueeze(1)
        cos, sin = angles.cos(), angles.sin()
        if self._scale != 1.0:
            cos, sin = cos * self._scale, sin * self._scale
        return cos.to(dtype), sin.to(dtype)


def _frequencies(shape: HeadShape) -> tuple[Tensor, float]:
    """Angles [D / 2] by which one position turns, and a factor for cosines and sines."""
    scaling = shape.rope_scaling
    if scaling is None:
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        return shape.rope_theta**-exponents, 1.0
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {**scaling, "rope_theta": shape.rope_theta}
    try:
        # What the factor says; transformers warns of any other relation.
        longest = int(scaling["factor"] * scaling.get("original_max_position_embeddings", 2048))
        config = LlamaConfig(
            head_dim=shape.head_dim, max_position_embeddings=longest, rope_parameters=parameters
        )
        with torch.device("cpu"):
            return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config)
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"the draft head's rotary scaling {dict(scaling)} is incomplete: {error}"
        ) from error


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply `Rotary` angles to [B, heads, n, D]."""
    first, second = states.chunk(2, dim=-1)
    return states * cos + torch.cat((-second, first), dim=-1) * sin


class HeadAttention(nn.Module):
    """Grouped-query attention over hidden states of `width` features."""

    def __init__(self, shape: HeadShape, width: int) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self._rotary = Rotary(shape)
        query, key = (
            n * shape.head_dim for n in (shape.num_attention_heads, shape.num_key_value_heads)
        )
        self.q_proj = nn.Linear(width, query, bias=False)
        self.k_proj = nn.Linear(width, key, bias=False)
        self.v_proj = nn.Linear(width, key, bias=False)
        self.o_proj = nn.Linear(query, shape.hidden_size, bias=False)

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
        cos, sin = self._rotary(positions, hidden.dtype)
        return (
            rotate(self._heads(self.q_proj(hidden)), cos, sin),
            rotate(self._heads(self.k_proj(hidden)), cos, sin),
            self._heads(self.v_proj(hidden)),
        )

    def _heads(self, projected: Tensor) -> Tensor:
        """[B, n, heads * D] -> [B, heads, n, D]."""
        return projected.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class HeadMLP(nn.Module):
    """Llama's gated MLP."""

    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        hidden, inner = shape.hidden_size, shape.intermediate_size
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


def target_ids(offsets: Tensor) -> Tensor:
    """Target ids int64 [draft_vocab] of a reduced vocabulary, from `d2t`: the offset of each."""
    return offsets.long() + torch.arange(len(offsets), device=offsets.device)
