"""Queries, evaluations and how they are pooled.

May import: pytest and tss_bench.
"""

from __future__ import annotations

import pytest

from tss_bench.search import Evaluation, Query, Score
from tss_bench.search.types import mean_metric, pooled_accept, pooled_loss
from tss_bench.types import SkipSet

DENSE = SkipSet.dense(4)


def test_accept_length_is_pooled_and_no_mean_of_means() -> None:
    assert pooled_accept([(10, 2), (90, 45)]) == pytest.approx(100 / 47)


def test_prompts_without_a_step_add_nothing_and_none_at_all_gives_none() -> None:
    assert pooled_accept([(0, 0), (6, 3)]) == 2.0
    assert pooled_accept([(0, 0)]) is None
    assert pooled_accept([]) is None


def test_rows_without_a_reference_do_not_count_for_the_metric() -> None:
    assert mean_metric([0.5, None, 0.25]) == 0.375
    assert mean_metric([None]) is None


def test_loss_is_a_mean_over_tokens() -> None:
    assert pooled_loss([(2.0, 1), (3.0, 9)]) == 0.5
    assert pooled_loss([(0.0, 0)]) is None


def test_an_evaluation_gives_the_score_of_what_it_holds() -> None:
    evaluation = Evaluation(DENSE, (0, 3), accept=((4, 2), (2, 1)), metric=(None, 0.5))
    assert evaluation.score() == Score(DENSE, accept=2.0, metric=0.5)


def test_speed_is_accept_length_by_cost() -> None:
    assert Score(DENSE, accept=3.0, cost=0.5).speed == 6.0
    assert Score(DENSE, accept=3.0).speed is None


def test_values_that_do_not_fit_the_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1 values of metric for 2 prompts of \{\}"):
        Evaluation(DENSE, (0, 1), metric=(0.5,))


@pytest.mark.parametrize("want", [(), ("speed",), ("accept", "speed")])
def test_a_query_for_an_unknown_field_is_refused(want: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="a query may want accept, metric, cost, loss"):
        Query([DENSE], want)  # type: ignore[arg-type]


def test_a_query_takes_any_iterable_and_sorts_its_prompts() -> None:
    query = Query(iter([DENSE]), iter(["loss"]), prompts=iter([2, 0, 2]))  # type: ignore[list-item]
    assert query.skip_sets == (DENSE,)
    assert query.want == {"loss"}
    assert query.prompts == (0, 2)
