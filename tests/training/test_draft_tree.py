from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tss_bench.training import draft_tree
from tss_bench.training.draft_tree import (
    choose_tree,
    count_paths,
    expected_accept_len,
    read_levels,
)


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


def test_a_tree_is_chosen_by_drafts_or_by_levels() -> None:
    rates = {(0,): 0.5, (1,): 0.4, (0, 0): 0.3, (0, 0, 0): 0.25}
    best = choose_tree("t", rates, 3, None)
    assert best.levels == (2, 1)
    # 1 + 0.5 + 0.4 + 0.3
    assert expected_accept_len(best, rates) == pytest.approx(2.2)
    chain = choose_tree("t", rates, None, (1, 1, 1))
    assert chain.to_dict()["paths"] == [[0], [0, 0], [0, 0, 0]]
    assert expected_accept_len(chain, rates) == pytest.approx(2.05)


def test_levels_are_whole_numbers() -> None:
    assert read_levels("6, 5,3") == (6, 5, 3)
    for text in ("", "6,,3", "6,0", "6,-1", "a", "1,1,1,1,1,1,1,1,1"):
        with pytest.raises(ValueError, match="--levels must be 1 to 8 whole numbers"):
            read_levels(text)
    with pytest.raises(ValueError, match="levels 7,20,21 must be"):
        read_levels("7,20,21")


def test_levels_and_drafts_exclude_each_other(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    draft_tree.add_arguments(parser)
    base = ["--data", str(tmp_path), "--out", str(tmp_path / "t.json")]
    for size in ([], ["--drafts", "7", "--levels", "6,5,3"]):
        with pytest.raises(SystemExit):
            parser.parse_args([*base, *size])
    with pytest.raises(ValueError, match="--levels must be 1 to 8"):
        draft_tree.run(parser.parse_args([*base, "--levels", "0"]))
