"""Early-exit curricula and loss weights. May import: pytest, hypothesis, tss_bench."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.training.early_exit import EXIT_CURRICULA, exit_weights, exits_at


def test_none_and_all() -> None:
    assert exits_at("none", 0, 1, 4) == [3]
    assert exits_at("all", 0, 1, 4) == [0, 1, 2, 3]


def test_rotational_exits_move_on_by_one_layer_a_step() -> None:
    found = [exits_at("rotational", step, 9, 7, every=3) for step in range(4)]
    assert found == [[0, 3, 6], [1, 4, 6], [2, 5, 6], [0, 3, 6]]


def test_gradual_exits_come_from_the_top_and_are_all_there_halfway() -> None:
    # Four layers over 16 steps: one more every 16 / (2 * 4) = 2 steps.
    found = [exits_at("gradual", step, 16, 4) for step in (0, 1, 2, 4, 6, 8, 15)]
    assert found == [[3], [3], [2, 3], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_weights_by_hand() -> None:
    # L = 4, scale 0.5: e = 0, 0.5, 1.5 and 3 + 0.5 * (0 + 1 + 2) = 4.5; they sum to 6.5.
    assert exit_weights([0, 1, 2, 3], 4, 0.5) == pytest.approx([0, 0.5 / 6.5, 1.5 / 6.5, 4.5 / 6.5])
    assert exit_weights([1, 3], 4, 0.5) == pytest.approx([0.1, 0.9])
    assert exit_weights([1, 3], 4, 0.0) == [0, 1]


@given(
    kind=st.sampled_from(EXIT_CURRICULA),
    num_layers=st.integers(2, 40),
    steps=st.integers(1, 200),
    step=st.integers(0, 199),
    every=st.integers(1, 9),
    scale=st.floats(0, 1),
)
def test_weights_sum_to_one_and_the_last_layer_always_counts(
    kind: str, num_layers: int, steps: int, step: int, every: int, scale: float
) -> None:
    exits = exits_at(kind, step % steps, steps, num_layers, every=every)
    weights = exit_weights(exits, num_layers, scale)
    assert exits[-1] == num_layers - 1
    assert exits == sorted(set(exits))
    assert sum(weights) == pytest.approx(1)
    assert max(weights) == weights[-1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exits_at("some", 0, 1, 4), "unknown exit curriculum 'some'; use one of none"),
        (lambda: exits_at("all", 4, 4, 4), "step 4 is not among steps 0 … 3"),
        (lambda: exits_at("rotational", 0, 4, 4, every=0), "every must be at least 1, got 0"),
        (lambda: exit_weights([0], 4, 1.0), "no weight"),
    ],
)
def test_bad_values_are_named(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
