from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.decoding.drafters.tree_template import (
    TreeTemplate,
    best_levels,
    best_tree,
    packaged_trees,
)


def test_eagle_static_tree_has_the_published_levels() -> None:
    tree = TreeTemplate.load("eagle_mc_sim_7b_63")
    assert tree.levels == (4, 8, 8, 3, 2)
    assert tree.max_children == 4


def test_token_recycling_tree_has_the_published_levels() -> None:
    tree = TreeTemplate.load("token_recycling_61")
    assert tree.levels == (7, 20, 21, 8, 4)
    assert tree.max_children == 7


def test_our_tree_of_four_levels_and_fifteen_nodes() -> None:
    tree = TreeTemplate.load("token_recycle_4_15")
    assert (len(tree.nodes) + 1, tree.levels) == (15, (6, 5, 3))
    assert tree.max_children == 6


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


def most_hits(hits: dict[tuple[int, ...], int], levels: list[int]) -> int | None:
    """Hits of the best tree of these levels, by trying every one; None where there is none."""
    found = None
    stack: list[tuple[frozenset[tuple[int, ...]], int]] = [(frozenset({()}), 0)]
    for depth, size in enumerate(levels, start=1):
        stack = [
            (frozenset(chosen), total + sum(hits[path] for path in chosen))
            for parents, total in stack
            for chosen in itertools.combinations(
                [path for path in hits if len(path) == depth and path[:-1] in parents], size
            )
        ]
        found = max((total for _, total in stack), default=None)
    return found


@st.composite
def path_hits(draw: st.DrawFn) -> dict[tuple[int, ...], int]:
    """Hits of rank paths: none more often right than its beginning."""
    hits: dict[tuple[int, ...], int] = {(): 40}
    for parent in itertools.chain([()], [(0,), (1,), (2,)], itertools.product(range(3), repeat=2)):
        if parent in hits:
            for rank in draw(st.sets(st.integers(0, 2))):
                hits[(*parent, rank)] = draw(st.integers(1, hits[parent]))
    del hits[()]
    return hits


@given(path_hits(), st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_best_levels_finds_the_best_tree_of_those_levels(
    hits: dict[tuple[int, ...], int], levels: list[int]
) -> None:
    expected = most_hits(hits, levels)
    if expected is None:
        with pytest.raises(ValueError, match="hold no tree of levels"):
            best_levels("t", hits, levels)
        return
    tree = best_levels("t", hits, levels)
    assert list(tree.levels) == levels
    assert sum(hits[tuple(path)] for path in tree.to_dict()["paths"]) == expected


def test_a_lesser_parent_may_have_the_better_children() -> None:
    rates = {(0,): 0.5, (1,): 0.45, (0, 0): 0.1, (0, 1): 0.1, (1, 0): 0.4, (1, 1): 0.05}
    assert best_levels("t", rates, (1, 2)).to_dict() == {"paths": [[1], [1, 0], [1, 1]]}


@pytest.mark.parametrize("levels", [(), (2, 0), (7, 20, 21, 8, 4)])
def test_levels_out_of_range_are_refused(levels: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be at least 1 each, with a product of"):
        best_levels("t", {(0,): 1.0}, levels)
