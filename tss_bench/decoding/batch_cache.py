"""Keys and values of several answers that grow side by side, each on a prompt read before.

May import: torch, decoding.{attention, kv_cache}. A prompt's keys are stored once for all
answers to it and are read once for all of them in a pass; an answer has a row of its own behind
it. Which other rows there are changes nothing for a row, but for how float32 products round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tss_bench.decoding.attention import (
    grouped,
    merged,
    partial_attention,
    rows_attention,
    ungrouped,
)
from tss_bench.decoding.kv_cache import KVCache

# Columns come in steps of this many: the kernels give the same bits for every such number.
_SPAN = 32

T = TypeVar("T")


def move_last(listed: list[T], place: int) -> T:
    """Take out the item at `place`; the last one takes its place."""
    taken, listed[place] = listed[place], listed[-1]
    listed.pop()
    return taken


def _in_spans(columns: int) -> int:
    return -(-columns // _SPAN) * _SPAN


@dataclass(frozen=True, eq=False)
class Prefix:
    """Keys and values of one prompt, `data` [L, 2, kv_heads, T, D]."""

    data: Tensor

    @classmethod
    def of(cls, cache: KVCache, sequence: int = 0) -> Prefix:
        """What a cache holds of one of its sequences, without a copy."""
        return cls(cache.data[:, :, sequence, :, : cache.length])

    @property
    def length(self) -> int:
        return self.data.shape[3]

    def start(self, length: int) -> Prefix:
        """The first `length` positions, without a copy."""
        return Prefix(self.data[..., :length, :])

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [1, kv_heads, T, D] of one layer."""
        keys, values = self.data[layer].unsqueeze(1)
        return keys, values


class BatchCache:
    """At most `rows` answers of `capacity` positions or a few more, `data` [L, 2, rows, kv_heads,
    capacity, D]; answer i holds `lengths[i]` positions behind its prefix.

    A pass over n nodes a row begins with `open`, which says where they are written; `keep` makes
    chosen ones of them part of the past. Masks are bool [B, n, C] over the first C columns of the
    own row, as many as the pass needs: a prefix is always seen as a whole.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        kv_heads: int,
        head_dim: int,
        rows: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.capacity = _in_spans(capacity)
        shape = (num_layers, 2, rows, kv_heads, self.capacity, head_dim)
        self.data = torch.empty(shape, dtype=dtype, device=device)
        self.rows = rows
        self.lengths: list[int] = []
        self._prefixes: list[Prefix] = []
        self._arrange()

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def holds_past(self) -> bool:
        return True

    @property
    def prefix_lengths(self) -> list[int]:
        return [prefix.length for prefix in self._prefixes]

    def add(self, prefix: Prefix) -> None:
        """Begin an answer, whose row comes last. Raises ValueError where all rows are taken."""
        if len(self) == self.rows:
            raise ValueError(f"all {self.rows} rows of the batch are taken")
        # Masks hide what the row does not hold, but a hidden NaN would still show.
        self.data[:, :, len(self)].zero_()
        self._prefixes.append(prefix)
        self.lengths.append(0)
        self._arrange()

    def drop(self, row: int) -> None:
        """End an answer; the last row takes its place."""
        last = len(self) - 1
        if row != last:
            # The whole row: what the ended answer left behind the other's end may be NaN.
            self.data[:, :, row] = self.data[:, :, last]
        move_last(self._prefixes, row)
        move_last(self.lengths, row)
        self._arrange()

    def open(self, width: int, offset: int = 0) -> None:
        """Begin a pass over `width` nodes a row, written `offset` behind the past.

        Raises ValueError where a row is too short for them.
        """
        end = max(self.lengths) + offset + width
        if end > self.capacity:
            raise ValueError(f"the batch holds answers of {self.capacity} positions, not {end}")
        self._span = _in_spans(end)
        device = self.data.device
        self._columns = self._lengths()[:, None] + offset + torch.arange(width, device=device)
        self._row_index = torch.arange(len(self), device=device)[:, None]

    def visible(self, among: Tensor) -> Tensor:
        """Mask [B, n, C] of the open pass, whose nodes see the past and, of the w columns
        behind it, what bool [B, n, w] says."""
        lengths = self._lengths()[:, None]
        behind = lengths + torch.arange(among.shape[2], device=among.device)
        past = torch.arange(self._span, device=among.device) < lengths
        seen = past[:, None].repeat(1, among.shape[1], 1)
        return seen.scatter(2, behind[:, None].expand_as(among), among)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep of each row the nodes at `paths[row]` (ascending offsets behind its past)."""
        moves = [
            (row, length + node, length + place)
            for row, (path, length) in enumerate(zip(paths, self.lengths, strict=True))
            for place, node in enumerate(path)
            if node != place
        ]
        if moves:
            rows, source, goal = torch.tensor(moves, device=self.data.device).T
            self.data[:, :, rows, :, goal] = self.data[:, :, rows, :, source]
        self.lengths = [n + len(path) for n, path in zip(self.lengths, paths, strict=True)]

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Write keys and values [B, n, kv_heads, D] of the open pass, then attend.

        query [B, n, heads, D]; `mask` as `attention.grouped_mask` gives it, always needed here.
        Returns [B, n, heads * D].
        """
        self._write(layer, keys, values)
        packed = grouped(query, keys.shape[2])
        own_keys, own_values = self._own(layer)
        own = partial_attention(packed, own_keys, own_values, mask)
        return ungrouped(merged(self._attend_prefixes(layer, packed), own), query.shape[1])

    def update(
        self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """What Hugging Face attention calls: write, and give back prefixes and rows side by side.

        keys, values [B, kv_heads, n, D]; returns [B, kv_heads, T + C, D] of both, prefixes
        filled up to T of the longest. A copy in every layer: other families pay for it.
        """
        self._write(layer, keys.transpose(1, 2), values.transpose(1, 2))
        prefixes = self._stacked()[layer].index_select(1, self._prefix_of_row)
        both = torch.cat((prefixes, self._own(layer)), dim=3)
        return both[0], both[1]

    def attend_mask(self, mask: Tensor | None, queries: int, device: torch.device) -> Tensor:
        """`mask` [B, n, C], which a batch cannot do without."""
        assert mask is not None
        return mask

    def update_mask(self, mask: Tensor | None, queries: int, device: torch.device) -> Tensor:
        """The mask [B, n, T + C] over the keys that `update` gives back."""
        lengths = torch.tensor(self.prefix_lengths, device=device)
        prefix = torch.arange(int(lengths.max()), device=device) < lengths[:, None]
        own = self.attend_mask(mask, queries, device)
        return torch.cat((prefix[:, None].expand(-1, queries, -1), own), dim=2)

    def key_positions(self, positions: Tensor) -> Tensor:
        """Positions [B, T + C] of what `update` gives back, for nodes at `positions`."""
        device = positions.device
        lengths = torch.tensor(self.prefix_lengths, device=device)
        prefix = torch.arange(int(lengths.max()), device=device).expand(len(self), -1)
        own = lengths[:, None] + torch.arange(self._span, device=device)
        return torch.cat((prefix, own.scatter(1, self._columns, positions)), dim=1)

    def positions(self) -> Tensor:
        """Position [B] of the first node behind the past of each row."""
        lengths = [p + n for p, n in zip(self.prefix_lengths, self.lengths, strict=True)]
        return torch.tensor(lengths, device=self.data.device)

    def _lengths(self) -> Tensor:
        return torch.tensor(self.lengths, device=self.data.device)

    def _own(self, layer: int) -> Tensor:
        """Keys and values of the rows, [2, B, kv_heads, C, D]."""
        return self.data[layer, :, : len(self), :, : self._span]

    def _write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        self.data[layer, 0][self._row_index, :, self._columns] = keys
        self.data[layer, 1][self._row_index, :, self._columns] = values

    def _attend_prefixes(self, layer: int, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's attention to its prefix, one call for all rows of a prefix."""
        _, kv_heads, each, dim = packed.shape
        ordered = packed.index_select(0, self._order).transpose(0, 1)
        mixes, sums = [], []
        for prefix, start, end in self._groups:
            query = ordered[:, start:end].reshape(1, kv_heads, -1, dim)
            mixed, lse = partial_attention(query, *prefix.layer(layer))
            mixes.append(mixed.view(kv_heads, -1, each, dim))
            sums.append(lse.view(kv_heads, -1, each))
        place = self._place
        return (
            torch.cat(mixes, dim=1).index_select(1, place).transpose(0, 1),
            torch.cat(sums, dim=1).index_select(1, place).transpose(0, 1),
        )

    def _arrange(self) -> None:
        """Sort the rows by prefix, so that each prefix is read once."""
        groups: dict[Prefix, list[int]] = {}
        for row, prefix in enumerate(self._prefixes):
            groups.setdefault(prefix, []).append(row)
        order = [row for rows in groups.values() for row in rows]
        ends = torch.tensor([0, *map(len, groups.values())]).cumsum(0).tolist()
        self._groups = list(zip(groups, ends[:-1], ends[1:], strict=True))
        device = self.data.device
        self._order = torch.tensor(order, dtype=torch.long, device=device)
        self._place = self._order.argsort()
        numbers = {prefix: number for number, prefix in enumerate(groups)}
        self._prefix_of_row = torch.tensor(
            [numbers[prefix] for prefix in self._prefixes], dtype=torch.long, device=device
        )
        self._stack: Tensor | None = None

    def _stacked(self) -> Tensor:
        """All prefixes in one tensor [L, 2, prefixes, kv_heads, T, D]."""
        if self._stack is None:
            longest = max(self.prefix_lengths)
            filled = [F.pad(p.data, (0, 0, 0, longest - p.length)) for p, _, _ in self._groups]
            self._stack = torch.stack(filled, dim=2)
        return self._stack


class OwnPromptCache(BatchCache):
    """A batch whose prompts lie in the rows themselves, for prompts with one answer each.

    A pass attends once for all rows instead of once more for every prompt, always to the whole
    rows: matrix products over a part of them take several times as long. `capacity` has to hold
    prompt and answer, `lengths[i]` counts both, and `reserve` makes the rows longer.
    """

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions a row, and some more for what may come next."""
        if capacity <= self.capacity:
            return
        held, self.capacity = self.data, _in_spans(capacity + capacity // 8)
        self.data = held.new_zeros((*held.shape[:4], self.capacity, held.shape[5]))
        self.data[..., : held.shape[4], :] = held

    def add(self, prefix: Prefix) -> None:
        """Begin an answer behind a copy of `prefix`. Raises ValueError where the prompt does not
        fit or all rows are taken."""
        if prefix.length > self.capacity:
            raise ValueError(
                f"the batch holds answers of {self.capacity} positions, prompt included, not "
                f"{prefix.length}"
            )
        # A copy of nothing: a view would keep the whole prompt alive.
        super().add(Prefix(prefix.start(0).data.clone()))
        self.data[:, :, len(self) - 1, :, : prefix.length] = prefix.data
        self.lengths[-1] = prefix.length

    def open(self, width: int, offset: int = 0) -> None:
        """As in `BatchCache`."""
        super().open(width, offset)
        self._span = self.capacity

    def attend(
        self, layer: int, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """As in `BatchCache`; the rows are all there is."""
        assert mask is not None
        self._write(layer, keys, values)
        own_keys, own_values = self._own(layer)
        return rows_attention(query, own_keys, own_values, mask)
