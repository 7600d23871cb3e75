"""Fixed draft trees as files: each node is (parent node, rank among the parent's candidates).

May import: the standard library only. Two file forms are read: Token Recycling's
`{"tree_adj": {"0": [children], …}}` (nodes in breadth-first order, the k-th child takes rank k)
and EAGLE's rank paths `{"paths": [[0], [0, 1], …]}` (root implied).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

MOST_COMBINATIONS = 1_000
"""Of nodes a level that `best_levels` tries: more take minutes."""

_TREES = resources.files("tss_bench") / "assets" / "trees"


@dataclass(frozen=True)
class TreeTemplate:
    """`nodes[i]` describes node i + 1 (node 0 is the root); parents come before children."""

    name: str
    nodes: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        for place, (parent, rank) in enumerate(self.nodes, start=1):
            if not 0 <= parent < place or rank < 0:
                raise ValueError(
                    f"tree {self.name!r}: node {place} has parent {parent} and rank {rank}; "
                    "parents come before children and ranks count from 0"
                )
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError(f"tree {self.name!r} proposes the same rank twice at one node")

    @property
    def max_children(self) -> int:
        """Candidates a node must offer: the highest rank used, plus one."""
        return max((rank + 1 for _, rank in self.nodes), default=0)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of every node, the root's 0 first."""
        depths = [0]
        for parent, _ in self.nodes:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of nodes a level, the root's level left out."""
        return tuple(self.depths.count(depth) for depth in range(1, max(self.depths) + 1))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the nodes: what a tree proposes, whatever its name."""
        return hashlib.sha256(json.dumps(self.nodes).encode()).hexdigest()

    @classmethod
    def load(cls, name: str) -> TreeTemplate:
        """A packaged tree by name, else a file; raises ValueError or FileNotFoundError."""
        packaged = _TREES / f"{name}.json"
        if packaged.is_file():
            return cls.from_dict(json.loads(packaged.read_text(encoding="utf-8")), name)
        path = Path(name)
        if not path.is_file():
            known = packaged_trees()
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise FileNotFoundError(
                f"no tree {name!r}: neither a file nor one of {', '.join(known)}{hint}"
            )
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")), name)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"tree file {name} is no JSON: {error}") from error

    @classmethod
    def from_dict(cls, content: Any, name: str) -> TreeTemplate:
        """Read either file form; raises ValueError naming what is wrong."""
        try:
            if "tree_adj" in content:
                children = {_node(n): list(kids) for n, kids in content["tree_adj"].items()}
                return cls(name, _from_children(children, name))
            if "paths" in content:
                paths = [tuple(map(operator.index, path)) for path in content["paths"]]
                return cls(name, _from_paths(paths, name))
        except (TypeError, AttributeError) as error:
            raise ValueError(
                f"tree {name!r} is malformed ({error}); give lists of whole numbers"
            ) from error
        raise ValueError(f"tree {name!r} has neither 'tree_adj' nor 'paths'")

    def to_dict(self) -> dict[str, Any]:
        """The file form of rank paths, which can hold every tree."""
        paths: list[list[int]] = [[]]
        for parent, rank in self.nodes:
            paths.append([*paths[parent], rank])
        return {"paths": paths[1:]}


def packaged_trees() -> list[str]:
    """Names that `TreeTemplate.load` knows without a file."""
    return sorted(item.name.removesuffix(".json") for item in _TREES.iterdir()
                  if item.name.endswith(".json"))  # fmt: skip


def best_tree(name: str, rates: Mapping[tuple[int, ...], float], size: int) -> TreeTemplate:
    """The tree of `size` drafts with the highest expected accept length.

    `rates[path]` is how often all ids along a path of ranks are right. The sum of its nodes'
    rates is the expected number of drafts a tree gets accepted, and a path is never right more
    often than its beginning, so the `size` paths of the highest rates are a tree and the best
    one. Raises ValueError when fewer paths are known.
    """
    if len(rates) < size:
        raise ValueError(f"tree {name!r}: {size} drafts asked for, only {len(rates)} paths seen")
    ranked = sorted(rates, key=lambda path: (-rates[path], len(path), path))[:size]
    return TreeTemplate(name, _from_paths(sorted(ranked, key=lambda p: (len(p), p)), name))


def best_levels(
    name: str, rates: Mapping[tuple[int, ...], float], levels: Sequence[int]
) -> TreeTemplate:
    """The tree of `levels` nodes a level with the highest expected accept length, see `best_tree`.

    Exact: the best subtree under each path is found for every number of nodes a level, from the
    leaves up. A child that is right often may have a parent that is not among the best, so the
    best paths of each level need not be a tree. Raises ValueError when there is no such tree
    among the paths known, and as `check_levels` does.
    """
    check_levels(levels)
    children: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for path in sorted(rates):
        children.setdefault(path[:-1], []).append(path)
    found = _subtrees((), tuple(levels), rates, children).get(tuple(levels))
    if found is None:
        raise ValueError(
            f"tree {name!r}: the {len(rates)} paths seen hold no tree of levels "
            f"{','.join(map(str, levels))}"
        )
    return TreeTemplate(name, _from_paths(sorted(found[1], key=lambda p: (len(p), p)), name))


def check_levels(levels: Sequence[int]) -> None:
    """Raises ValueError for no level, an empty one, and too many combinations to try."""
    combinations = math.prod(size + 1 for size in levels)
    if min(levels, default=0) < 1 or combinations > MOST_COMBINATIONS:
        raise ValueError(
            f"levels {','.join(map(str, levels))} must be at least 1 each, with a product of "
            f"(nodes + 1) of at most {MOST_COMBINATIONS}, here {combinations}; larger trees are "
            f"chosen by their number of drafts alone"
        )


_Forest = tuple[float, tuple[tuple[int, ...], ...]]


def _subtrees(
    root: tuple[int, ...],
    levels: tuple[int, ...],
    rates: Mapping[tuple[int, ...], float],
    children: Mapping[tuple[int, ...], Sequence[tuple[int, ...]]],
) -> dict[tuple[int, ...], _Forest]:
    """By how many nodes they have a level: the best choice of nodes under `root` and its rate."""
    best: dict[tuple[int, ...], _Forest] = {(0,) * len(levels): (0.0, ())}
    if not levels:
        return best
    for child in children.get(root, ()):
        grown = dict(best)
        for below, (rate, paths) in _subtrees(child, levels[1:], rates, children).items():
            for sizes, (sum_so_far, chosen) in best.items():
                total = tuple(map(operator.add, sizes, (1, *below)))
                if any(size > limit for size, limit in zip(total, levels, strict=True)):
                    continue
                value = sum_so_far + rate + rates[child]
                if total not in grown or value > grown[total][0]:
                    grown[total] = (value, (*chosen, child, *paths))
        best = grown
    return best


def _node(text: str) -> int:
    if not text.isdecimal():
        raise TypeError(f"{text!r} is no node number")
    return int(text)


def _from_children(children: Mapping[int, Sequence[int]], name: str) -> tuple[tuple[int, int], ...]:
    placed: dict[int, tuple[int, int]] = {}
    for parent, nodes in children.items():
        for rank, node in enumerate(nodes):
            if node in placed:
                raise ValueError(f"tree {name!r}: node {node} has two parents")
            placed[node] = (parent, rank)
    if sorted(placed) != list(range(1, len(placed) + 1)):
        raise ValueError(f"tree {name!r}: nodes must be numbered 1 to {len(placed)} without gaps")
    return tuple(placed[node] for node in sorted(placed))


def _from_paths(paths: Sequence[Sequence[int]], name: str) -> tuple[tuple[int, int], ...]:
    places: dict[tuple[int, ...], int] = {(): 0}
    nodes: list[tuple[int, int]] = []
    for path in map(tuple, paths):
        if not path:
            raise ValueError(f"tree {name!r} has an empty path; the root is not listed")
        if path[:-1] not in places:
            raise ValueError(f"tree {name!r}: path {list(path)} comes before its parent's")
        nodes.append((places[path[:-1]], path[-1]))
        places[path] = len(nodes)
    return tuple(nodes)
