"""Run single Transformer blocks of a Hugging Face causal LM over our cache.

May import: torch, transformers, decoding.{attention, batch_cache, kv_cache, linear}. The only
file that touches Hugging Face blocks: every assumption about their names and arguments stands
here. `LlamaBlocks` takes over the weights of Llama blocks and computes them with joined
projections; `HubBlocks` calls the block modules of any other family. Both take the same
arguments, so the target does not know which one it has.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from tss_bench.decoding.attention import additive, grouped_mask
from tss_bench.decoding.batch_cache import BatchCache
from tss_bench.decoding.kv_cache import KVCache
from tss_bench.decoding.linear import Linear, can_pack, linear, pack_linears

Cache = KVCache | BatchCache


@dataclass(frozen=True)
class Pass:
    """What all blocks of one forward pass share.

    `rotary` and `mask` are in the form that the block runner made them (by layer type where
    a family has several).
    """

    cache: Cache
    positions: Tensor
    rotary: Any
    mask: Any


class Blocks(Protocol):
    """The blocks of one model, callable one by one."""

    num_layers: int

    def begin(
        self, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache
    ) -> Pass: ...

    def run(self, layer: int, hidden: Tensor, state: Pass) -> Tensor: ...


def decoder(model: PreTrainedModel) -> Any:
    """The module that owns `layers`, `norm` and `rotary_emb`; raises ValueError if it does not."""
    inner = model.get_decoder()
    missing = [name for name in ("layers", "norm", "rotary_emb") if not hasattr(inner, name)]
    if missing:
        raise ValueError(
            f"{type(model).__name__} is no decoder of pre-norm blocks with rotary positions "
            f"(it lacks {', '.join(missing)}); use a Llama-like causal LM"
        )
    return inner


def key_heads(model: PreTrainedModel) -> tuple[int, int]:
    """How many key heads a block has and their size; raises ValueError where it does not tell."""
    attention: Any = getattr(decoder(model).layers[0], "self_attn", None)
    missing = [name for name in ("k_proj", "head_dim") if not hasattr(attention, name)]
    if missing:
        raise ValueError(
            f"the attention of {type(model).__name__} is of an unknown kind (it lacks "
            f"{', '.join(missing)}); use a Llama-like causal LM"
        )
    size = int(attention.head_dim)
    return attention.k_proj.out_features // size, size


def make_blocks(model: PreTrainedModel) -> Blocks:
    """The fastest runner that fits the model's family."""
    layers = decoder(model).layers
    if all(type(layer).__name__ == "LlamaDecoderLayer" for layer in layers):
        return LlamaBlocks(model)
    return HubBlocks(model)


class LlamaBlocks:
    """Llama blocks with one matrix for q/k/v and one for gate/up, and packed grouped heads."""

    def __init__(self, model: PreTrainedModel) -> None:
        inner = decoder(model)
        self.num_layers = len(inner.layers)
        self._rotary = inner.rotary_emb
        self._layers = [_LlamaWeights(layer) for layer in inner.layers]

    def begin(self, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache) -> Pass:
        cos, sin = self._rotary(hidden, position_ids=positions)
        half = sin.shape[-1] // 2
        # rotate_half(x) is x rolled by half a head with the first half negated: fold the sign
        # into the sine once instead of into every layer's queries and keys.
        signed = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        queries = hidden.shape[1]
        packed: Tensor | None = None
        if mask is not None or (queries > 1 and cache.holds_past):
            seen = cache.attend_mask(mask, queries, hidden.device)
            packed = grouped_mask(seen, self._layers[0].groups, hidden.dtype)
        return Pass(cache, positions, (cos.unsqueeze(2), signed.unsqueeze(2)), packed)

    def run(self, layer: int, hidden: Tensor, state: Pass) -> Tensor:
        weights = self._layers[layer]
        size = hidden.shape[-1:]
        normed = F.rms_norm(hidden, size, weights.input_norm, weights.eps)
        hidden = hidden + self._attend(layer, normed, state)
        normed = F.rms_norm(hidden, size, weights.post_norm, weights.eps)
        gate, up = weights.gate_up(normed).chunk(2, dim=-1)
        return hidden + weights.down(F.silu(gate) * up)

    def _attend(self, layer: int, normed: Tensor, state: Pass) -> Tensor:
        weights = self._layers[layer]
        batch, n, _ = normed.shape
        heads, kv_heads, dim = weights.heads, weights.kv_heads, weights.head_dim
        projected = weights.qkv(normed).view(batch, n, -1, dim)
        cos, signed_sin = state.rotary
        turning = projected[:, :, : heads + kv_heads]
        turned = torch.addcmul(turning * cos, turning.roll(dim // 2, -1), signed_sin)
        mixed = state.cache.attend(
            layer,
            turned[:, :, :heads],
            turned[:, :, heads:],
            projected[:, :, heads + kv_heads :],
            state.mask,
        )
        return weights.out(mixed)


class _LlamaWeights:
    """Weights of one Llama block, taken over from its modules; see `_take_over`."""

    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.head_dim: int = attention.head_dim
        self.groups: int = attention.num_key_value_groups
        self.heads = attention.q_proj.out_features // self.head_dim
        self.kv_heads = self.heads // self.groups
        self.eps: float = layer.input_layernorm.variance_epsilon
        self.input_norm: Tensor = layer.input_layernorm.weight
        self.post_norm: Tensor = layer.post_attention_layernorm.weight
        self.qkv = _take_over(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = _take_over(attention.o_proj)
        self.gate_up = _take_over(mlp.gate_proj, mlp.up_proj)
        self.down = _take_over(mlp.down_proj)
        if mlp.act_fn(torch.ones(1)).item() != F.silu(torch.ones(1)).item():
            raise ValueError(f"Llama blocks with {type(mlp.act_fn).__name__} are not supported")


def _take_over(*projections: nn.Linear) -> Linear:
    """One map for several projections of one input, without a second copy of the weights.

    The projections become views of the joined matrix, or are emptied where it was packed.
    """
    weight = torch.cat([projection.weight.detach() for projection in projections])
    biased = projections[0].bias is not None
    bias = torch.cat([p.bias.detach() for p in projections]) if biased else None
    packed = can_pack(weight)
    start = 0
    for projection in projections:
        rows = slice(start, start + projection.out_features)
        projection.weight.data = weight.new_empty(0) if packed else weight[rows]
        if bias is not None:
            projection.bias.data = bias[rows]
        start = rows.stop
    return linear(weight, bias)


class HubBlocks:
    """Any family whose blocks take hidden states, a mask, rotary embeddings and a cache.

    `frozen`: the weights will not be trained, so they may be laid out for inference.
    """

    def __init__(self, model: PreTrainedModel, *, frozen: bool = True) -> None:
        inner = decoder(model)
        self._config = model.config.get_text_config(decoder=True)
        self._layers = inner.layers
        self._rotary = inner.rotary_emb
        self.num_layers = len(inner.layers)
        self._types = list(
            getattr(self._config, "layer_types", None) or ["full_attention"] * self.num_layers
        )
        unknown = set(self._types) - {"full_attention", "sliding_attention"}
        if unknown:
            raise ValueError(
                f"{type(model).__name__} has layers of type {', '.join(sorted(unknown))}; "
                "only full and sliding attention can be verified with a tree mask"
            )
        if frozen:
            pack_linears(inner.layers)
        self._rotary_by_type = (
            "layer_type" in inspect.signature(inner.rotary_emb.forward).parameters
        )

    def begin(self, hidden: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache) -> Pass:
        seen = cache.update_mask(mask, hidden.shape[1], hidden.device).unsqueeze(1)
        # The lowest number, not minus infinity: understood by eager attention and sdpa alike.
        lowest = torch.finfo(hidden.dtype).min
        masks = {
            kind: additive(self._windowed(seen, positions, cache, kind), hidden.dtype, lowest)
            for kind in set(self._types)
        }
        if self._rotary_by_type:
            rotary = {name: self._rotary(hidden, positions, name) for name in set(self._types)}
        else:
            rotary = dict.fromkeys(self._types, self._rotary(hidden, position_ids=positions))
        return Pass(cache, positions, rotary, masks)

    def run(self, layer: int, hidden: Tensor, state: Pass) -> Tensor:
        kind = self._types[layer]
        output = self._layers[layer](
            hidden,
            attention_mask=state.mask[kind],
            position_ids=state.positions,
            position_embeddings=state.rotary[kind],
            cache=state.cache,
            use_cache=True,
        )
        return output if isinstance(output, Tensor) else output[0]

    def _windowed(self, seen: Tensor, positions: Tensor, cache: Cache, kind: str) -> Tensor:
        """Hide keys that lie `sliding_window` or more positions behind the query."""
        window = getattr(self._config, "sliding_window", None)
        if kind != "sliding_attention" or window is None:
            return seen
        keys = cache.key_positions(positions)
        near = positions[:, :, None] - keys[:, None, :] < window
        return seen & near.unsqueeze(1)
