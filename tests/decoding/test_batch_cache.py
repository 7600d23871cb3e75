from __future__ import annotations

import pytest
import torch

from tss_bench.decoding.batch_cache import BatchCache, Prefix, move_last

LAYERS = 2


def prefix(*values: float) -> Prefix:
    """A prompt with these keys in layer 0, ten times them in layer 1, and negated values."""
    scale = torch.tensor([1.0, 10.0]).view(2, 1, 1, 1, 1)
    keys = torch.tensor(values).view(1, 1, 1, -1, 1) * scale
    return Prefix(torch.cat((keys, -keys), dim=1))


def cache(rows: int = 3, capacity: int = 8) -> BatchCache:
    return BatchCache(
        num_layers=LAYERS,
        kv_heads=1,
        head_dim=1,
        rows=rows,
        capacity=capacity,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def write(batch: BatchCache, entries: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Write these keys, and their negations as values, into layer 1 of an open pass."""
    keys = torch.tensor(entries, dtype=torch.float32).view(len(entries), 1, -1, 1)
    return batch.update(keys, -keys, 1)


def test_update_gives_each_row_its_prefix_and_what_it_wrote() -> None:
    batch, shared = cache(), prefix(1, 2)
    for start in (shared, prefix(5), shared):
        batch.add(start)
    batch.open(2)
    keys, values = write(batch, [[1.5, 1.6], [2.5, 2.6], [3.5, 3.6]])
    # Prefixes come first, the shorter one filled up; then the rows.
    assert keys[:, 0, :4, 0].tolist() == [
        pytest.approx([10, 20, 1.5, 1.6]),
        pytest.approx([50, 0, 2.5, 2.6]),
        pytest.approx([10, 20, 3.5, 3.6]),
    ]
    assert torch.equal(values, -keys)


def test_masks_and_positions_follow_the_length_of_each_row() -> None:
    batch = cache()
    batch.add(prefix(1, 2))
    batch.add(prefix(5))
    batch.open(1)
    write(batch, [[7], [8]])
    batch.keep([(0,), ()])
    assert batch.lengths == [1, 0]
    assert batch.positions().tolist() == [3, 1]
    batch.open(2)
    among = torch.tensor([[[1, 0], [1, 1]], [[1, 0], [0, 1]]], dtype=torch.bool)
    seen = batch.visible(among)
    assert seen[..., :3].int().tolist() == [[[1, 1, 0], [1, 1, 1]], [[1, 0, 0], [0, 1, 0]]]
    assert not seen[..., 3:].any()
    whole = batch.update_mask(seen, 2, seen.device)
    assert whole[:, 0, :2].int().tolist() == [[1, 1], [1, 0]]
    at = batch.key_positions(torch.tensor([[3, 4], [1, 1]]))
    # The second row's prefix is filled up to two; its siblings share a position.
    assert at[:, :5].tolist() == [[0, 1, 2, 3, 4], [0, 1, 1, 1, 3]]


def test_keep_gathers_a_path_in_every_layer_and_row() -> None:
    batch = cache()
    batch.add(prefix(1))
    batch.add(prefix(2))
    batch.open(4)
    entries = torch.tensor([[5.0, 6, 7, 8], [15, 16, 17, 18]]).view(2, 1, 4, 1)
    for layer in range(LAYERS):
        batch.update(entries, entries, layer)
    batch.keep([(0, 2, 3), (0,)])
    assert batch.data[:, 0, 0, 0, :3, 0].tolist() == [[5, 7, 8]] * LAYERS
    assert batch.data[:, 1, 1, 0, :1, 0].tolist() == [[15]] * LAYERS
    assert batch.lengths == [3, 1]


def test_a_dropped_row_gives_its_place_to_the_last() -> None:
    batch = cache()
    for value in (1, 2, 3):
        batch.add(prefix(value))
    batch.open(1)
    write(batch, [[0.1], [0.2], [0.3]])
    batch.keep([(0,)] * 3)
    batch.drop(0)
    batch.open(1)
    keys, _ = write(batch, [[9], [8]])
    assert keys[:, 0, :3, 0].tolist() == [pytest.approx([30, 0.3, 9]), pytest.approx([20, 0.2, 8])]


def test_too_many_rows_and_positions_are_refused() -> None:
    batch = cache(rows=1, capacity=32)
    batch.add(prefix(1))
    with pytest.raises(ValueError, match="all 1 rows"):
        batch.add(prefix(1))
    batch.open(32)
    with pytest.raises(ValueError, match="answers of 32 positions, not 33"):
        batch.open(32, offset=1)


def test_move_last() -> None:
    letters = list("abcd")
    assert move_last(letters, 1) == "b"
    assert letters == list("adc")
    assert move_last(letters, 2) == "c"
    assert letters == list("ad")


def test_a_moved_row_takes_nothing_over_from_the_one_whose_place_it_gets() -> None:
    batch = cache(rows=2)
    batch.add(prefix(1))
    batch.add(prefix(1))
    batch.open(3)
    nan = float("nan")
    write(batch, [[nan, nan, nan], [1, 2, 3]])
    batch.keep([(0, 1, 2), (0,)])
    batch.drop(0)
    batch.open(1)
    keys, _ = write(batch, [[4]])
    assert not keys.isnan().any()
    assert keys[0, 0, :3, 0].tolist() == [10, 1, 4]


def test_what_a_row_held_before_does_not_show_in_its_next_answer() -> None:
    """A set that overflows leaves NaN behind, which no mask can hide: 0 * NaN is NaN."""
    batch = cache(rows=1)
    batch.add(prefix(1))
    batch.open(2)
    write(batch, [[float("nan"), float("nan")]])
    batch.keep([(0, 1)])
    batch.drop(0)
    batch.add(prefix(1))
    batch.open(1)
    keys, values = write(batch, [[3]])
    assert not keys.isnan().any()
    assert not values.isnan().any()
