"""Derive a Token Recycling tree for a target: how often is each path of ranks right?

May import: torch, tqdm, tss_bench.{decoding, weights} and tss_bench.training.self_generation.
The target's own answers are replayed: from each answer id on, what came is followed through the
adjacency rows that the drafter would hold at that moment. The tree is the set of paths that
were right most often, of any depth or with given numbers of nodes a level.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from tss_bench.decoding.drafters.token_recycling import CANDIDATES, top_candidates
from tss_bench.decoding.drafters.tree_template import (
    TreeTemplate,
    best_levels,
    best_tree,
    check_levels,
)
from tss_bench.decoding.target import Target
from tss_bench.training.self_generation import (
    features_path,
    read_answers,
    read_features,
    read_recipe,
    shard_paths,
)
from tss_bench.weights import load_model

MAX_DEPTH = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench train tree`."""
    parser.add_argument(
        "--data", type=Path, required=True, help="self-generated text with features"
    )
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--drafts", type=int, help="nodes besides the root")
    size.add_argument("--levels", help="nodes at each depth below the root, such as 6,5,3")
    parser.add_argument("--out", type=Path, required=True, help="tree file to write (JSON)")
    parser.add_argument("--tokens", type=int, default=50_000, help="answer ids to replay at most")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")


def run(args: argparse.Namespace) -> None:
    """Measure the rates on `--data`, write the tree with its derivation to `--out`."""
    if args.tokens < 1 or (args.drafts is not None and args.drafts < 1):
        raise ValueError("--drafts and --tokens must be at least 1")
    levels = None if args.levels is None else read_levels(args.levels)
    if not args.out.parent.is_dir():
        raise ValueError(f"--out {args.out}: there is no directory {args.out.parent}")
    recipe = read_recipe(args.data)
    _require_features(args.data)
    model, _, info = load_model(recipe["pretrained"], device=args.device)
    if info.revision != recipe["revision"]:
        raise ValueError(
            f"the text in {args.data} was written by revision {recipe['revision']} of "
            f"{recipe['pretrained']}, here is {info.revision}; generate it anew"
        )
    counts = count_paths(answers_with_candidates(Target(model), args.data), args.tokens)
    rates = {path: hits / counts.positions for path, hits in counts.hits.items()}
    tree = choose_tree(args.out.stem, rates, args.drafts, levels)
    size = f"--drafts {args.drafts}" if levels is None else f"--levels {args.levels}"
    source = {
        "target": info.id,
        "answer_ids": counts.positions,
        "expected_accept_len": round(expected_accept_len(tree, rates), 3),
        "rule": "the paths of ranks that were right most often",
        "command": f"tss-bench train tree {size} --tokens {args.tokens}",
        "revision": info.revision,
        "data_recipe": recipe,
    }
    content: dict[str, Any] = {"source": source, **tree.to_dict()}
    args.out.write_text(json.dumps(content) + "\n", encoding="utf-8")
    print(f"{args.out}: levels {tree.levels}, {source}")


def read_levels(text: str) -> tuple[int, ...]:
    """`"6,5,3"` as numbers of nodes. Raises ValueError for anything else, and for too many."""
    words = [word.strip() for word in text.split(",")]
    if len(words) > MAX_DEPTH or not all(word.isdecimal() and int(word) for word in words):
        raise ValueError(
            f"--levels must be 1 to {MAX_DEPTH} whole numbers of at least 1, such as 6,5,3, got "
            f"{text!r}"
        )
    levels = tuple(map(int, words))
    check_levels(levels)
    return levels


def choose_tree(
    name: str,
    rates: Mapping[tuple[int, ...], float],
    drafts: int | None,
    levels: Sequence[int] | None,
) -> TreeTemplate:
    """The best tree of that many nodes in all, or a level. Raises ValueError where none is seen."""
    if levels is not None:
        return best_levels(name, rates, levels)
    assert drafts is not None
    return best_tree(name, rates, drafts)


def expected_accept_len(tree: TreeTemplate, rates: Mapping[tuple[int, ...], float]) -> float:
    """Ids a step on the counted text, bonus included: each node adds how often it was right."""
    return 1 + sum(rates[tuple(path)] for path in tree.to_dict()["paths"])


def _require_features(data: Path) -> None:
    shards = shard_paths(data)
    bare = [shard for shard in shards if not features_path(shard).is_file()]
    if bare or not shards:
        raise ValueError(
            f"{bare[0] if bare else data} has no answers with hidden states; name the data "
            "directory of a `tss-bench train eagle` run"
        )


class PathCounts:
    """`hits[path]`: how often the ranks of `path` were all right, of `positions` answer ids."""

    def __init__(self) -> None:
        self.hits: Counter[tuple[int, ...]] = Counter()
        self.positions = 0

    def replay(
        self, ids: Sequence[int], prompt_length: int, candidates: Sequence[Sequence[int]]
    ) -> None:
        """Count one answer; `candidates[i]` are the best ids after ids[: i + 1], best first."""
        rows = dict(zip(ids[:prompt_length], candidates[:prompt_length], strict=False))
        for root in range(prompt_length, len(ids) - 1):
            self.positions += 1
            self._follow(ids, root, rows)
            rows[ids[root]] = candidates[root]

    def _follow(self, ids: Sequence[int], root: int, rows: Mapping[int, Sequence[int]]) -> None:
        """Count the beginnings of the longest right path from ids[root] on."""
        path: tuple[int, ...] = ()
        for place in range(root, min(root + MAX_DEPTH, len(ids) - 1)):
            row = list(rows.get(ids[place], ()))
            if ids[place + 1] not in row:
                return
            path = (*path, row.index(ids[place + 1]))
            self.hits[path] += 1


def count_paths(
    answers: Iterable[tuple[list[int], int, list[list[int]]]], tokens: int
) -> PathCounts:
    """Replay answers until `tokens` ids are counted. Raises ValueError when there is none."""
    counts = PathCounts()
    with tqdm(total=tokens, desc="replay", unit="id") as bar:
        for ids, prompt_length, candidates in answers:
            before = counts.positions
            counts.replay(ids, prompt_length, candidates)
            bar.update(counts.positions - before)
            if counts.positions >= tokens:
                break
    if not counts.positions:
        raise ValueError("the data holds no answer ids; generate some first")
    return counts


@torch.inference_mode()
def answers_with_candidates(
    target: Target, data: Path
) -> Iterable[tuple[list[int], int, list[list[int]]]]:
    """(ids, prompt length, candidates of every id but the last) of each greedy answer."""
    for shard in shard_paths(data):
        answers = read_answers(shard)
        features = read_features(features_path(shard))
        start = 0
        for ids, prompt_length, sampled in zip(
            answers.ids, answers.prompt_lengths, answers.sampled, strict=True
        ):
            rows: Tensor = features[start : start + len(ids) - 1]
            start += len(ids) - 1
            if not sampled:
                logits = target.logits(rows.to(target.device, target.dtype))
                yield ids.tolist(), prompt_length, top_candidates(logits, CANDIDATES).tolist()
