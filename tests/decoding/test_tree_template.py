from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tss_bench.decoding.drafters.tree_template import TreeTemplate, expected_tree, packaged_trees


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
    ],
)
def test_a_malformed_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tree.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        TreeTemplate.load(str(path))


def test_both_file_forms_mean_the_same(tmp_path: Path) -> None:
    paths = TreeTemplate.from_dict({"paths": [[0], [1], [0, 0]]}, "t")
    assert paths.nodes == ((0, 0), (0, 1), (1, 0))
    path = tmp_path / "t.json"
    path.write_text(json.dumps(paths.to_dict()))
    assert TreeTemplate.load(str(path)).nodes == paths.nodes


@given(st.lists(st.floats(0.01, 0.9), min_size=1, max_size=3), st.integers(1, 5))
def test_expected_tree_is_the_best_of_all_trees(rates: list[float], size: int) -> None:
    """Against every prefix-closed set of rank paths of this size."""

    def value(tree: TreeTemplate) -> float:
        reach = [1.0]
        for parent, rank in tree.nodes:
            reach.append(reach[parent] * rates[rank])
        return sum(reach[1:])

    ranks = range(len(rates))
    every = [p for depth in range(1, size + 1) for p in itertools.product(ranks, repeat=depth)]
    every = sorted(every, key=len)[:40]
    best = 0.0
    for chosen in itertools.combinations(every, size) if len(every) <= 14 else []:
        if all(len(path) == 1 or path[:-1] in chosen for path in chosen):
            best = max(best, value(TreeTemplate.from_dict({"paths": list(chosen)}, "t")))
    tree = expected_tree("t", rates, size)
    assert len(tree.nodes) == size
    assert value(tree) >= best - 1e-12
