from __future__ import annotations

import pytest

from tss_bench.decoding.tree import DraftTree


def test_siblings_do_not_see_each_other() -> None:
    tree = DraftTree((10, 11, 12, 13, 14), (-1, 0, 0, 1, 2))
    mask = tree.mask(past=2).tolist()
    assert mask[3] == [True, True, True, True, False, True, False]
    assert mask[0] == [True, True, True, False, False, False, False]
    assert tree.depths == (0, 1, 1, 2, 2)
    assert tree.children == ((1, 2), (3,), (4,), (), ())


def test_a_chain_is_a_tree() -> None:
    tree = DraftTree.chain(5, [6, 7])
    assert tree == DraftTree((5, 6, 7), (-1, 0, 1))
    assert tree.mask(past=0).tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_cut_drops_deep_nodes_and_renumbers_parents() -> None:
    tree = DraftTree((1, 2, 3, 4, 5), (-1, 0, 1, 0, 3))
    assert tree.cut(1) == DraftTree((1, 2, 4), (-1, 0, 0))
    assert tree.cut(0) == DraftTree.root(1)
    assert tree.cut(2) is tree


@pytest.mark.parametrize(
    ("tokens", "parents", "message"),
    [
        ((), (), "0 tokens"),
        ((1, 2), (-1,), "2 tokens has 1 parents"),
        ((1,), (0,), "must be -1"),
        ((1, 2), (-1, 1), "node 1 has parent 1"),
        ((1, 2, 3), (-1, 2, 0), "node 1 has parent 2"),
    ],
)
def test_malformed_trees_are_refused(
    tokens: tuple[int, ...], parents: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DraftTree(tokens, parents)
