from __future__ import annotations

import pytest
import torch

from tss_bench.decoding.kv_cache import KVCache, NoCache


def cache(capacity: int = 6, layers: int = 3) -> KVCache:
    return KVCache(
        num_layers=layers,
        kv_heads=1,
        head_dim=1,
        capacity=capacity,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def entries(*values: float) -> torch.Tensor:
    return torch.tensor(values).view(1, 1, -1, 1)


def test_write_returns_past_and_new_and_advance_moves_the_length() -> None:
    kv = cache()
    kv.write(1, entries(1, 2), entries(10, 20))
    kv.advance(2)
    keys, values = kv.write(1, entries(3), entries(30))
    assert keys.flatten().tolist() == [1, 2, 3]
    assert values.flatten().tolist() == [10, 20, 30]
    assert kv.length == 2


def test_keep_gathers_a_path_in_every_layer() -> None:
    kv = cache(layers=2)
    for layer in range(2):
        kv.write(layer, entries(0), entries(0))
    kv.advance(1)
    for layer in range(2):
        kv.write(layer, entries(5, 6, 7, 8), entries(50, 60, 70, 80))
    kv.keep([0, 2, 3])
    assert kv.length == 4
    assert kv.data[:, 0, 0, 0, :4, 0].tolist() == [[0, 5, 7, 8]] * 2
    assert kv.data[:, 1, 0, 0, :4, 0].tolist() == [[0, 50, 70, 80]] * 2


def test_length_does_not_depend_on_any_layer() -> None:
    kv = cache()
    kv.write(2, entries(1, 2), entries(1, 2))
    kv.keep([0, 1])
    assert kv.length == 2


@pytest.mark.parametrize("length", [-2, 4, 5])
def test_truncate_more_than_there_is_is_refused(length: int) -> None:
    kv = cache()
    kv.write(0, entries(1, 2, 3), entries(1, 2, 3))
    kv.advance(3)
    with pytest.raises(ValueError, match="cannot truncate a cache of length 3"):
        kv.truncate(length)
    assert kv.length == 3


def test_truncate_forgets_the_end() -> None:
    kv = cache()
    kv.write(0, entries(1, 2, 3), entries(1, 2, 3))
    kv.advance(3)
    kv.truncate(1)
    keys, _ = kv.write(0, entries(9), entries(9))
    assert keys.flatten().tolist() == [1, 9]


def test_a_copy_has_the_past_and_a_buffer_of_its_own() -> None:
    kv = cache(capacity=3)
    kv.write(1, entries(1, 2, 3), entries(10, 20, 30))
    kv.advance(2)
    larger = kv.copy(5)
    kv.write(1, entries(8), entries(80))
    keys, values = larger.write(1, entries(4, 5, 6), entries(40, 50, 60))
    assert keys.flatten().tolist() == [1, 2, 4, 5, 6]
    assert values.flatten().tolist() == [10, 20, 40, 50, 60]
    assert (kv.length, kv.capacity, larger.length, larger.capacity) == (2, 3, 2, 5)
    with pytest.raises(ValueError, match="a cache of length 2 has no copy of 1 positions"):
        kv.copy(1)


def test_a_full_cache_says_what_is_needed() -> None:
    kv = cache(capacity=2)
    with pytest.raises(ValueError, match="holds 2 positions, 3 are needed"):
        kv.write(0, entries(1, 2, 3), entries(1, 2, 3))


@pytest.mark.parametrize("path", [[1, 0], [0, 0], [-1, 0]])
def test_a_path_must_ascend(path: list[int]) -> None:
    kv = cache()
    kv.write(0, entries(1, 2), entries(1, 2))
    with pytest.raises(ValueError, match="must ascend"):
        kv.keep(path)


@pytest.mark.parametrize("count", [-1, 7])
def test_advance_stays_inside_the_buffer(count: int) -> None:
    with pytest.raises(ValueError, match="exceed the capacity 6"):
        cache().advance(count)


def test_no_cache_gives_back_what_it_gets_and_stays_empty() -> None:
    kv = NoCache()
    keys, values = kv.update(entries(1, 2), entries(3, 4), 0)
    assert keys.flatten().tolist() == [1, 2]
    assert values.flatten().tolist() == [3, 4]
    assert kv.length == 0
