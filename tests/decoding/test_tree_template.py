from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.decoding.drafters.tree_template import TreeTemplate, best_tree, packaged_trees


def test_eagle_static_tree_has_the_published_levels() -> None:
    tree = TreeTemplate.load("eagle_mc_sim_7b_63")
    assert tree.levels == (4, 8, 8, 3, 2)
    assert tree.max_children == 4


def test_token_recycling_tree_has_the_published_levels() -> None:
    tree = TreeTemplate.load("token_recycling_61")
    assert tree.levels == (7, 20, 21, 8, 4)
    assert tree.max_children == 7


@pytest.mark.parametrize("name", packaged_trees())
def test_packaged_trees_load(name: str) -> None:
    assert TreeTemplate.load(name).name == name


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(FileNotFoundError, match="did you mean 'token_recycling_61'"):
        TreeTemplate.load("token_recycling_60")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("{}", "neither 'tree_adj' nor 'paths'"),
        ('{"tree_adj": {"0": [1, 3]}}', "without gaps"),
        ('{"tree_adj": {"0": [1], "1": [1]}}', "two parents"),
        ('{"paths": [[0, 1]]}', "comes before its parent"),
        ('{"paths": [[0], [0]]}', "same rank twice"),
        ('{"paths": [[-1]]}', "rank -1"),
        ('{"paths": [["a"]]}', "is malformed"),
        ('{"paths": [[]]}', "empty path"),
        ('{"tree_adj": {"x": [1]}}', "is malformed .'x' is no node number"),
        ('{"paths": [5]}', "is malformed"),
        ('{"tree_adj": [1]}', "is malformed"),
        ('{"tree_adj": {"0": 5}}', "is malformed"),
        ("5", "is malformed"),
        ("[]", "neither 'tree_adj' nor 'paths'"),
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tree.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        TreeTemplate.load(str(path))


def test_both_file_forms_mean_the_same() -> None:
    children = {"tree_adj": {"0": [1, 2], "1": [3]}}
    paths = {"paths": [[0], [1], [0, 0]]}
    assert TreeTemplate.from_dict(paths, "t").nodes == ((0, 0), (0, 1), (1, 0))
    assert TreeTemplate.from_dict(children, "t") == TreeTemplate.from_dict(paths, "t")


@given(st.lists(st.lists(st.integers(0, 4), max_size=4), max_size=6))
def test_a_written_tree_is_read_back_whatever_its_ranks(paths: list[list[int]]) -> None:
    closed = dict.fromkeys(tuple(p[:n]) for p in paths for n in range(1, len(p) + 1))
    tree = TreeTemplate.from_dict({"paths": sorted(closed, key=len)}, "t")
    assert TreeTemplate.from_dict(json.loads(json.dumps(tree.to_dict())), "t") == tree


def test_best_tree_holds_the_paths_that_are_right_most_often() -> None:
    rates = {(0,): 0.5, (1,): 0.2, (0, 0): 0.3, (0, 1): 0.1, (0, 0, 0): 0.25, (1, 0): 0.15}
    # The three best are a chain; the fourth is the root's second child.
    assert best_tree("t", rates, 3).levels == (1, 1, 1)
    assert best_tree("t", rates, 4).nodes == ((0, 0), (0, 1), (1, 0), (3, 0))
    with pytest.raises(ValueError, match="7 drafts asked for, only 6 paths"):
        best_tree("t", rates, 7)


@given(st.dictionaries(st.tuples(st.integers(0, 2)), st.floats(0.1, 1.0), min_size=1))
def test_at_equal_rates_parents_come_first(rates: dict[tuple[int, ...], float]) -> None:
    deeper = {(*path, 0): rate for path, rate in rates.items()}
    tree = best_tree("t", rates | deeper, len(rates) + 1)
    assert len(tree.nodes) == len(rates) + 1
