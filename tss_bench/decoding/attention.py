"""Attention of a few queries over cached keys: grouped heads without copies, whole or in parts.

May import: torch. Shapes: B sequences, n queries each, G query heads a key head, T keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def causal_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention [B, n, heads * D] of a prompt to itself: query [B, n, heads, D], keys and values
    [B, kv_heads, n, D]."""
    mixed = F.scaled_dot_product_attention(
        query.transpose(1, 2), keys, values, is_causal=True, enable_gqa=True
    )
    return mixed.transpose(1, 2).flatten(2)


def masked_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention [B, n, heads * D]; keys and values [B, kv_heads, T, D].

    `mask` is added to the scores, [B or 1, 1, G * n, T] (see `grouped_mask`); None: all are seen.
    """
    packed = grouped(query, keys.shape[1])
    mixed = F.scaled_dot_product_attention(packed, keys, values, attn_mask=mask)
    return ungrouped(mixed, query.shape[1])


def rows_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """`masked_attention` for a batch of many sequences with few queries each.

    On a CPU by matrix products, 2 to 2.5 times faster there; in bfloat16 the scores are rounded
    to it, as by Hugging Face's eager attention.
    """
    if query.device.type != "cpu":
        return masked_attention(query, keys, values, mask)
    packed = grouped(query, keys.shape[1]) * query.shape[-1] ** -0.5
    scores = (packed @ keys.transpose(-1, -2)).add_(mask)
    return ungrouped(scores.softmax(dim=-1) @ values, query.shape[1])


def grouped(query: Tensor, kv_heads: int) -> Tensor:
    """[B, n, heads, D] -> [B, kv_heads, G * n, D].

    The G query heads that share a key head become G * n queries of that head: no key or value
    is repeated in memory (4 to 8 times faster on a CPU than `enable_gqa`).
    """
    batch, n, _, dim = query.shape
    query = query.reshape(batch, n, kv_heads, -1, dim).permute(0, 2, 3, 1, 4)
    return query.reshape(batch, kv_heads, -1, dim)


def ungrouped(mixed: Tensor, n: int) -> Tensor:
    """[B, kv_heads, G * n, D] -> [B, n, heads * D]."""
    batch, kv_heads, _, dim = mixed.shape
    mixed = mixed.view(batch, kv_heads, -1, n, dim).permute(0, 3, 1, 2, 4)
    return mixed.reshape(batch, n, -1)


def grouped_mask(seen: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """bool [B, n, T], True = may attend -> [B, 1, G * n, T], added to the scores of `grouped`.

    Made once a pass: given a bool mask, attention would make it again in every layer.
    """
    return additive(seen, dtype, float("-inf")).unsqueeze(1).repeat(1, 1, groups, 1)


def additive(seen: Tensor, dtype: torch.dtype, hidden: float) -> Tensor:
    """0 where `seen`, `hidden` elsewhere."""
    scores = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return scores.masked_fill_(~seen, hidden)


def partial_attention(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention to a part of the keys, to be put together by `merged`.

    query [B, kv_heads, m, D] (see `grouped`), mask added to the scores. Returns the mix
    [B, kv_heads, m, D] and the float32 log-sum-exp [B, kv_heads, m] of the scores.
    """
    attend = _flash_on_cpu if query.device.type == "cpu" else _in_steps
    return attend(query, keys, values, mask)


def _in_steps(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    # In float32: 16-bit scores round by several per cent, and float16 ones overflow.
    scores = (query.float() * query.shape[-1] ** -0.5) @ keys.float().transpose(-1, -2)
    if mask is not None:
        scores = scores + mask
    lse = scores.logsumexp(dim=-1)
    return (scores - lse.unsqueeze(-1)).exp().to(values.dtype) @ values, lse


def _flash_on_cpu(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Fills up the queries to a multiple of 4: the kernel rounds blocks of fewer differently, so
    a row's result would depend on how many rows there are."""
    queries = query.shape[2]
    if missing := -queries % 4:
        query = F.pad(query, (0, 0, 0, missing))
        mask = None if mask is None else F.pad(mask, (0, 0, 0, missing))
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    mixed, lse = flash(query, keys, values, attn_mask=mask)
    return mixed[:, :, :queries], lse[:, :, :queries]


def merged(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """What attention over the keys of both parts gives (the identity behind FlashAttention)."""
    gap = first[1] - second[1]
    # In double precision: a CPU rounds float32 differently where a vector unit is not filled, so
    # a row's share would depend on its place. (Some other devices have no float64.)
    share = torch.sigmoid(gap.double() if gap.device.type == "cpu" else gap).float().unsqueeze(-1)
    return torch.lerp(second[0].float(), first[0].float(), share).to(first[0].dtype)
