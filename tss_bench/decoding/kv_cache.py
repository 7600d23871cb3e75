"""A preallocated key/value cache with its own length: write, advance, truncate, keep a path.

May import: torch, decoding.attention. Knows nothing of models; no length is ever read from a
layer, so any layer (the first one too) may be skipped.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tss_bench.decoding.attention import causal_attention, masked_attention


class KVCache:
    """Keys and values of all layers in one buffer `data` [L, 2, B, kv_heads, capacity, D].

    A pass writes its n entries behind `length`; `advance(n)` makes them part of the past,
    `keep(path)` only the chosen ones. Entry i of the past holds position i. A skipped layer's
    rows are never written by a pass nor read by one; `keep` moves them along with the others.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        batch: int = 1,
    ) -> None:
        shape = (num_layers, 2, batch, kv_heads, capacity, head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)
        self.capacity = capacity
        self.length = 0

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store [B, kv_heads, n, D] behind the past of `layer`; returns past + new of both.

        Raises ValueError when the buffer is full.
        """
        end = self.length + keys.shape[2]
        if end > self.capacity:
            raise ValueError(f"the KV cache holds {self.capacity} positions, {end} are needed")
        buffer = self.data[layer]
        buffer[0, :, :, self.length : end] = keys
        buffer[1, :, :, self.length : end] = values
        return buffer[0, :, :, :end], buffer[1, :, :, :end]

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """`write` under the name and argument order by which Hugging Face attention calls it."""
        return self.write(layer, keys, values)

    @property
    def holds_past(self) -> bool:
        return self.length > 0

    def attend_mask(self, mask: Tensor | None, queries: int, device: torch.device) -> Tensor:
        """`mask`, or the causal one: bool [B or 1, queries, past + queries], True = may attend."""
        if mask is not None:
            return mask
        size = (1, queries, self.length + queries)
        return torch.ones(size, dtype=torch.bool, device=device).tril(self.length)

    def update_mask(self, mask: Tensor | None, queries: int, device: torch.device) -> Tensor:
        """The mask over the keys that `update` gives back: here the same."""
        return self.attend_mask(mask, queries, device)

    def key_positions(self, positions: Tensor) -> Tensor:
        """Positions [B, past + n] of the past and of new entries at `positions` [B, n]."""
        past = torch.arange(self.length, device=positions.device).expand(len(positions), -1)
        return torch.cat((past, positions), dim=1)

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """`write` keys and values [B, n, kv_heads, D], then attend to past and new.

        query [B, n, heads, D]; `mask` as `attention.grouped_mask` gives it, None: causal in an
        empty cache, everything for a single query. Returns [B, n, heads * D].
        """
        past_keys, past_values = self.write(layer, keys.transpose(1, 2), values.transpose(1, 2))
        if mask is None and query.shape[1] > 1:
            return causal_attention(query, past_keys, past_values)
        return masked_attention(query, past_keys, past_values, mask)

    def advance(self, count: int) -> None:
        """Make the last `count` written entries part of the past."""
        self._check_written(count)
        self.length += count

    def keep(self, path: Sequence[int]) -> None:
        """Keep the entries at `path` (ascending offsets behind the past) and drop the rest."""
        if path and (path[0] < 0 or any(b <= a for a, b in pairwise(path))):
            raise ValueError(f"a kept path must ascend from 0, got {list(path)}")
        count = len(path)
        self._check_written(path[-1] + 1 if path else 0)
        if list(path) != list(range(count)):
            source = torch.tensor(path, device=self.data.device) + self.length
            end = self.length + count
            self.data[..., self.length : end, :] = self.data.index_select(4, source)
        self.length += count

    def truncate(self, length: int) -> None:
        """Forget everything from position `length` on; raises ValueError if it is not there."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot truncate a cache of length {self.length} to {length}")
        self.length = length

    def copy(self, capacity: int) -> KVCache:
        """The same past in a buffer of its own for `capacity` positions, no fewer than it has."""
        if capacity < self.length:
            raise ValueError(f"a cache of length {self.length} has no copy of {capacity} positions")
        copied = copy.copy(self)
        copied.data = self.data.new_empty((*self.data.shape[:4], capacity, self.data.shape[5]))
        copied.data[..., : self.length, :] = self.data[..., : self.length, :]
        copied.capacity = capacity
        return copied

    def _check_written(self, count: int) -> None:
        if count < 0 or self.length + count > self.capacity:
            raise ValueError(
                f"{count} entries behind length {self.length} exceed the capacity {self.capacity}"
            )


class NoCache(KVCache):
    """Keeps nothing: a pass sees only itself. For training: a buffer has no gradient."""

    def __init__(self) -> None:
        self.data = torch.empty(0)
        self.capacity = 0
        self.length = 0

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values
