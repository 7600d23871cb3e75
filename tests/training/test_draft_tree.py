from __future__ import annotations

import pytest

from tss_bench.training.draft_tree import count_paths


def test_paths_follow_the_rows_of_earlier_occurrences() -> None:
    #        prompt 5 6 | answer 5 7 5 6
    ids = [5, 6, 5, 7, 5, 6]
    candidates = [[7, 6], [5, 9], [8, 6], [5, 1], [6, 8]]
    counts = count_paths([(ids, 2, candidates)], tokens=10)
    # From the first answer id: row [7, 6] is right at rank 0, then 7 has no row. From 7: no
    # row. From the second 5: its row is now [8, 6], right at rank 1.
    assert counts.positions == 3
    assert counts.hits == {(0,): 1, (1,): 1}


def test_a_path_grows_through_the_rows_known_at_its_root() -> None:
    ids = [5, 6, 7, 5, 6, 7]
    candidates = [[6], [8, 7], [5], [6], [7]]
    counts = count_paths([(ids, 3, candidates)], tokens=10)
    # From 5: 6 at rank 0, then 7 at rank 1 of 6's prompt row. From 6: 7 at rank 1 of the same.
    assert counts.hits == {(0,): 1, (0, 1): 1, (1,): 1}


def test_counting_stops_after_the_wanted_ids() -> None:
    answer = ([5, 6, 5, 6, 5], 1, [[6], [5], [6], [5]])
    assert count_paths([answer, answer, answer], tokens=4).positions == 6


def test_no_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="holds no answer ids"):
        count_paths([], tokens=5)
