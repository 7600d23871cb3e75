"""Layer dropout: rates, draws, scopes. May import: pytest, torch, tss_bench."""

from __future__ import annotations

import math

import pytest
import torch

from tss_bench.training.layer_drop import (
    depth_profile,
    draw_bernoulli,
    draw_uniform,
    drop_rates,
    kept_positions,
    time_curriculum,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("kind", ["linear", "exp"])
@pytest.mark.parametrize("num_layers", [2, 5, 30])
def test_the_first_layer_is_never_dropped_and_the_last_at_p_max(kind: str, num_layers: int) -> None:
    rates = drop_rates(num_layers, 3, 10, p_max=0.2, depth=kind, time="constant")
    assert rates[0] == 0
    assert rates[-1] == pytest.approx(0.2)
    assert rates == sorted(rates)


def test_linear_rates_of_five_layers() -> None:
    rates = drop_rates(5, 0, 1, p_max=0.4, depth="linear", time="constant")
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_exponential_depth_halfway_is_the_square_root_of_two_less_one() -> None:
    assert depth_profile("exp", 2, 5) == pytest.approx(math.sqrt(2) - 1)
    assert depth_profile("exp", 1, 5) == pytest.approx(2**0.25 - 1)


def test_exponential_curriculum_goes_from_nothing_to_everything() -> None:
    assert [time_curriculum("exp", step, 3) for step in range(3)] == pytest.approx(
        [0, math.sqrt(2) - 1, 1]
    )
    assert [time_curriculum("constant", step, 3) for step in range(3)] == [1, 1, 1]


def test_a_curriculum_scales_every_rate() -> None:
    halfway = drop_rates(3, 1, 3, p_max=0.5, depth="linear", time="exp")
    assert halfway == pytest.approx([0, (math.sqrt(2) - 1) * 0.25, (math.sqrt(2) - 1) * 0.5])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: depth_profile("cubic", 0, 3), "unknown depth profile 'cubic'; use one of linear"),
        (lambda: depth_profile("linear", 3, 3), "layer 3 is not among layers 0 … 2"),
        (lambda: time_curriculum("slow", 0, 3), "unknown curriculum 'slow'; use one of constant"),
        (lambda: time_curriculum("exp", -1, 3), "step -1 is not among steps 0 … 2"),
    ],
)
def test_bad_values_are_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_bernoulli_draws_are_one_a_sample_and_layer() -> None:
    dropped = draw_bernoulli([0.0, 0.5, 1.0], 4000, generator())
    assert dropped.shape == (4000, 3)
    assert not dropped[:, 0].any()
    assert dropped[:, 2].all()
    assert float(dropped[:, 1].float().mean()) == pytest.approx(0.5, abs=0.03)


def test_uniform_draws_take_one_to_most_layers_of_the_pool() -> None:
    dropped = draw_uniform(8, [2, 3, 6], 2, 0.25, 4000, generator())
    counts = dropped.sum(dim=1)
    shares = torch.bincount(counts, minlength=3).float() / 4000
    assert shares.tolist() == pytest.approx([0.25, 0.375, 0.375], abs=0.03)
    by_layer = dropped.float().mean(dim=0)
    assert by_layer[[0, 1, 4, 5, 7]].tolist() == [0] * 5
    # (0.375 * 1 + 0.375 * 2) layers a row, spread over three.
    assert by_layer[[2, 3, 6]].tolist() == pytest.approx([0.375] * 3, abs=0.03)


def test_draws_depend_on_the_seed_alone() -> None:
    first = draw_uniform(8, [2, 3, 6], 2, 0.25, 50, generator(1))
    assert torch.equal(first, draw_uniform(8, [2, 3, 6], 2, 0.25, 50, generator(1)))
    assert not torch.equal(first, draw_uniform(8, [2, 3, 6], 2, 0.25, 50, generator(2)))


def test_a_dense_prompt_keeps_every_block_in_front_of_the_answer() -> None:
    dropped = torch.tensor([[True, False], [True, False]])
    kept = kept_positions(dropped, torch.tensor([2, 1]), torch.tensor([False, True]), 3)
    assert kept.shape == (2, 2, 3)
    # Row 0 has a dense prompt of two ids, row 1 drops block 0 everywhere.
    assert kept[0].tolist() == [[True, True, False], [False, False, False]]
    assert kept[1].all()
