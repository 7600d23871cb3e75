"""Attention in parts and with grouped heads against PyTorch's own over repeated heads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tss_bench.decoding import attention

HEADS, KV_HEADS, DIM = 6, 2, 8


def draw(batch: int, n: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(batch + n + keys)
    return (
        torch.randn(batch, n, HEADS, DIM),
        torch.randn(batch, KV_HEADS, keys, DIM),
        torch.randn(batch, KV_HEADS, keys, DIM),
    )


def plain(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor | None) -> Tensor:
    """Every key head repeated for its query heads, one softmax over all keys."""
    keys, values = (part.repeat_interleave(HEADS // KV_HEADS, dim=1) for part in (keys, values))
    scores = query.transpose(1, 2) @ keys.transpose(-1, -2) * DIM**-0.5
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None], float("-inf"))
    return (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("n", [1, 3])
def test_masked_attention_is_attention_with_repeated_heads(n: int) -> None:
    query, keys, values = draw(2, n, 5)
    seen = torch.rand(2, n, 5) < 0.6
    seen[..., 0] = True
    mask = attention.grouped_mask(seen, HEADS // KV_HEADS, torch.float32)
    found = attention.masked_attention(query, keys, values, mask)
    torch.testing.assert_close(found, plain(query, keys, values, seen))
    found = attention.masked_attention(query, keys, values, None)
    torch.testing.assert_close(found, plain(query, keys, values, None))


def test_causal_attention_sees_no_later_key() -> None:
    query, keys, values = draw(1, 4, 4)
    seen = torch.ones(1, 4, 4, dtype=torch.bool).tril()
    found = attention.causal_attention(query, keys, values)
    torch.testing.assert_close(found, plain(query, keys, values, seen))


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize(("n", "first"), [(1, 1), (1, 6), (2, 3), (5, 4)])
def test_two_parts_merged_are_the_whole(
    n: int, first: int, generic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, keys, values = draw(2, n, 7)
    packed = attention.grouped(query, KV_HEADS)
    seen = torch.rand(2, n, 7 - first) < 0.5
    seen[..., -1] = True
    mask = attention.grouped_mask(seen, HEADS // KV_HEADS, torch.float32)
    if generic:
        monkeypatch.setattr(attention, "_flash_on_cpu", attention._in_steps)
    parts = (
        attention.partial_attention(packed, keys[:, :, :first], values[:, :, :first]),
        attention.partial_attention(packed, keys[:, :, first:], values[:, :, first:], mask),
    )
    found = attention.ungrouped(attention.merged(*parts), n)
    whole = torch.cat((torch.ones(2, n, first, dtype=torch.bool), seen), dim=2)
    torch.testing.assert_close(found, plain(query, keys, values, whole))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_querys_result_does_not_depend_on_how_many_there_are(dtype: torch.dtype) -> None:
    """To the bit, whatever blocks of queries the kernel makes."""
    torch.manual_seed(0)
    query, keys, values = (torch.randn(1, KV_HEADS, size, 64).to(dtype) for size in (64, 70, 70))
    whole, sums = attention.partial_attention(query, keys, values)
    for count in range(1, 64):
        mixed, lse = attention.partial_attention(query[:, :, :count], keys, values)
        assert torch.equal(mixed, whole[:, :, :count])
        assert torch.equal(lse, sums[:, :, :count])


def test_scores_in_steps_are_float32_whatever_the_inputs() -> None:
    """q . k is 64 * 40 * 40 = 102400 here, more than float16 holds."""
    query = torch.full((1, KV_HEADS, 1, 64), 40.0, dtype=torch.float16)
    mixed, lse = attention._in_steps(query, query, query, None)
    assert mixed.flatten().tolist() == [40.0] * KV_HEADS * 64
    # One key: the log-sum-exp is its score, scaled by 64 ** -0.5.
    assert lse.flatten().tolist() == [102400 / 8] * KV_HEADS
