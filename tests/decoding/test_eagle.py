"""The EAGLE head against its written-out formula, and its trees against brute force."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F

from tests import tiny
from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance

PROMPT = [5, 9, 11, 7, 30]
FIRST = 8


def head_by_formula(
    head: EagleHead, embeddings: torch.Tensor, features: torch.Tensor
) -> torch.Tensor:
    """Next features [n, H] of one sequence at positions 0 … n-1, one query at a time."""
    block, config = head.layers[0], head.config
    dim, groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    inputs = head.fc(torch.cat((embeddings, features), dim=-1))

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        angles = position * config.rope_theta ** -(torch.arange(0, dim, 2) / dim)
        cos, sin = torch.cat((angles, angles)).cos(), torch.cat((angles, angles)).sin()
        half = torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), dim=-1)
        return x * cos + half * sin

    outputs = []
    for i in range(len(inputs)):
        query = turned(block.self_attn.q_proj(inputs[i]).view(-1, dim), i)
        mixed = []
        for h in range(config.num_attention_heads):
            k = h // groups
            keys = torch.stack(
                [
                    turned(block.self_attn.k_proj(inputs[j]).view(-1, dim)[k], j)
                    for j in range(i + 1)
                ]
            )
            values = torch.stack(
                [block.self_attn.v_proj(inputs[j]).view(-1, dim)[k] for j in range(i + 1)]
            )
            weights = (keys @ query[h] / dim**0.5).softmax(dim=0)
            mixed.append(weights @ values)
        hidden = inputs[i] + block.self_attn.o_proj(torch.cat(mixed))
        norm = hidden * torch.rsqrt(hidden.pow(2).mean() + config.rms_norm_eps)
        norm = norm * block.post_attention_layernorm.weight
        mlp = block.mlp
        outputs.append(hidden + mlp.down_proj(F.silu(mlp.gate_proj(norm)) * mlp.up_proj(norm)))
    return torch.stack(outputs)


@torch.no_grad()
@pytest.mark.parametrize("training", [False, True])
def test_head_follows_the_formula(training: bool) -> None:
    head = tiny.eagle_head().train(training)
    embeddings, features = torch.randn(2, 6, tiny.HIDDEN)
    positions = torch.arange(6)[None]
    hidden, _ = head(embeddings[None], features[None], positions)
    expected = head_by_formula(head, embeddings, features)
    torch.testing.assert_close(hidden[0], expected, atol=1e-5, rtol=1e-4)


def begun(
    tree: DynamicTree | TreeTemplate, draft_vocab: int | None = None
) -> tuple[Eagle, torch.Tensor]:
    target = tiny.target()
    drafter = Eagle(tiny.eagle_head(draft_vocab), target, tree)
    torch.manual_seed(0)
    features = torch.randn(len(PROMPT), tiny.HIDDEN)
    drafter.begin(Prompt(PROMPT, features, target.logits, FIRST))
    return drafter, features


@torch.no_grad()
def continuation(features: torch.Tensor, path: list[int], head: EagleHead) -> torch.Tensor:
    """Draft log-probabilities [V] after `path`, without any cache or tree."""
    target = tiny.target()
    ids = [*PROMPT[1:], FIRST]
    rows = features
    for token in [*path, None]:
        hidden = head_by_formula(head, target.embed(torch.tensor(ids)), rows)
        if token is None:
            break
        ids = [*ids, token]
        rows = torch.cat((rows, hidden[-1:]))
    scores = target.logits(hidden[-1]).float()
    if head.draft_rows is None:
        return scores.log_softmax(dim=-1)
    full = torch.full((tiny.VOCAB,), float("-inf"))
    full[head.draft_rows] = scores[head.draft_rows].log_softmax(dim=-1)
    return full


def paths_of(tree: DraftTree) -> dict[tuple[int, ...], int]:
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for node, parent in enumerate(tree.parents[1:], start=1):
        paths[node] = (*paths[parent], tree.tokens[node])
    return {path: node for node, path in paths.items() if path}


@torch.no_grad()
@pytest.mark.parametrize("draft_vocab", [None, 16])
@pytest.mark.parametrize("total", [2, 5, 9])
def test_dynamic_tree_holds_the_best_nodes_of_the_pool(total: int, draft_vocab: int | None) -> None:
    top_k, depth = 3, 2
    drafter, features = begun(DynamicTree(total, depth, top_k), draft_vocab)
    tree = drafter.propose(FIRST, 9)

    head = tiny.eagle_head(draft_vocab)
    pool: dict[tuple[int, ...], float] = {}
    frontier: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(depth + 1):
        children: dict[tuple[int, ...], float] = {}
        for path, score in frontier.items():
            values, ids = continuation(features, list(path), head).topk(top_k)
            for value, token in zip(values.tolist(), ids.tolist(), strict=True):
                children[(*path, token)] = score + value
        pool |= children
        frontier = dict(sorted(children.items(), key=lambda item: -item[1])[:top_k])
    best = sorted(pool, key=lambda path: -pool[path])[: total - 1]
    assert len(pool) == top_k + depth * top_k**2
    assert set(paths_of(tree)) == set(best)


@torch.no_grad()
def test_static_tree_takes_the_ranks_of_its_template() -> None:
    template = TreeTemplate.from_dict({"paths": [[0], [2], [0, 1], [0, 1, 0]]}, "small")
    drafter, features = begun(template)
    tree = drafter.propose(FIRST, 9)
    head = tiny.eagle_head()

    def ranked(path: list[int]) -> list[int]:
        return continuation(features, path, head).argsort(descending=True).tolist()

    first = ranked([])
    second = ranked([first[0]])
    third = ranked([first[0], second[1]])
    assert tree == DraftTree((FIRST, first[0], first[2], second[1], third[0]), (-1, 0, 0, 1, 3))
    assert begun(template)[0].propose(FIRST, 2) == tree.cut(2)


@torch.no_grad()
def test_observed_features_replace_drafted_ones() -> None:
    """After a step the head sees the target's features of the accepted path, nothing drafted."""
    shape = DynamicTree(6, 1, 3)
    drafter, features = begun(shape)
    tree = drafter.propose(FIRST, 9)
    path = (0, next(node for node, parent in enumerate(tree.parents) if parent == 0))
    verified = torch.randn(len(tree), tiny.HIDDEN)
    bonus = 21
    drafter.observe(
        Step(tree, verified, torch.zeros(len(tree), tiny.VOCAB), Acceptance(path, bonus))
    )
    again = drafter.propose(bonus, 9)

    fresh = Eagle(tiny.eagle_head(), tiny.target(), shape)
    ids = [*PROMPT, FIRST, tree.tokens[path[1]]]
    rows = torch.cat((features, verified[list(path)]))
    fresh.begin(Prompt(ids, rows, tiny.target().logits, bonus))
    assert again == fresh.propose(bonus, 9)


@torch.no_grad()
def test_a_wider_search_than_the_tree_can_hold_changes_nothing() -> None:
    wide, _ = begun(DynamicTree(5, 2, 40))
    exact, _ = begun(DynamicTree(5, 2, 4))
    assert wide.propose(FIRST, 9) == exact.propose(FIRST, 9)


def test_no_room_means_no_draft() -> None:
    drafter, _ = begun(DynamicTree(8, 3, 3))
    assert drafter.propose(FIRST, 0) == DraftTree.root(FIRST)
    assert max(drafter.propose(FIRST, 1).depths) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 16}, "hidden size 16, the target 32"),
        ({"vocab_size": 96}, "96 tokens, the target 48"),
    ],
)
def test_a_head_of_another_target_is_refused(changes: dict[str, int], message: str) -> None:
    shape = tiny.eagle_head().config.to_dict() | changes
    with pytest.raises(ValueError, match=message):
        Eagle(EagleHead(EagleConfig.from_dict(shape)), tiny.target(), DynamicTree(8, 2, 2))


@pytest.mark.parametrize(
    ("total", "depth", "top_k", "name"),
    [(1, 2, 2, "total_token"), (4, -1, 2, "depth"), (4, 2, 0, "top_k")],
)
def test_tree_sizes_are_checked(total: int, depth: int, top_k: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        DynamicTree(total, depth, top_k)


def test_config_reads_rope_theta_from_both_places() -> None:
    base = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_attention_heads": 2,
        "vocab_size": 8,
    }
    assert EagleConfig.from_dict(base).rope_theta == 10000
    assert EagleConfig.from_dict(base | {"rope_theta": 5e5}).rope_theta == 5e5
    nested = base | {"rope_parameters": {"rope_theta": 1e6}}
    assert EagleConfig.from_dict(nested).rope_theta == 1e6
    assert EagleConfig.from_dict(base).bias
    with pytest.raises(ValueError, match="lacks vocab_size"):
        EagleConfig.from_dict({k: v for k, v in base.items() if k != "vocab_size"})


def test_draft_rows_follow_the_offsets() -> None:
    head = tiny.eagle_head(draft_vocab=16)
    rows = head.draft_rows
    assert rows is not None
    offsets = head.d2t.tolist()
    assert rows.tolist() == [
        i + offset for i, offset in zip(itertools.count(), offsets, strict=False)
    ]
