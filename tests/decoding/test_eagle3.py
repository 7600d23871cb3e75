"""The EAGLE-3 head and its trees against a second implementation, made of the formats alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests import eagle3, tiny
from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.eagle3_head import LAYER_IDS, Eagle3Config, Eagle3Head
from tss_bench.decoding.drafters.head_block import HeadShape, Rotary
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance

PROMPT = [5, 9, 11, 7, 30]
FIRST, DRAFTS = 8, 16
IDS = [*PROMPT[1:], FIRST]
CONFIG = eagle3.official_config(tiny.VOCAB, DRAFTS, **{LAYER_IDS: [1, 2, 3]})
STATE = eagle3.official_state(tiny.VOCAB, DRAFTS)
TABLE = tiny.target().embed(torch.arange(tiny.VOCAB)).detach()


def head_of(config: dict[str, Any]) -> Eagle3Head:
    head = Eagle3Head(Eagle3Config.from_dict(config))
    head.load_state_dict({name: tensor for name, tensor in STATE.items() if name != "t2d"})
    return head.eval()


def begun(
    tree: DynamicTree | TreeTemplate, config: dict[str, Any] = CONFIG
) -> tuple[Eagle, Prompt]:
    torch.manual_seed(0)
    features = torch.randn(len(PROMPT), 3 * tiny.HIDDEN)
    drafter = Eagle(head_of(config), tiny.target(), tree)
    prompt = Prompt(PROMPT, features, tiny.target().logits, FIRST)
    drafter.begin(prompt)
    return drafter, prompt


def by_formula(config: dict[str, Any], features: Tensor, path: list[int]) -> Tensor:
    """Log-probabilities [V] behind `path`; an id that the head does not draft has none."""
    scores = eagle3.draft_logits(config, STATE, TABLE, [*IDS, *path], features)
    full = torch.full((tiny.VOCAB,), -math.inf)
    # The mapping written out: draft id i is target id i + d2t[i].
    for i, value in enumerate(scores.log_softmax(dim=-1)):
        full[i + int(STATE["d2t"][i])] = value
    return full


@torch.no_grad()
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"norm_before_residual": True},
        {"rope_theta": 500.0},
        {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}},
    ],
)
def test_draft_logits_of_every_depth(more: dict[str, Any]) -> None:
    config = {**CONFIG, **more}
    wanted = {"rope_theta": 500.0, **more} if "rope_parameters" in more else more
    reference = {**CONFIG, **wanted}
    drafter, prompt = begun(DynamicTree(4, 2, 2), config)
    (keys, values), feature = drafter.read(prompt)
    past = (keys, values)
    path: list[int] = []
    for depth in range(4):
        found, ids = drafter.candidates(feature[None], DRAFTS)
        expected = by_formula(reference, prompt.features, path)
        assert sorted(ids[0].tolist()) == torch.isfinite(expected).nonzero()[:, 0].tolist()
        torch.testing.assert_close(found[0], expected[ids[0]], atol=2e-5, rtol=1e-4)
        # Not the best: a path that only this feature leads down.
        path.append(int(ids[0, depth]))
        seen = torch.ones(1, past[0].shape[2] + 1, dtype=torch.bool)
        position = torch.tensor([len(PROMPT) + depth])
        (feature,), past = drafter.extend(
            torch.tensor(path[-1:]), feature[None], position, seen, past
        )


@torch.no_grad()
def test_norm_before_fc_norms_the_features_side_by_side() -> None:
    config = {**CONFIG, "norm_before_fc": True}
    head = Eagle3Head(Eagle3Config.from_dict(config))
    head.input_norm.weight.copy_(torch.linspace(0.5, 1.5, 3 * tiny.HIDDEN))
    features = torch.randn(2, 3 * tiny.HIDDEN)
    scale = (features.pow(2).mean(dim=-1, keepdim=True) + 1e-5).sqrt()
    expected = (features / scale * head.input_norm.weight) @ head.fc.weight.T
    torch.testing.assert_close(head.fuse(features), expected)


@torch.no_grad()
def test_dynamic_tree_holds_the_best_nodes_of_the_pool() -> None:
    total, top_k, depth = 6, 3, 2
    drafter, prompt = begun(DynamicTree(total, depth, top_k))
    tree = drafter.propose(FIRST, 9)
    pool: dict[tuple[int, ...], float] = {}
    frontier: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(depth + 1):
        children = {}
        for path, score in frontier.items():
            values, ids = by_formula(CONFIG, prompt.features, list(path)).topk(top_k)
            for value, token in zip(values.tolist(), ids.tolist(), strict=True):
                children[(*path, token)] = score + value
        pool |= children
        frontier = dict(sorted(children.items(), key=lambda item: -item[1])[:top_k])
    best = sorted(pool, key=lambda path: -pool[path])[: total - 1]
    assert paths_of(tree) == set(best)


def paths_of(tree: DraftTree) -> set[tuple[int, ...]]:
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for node, parent in enumerate(tree.parents[1:], start=1):
        paths[node] = (*paths[parent], tree.tokens[node])
    return set(paths.values()) - {()}


@torch.no_grad()
def test_static_tree_takes_the_ranks_of_its_template() -> None:
    template = TreeTemplate.from_dict({"paths": [[0], [2], [0, 1], [0, 1, 0]]}, "small")
    drafter, prompt = begun(template)

    def ranked(path: list[int]) -> list[int]:
        return by_formula(CONFIG, prompt.features, path).argsort(descending=True).tolist()

    first = ranked([])
    second = ranked([first[0]])
    third = ranked([first[0], second[1]])
    assert drafter.propose(FIRST, 9) == DraftTree(
        (FIRST, first[0], first[2], second[1], third[0]), (-1, 0, 0, 1, 3)
    )


@torch.no_grad()
def test_observed_features_replace_drafted_ones() -> None:
    """After a step the head sees the target's fused features of the accepted path."""
    drafter, prompt = begun(DynamicTree(6, 1, 3))
    tree = drafter.propose(FIRST, 9)
    verified, bonus = torch.randn(len(tree), 3 * tiny.HIDDEN), 21
    drafter.observe(Step(tree, verified, torch.zeros(len(tree), 1), Acceptance((0, 1), bonus)))
    features = torch.cat((prompt.features, verified[:2]))
    scores = eagle3.draft_logits(
        CONFIG, STATE, TABLE, [*IDS, tree.tokens[1], bonus], features
    ).log_softmax(dim=-1)
    best = int(scores.argmax())
    assert drafter.propose(bonus, 1).tokens[1] == best + int(STATE["d2t"][best])


@pytest.mark.parametrize(
    ("given", "layers", "expected"),
    [
        ({}, 32, (2, 16, 29)),
        ({}, 7, (2, 3, 4)),
        # As vLLM counts: the layers whose input is taken. Order does not matter.
        ({LAYER_IDS: [33, 5, 1]}, 40, (1, 5, 33)),
        ({LAYER_IDS: [0, 4]}, 4, (0, 4)),
        # As SGLang counts: the layers whose output is taken.
        ({"eagle_config": {LAYER_IDS: [0, 4, 30]}}, 32, (1, 5, 31)),
        # The published choice, counted in one way and written where the other is meant.
        ({"eagle_config": {LAYER_IDS: [1, 15, 28]}}, 32, (2, 16, 29)),
        ({"eagle_config": {LAYER_IDS: [2, 16, 29]}}, 32, (2, 16, 29)),
        ({LAYER_IDS: [1, 15, 28]}, 32, (2, 16, 29)),
        ({LAYER_IDS: [2, 16, 29]}, 32, (2, 16, 29)),
    ],
)
def test_which_layers_are_read(
    given: dict[str, Any], layers: int, expected: tuple[int, ...]
) -> None:
    config = Eagle3Config.from_dict({**eagle3.official_config(48, 16), **given})
    assert config.feature_layers(layers) == expected
    assert config.num_features == len(expected)


@pytest.mark.parametrize(
    ("given", "layers", "message"),
    [
        ({}, 6, r"three from L = 7 on; the target has 6 layers"),
        ({LAYER_IDS: [1, 5, 9]}, 8, r"inputs of layers \[1, 5, 9\], the target has only 8"),
        ({LAYER_IDS: [1, 1, 2]}, 8, "must be different layers"),
        ({LAYER_IDS: [-1, 1, 2]}, 8, "must be different layers"),
        ({LAYER_IDS: "2+3"}, 8, "must be a list of layers"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, 8, "use_aux_hidden_state false"),
    ],
)
def test_layers_that_do_not_exist(given: dict[str, Any], layers: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Eagle3Config.from_dict({**eagle3.official_config(48, 16), **given}).feature_layers(layers)


def test_a_target_with_too_few_layers_is_refused() -> None:
    shape = Eagle3Config.from_dict(eagle3.official_config(tiny.VOCAB, DRAFTS))
    with pytest.raises(ValueError, match="the target has 4 layers"):
        Eagle(Eagle3Head(shape), tiny.target(), DynamicTree(4, 2, 2))


def shape_of(**rope: Any) -> HeadShape:
    return Eagle3Config.from_dict({**eagle3.official_config(48, 16), **rope})


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_theta": 100, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_theta": 100, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 100.0, **LLAMA3}},
    ],
)
def test_llama3_scaling_in_every_spelling(rope: dict[str, Any]) -> None:
    """Four frequencies: 1, 100^-1/4, 100^-1/2, 100^-3/4 turn in 6.3, 19.9, 62.8, 198.7 positions.

    Below 64 / 4 positions they stay, above 64 / 1 they are divided by 8, between them they mix
    with a share of (64 / turn - 1) / 3 of the unscaled one.
    """
    plain = [1.0, 100**-0.25, 0.1, 100**-0.75]
    shares = [1.0, (64 * plain[1] / (2 * math.pi) - 1) / 3, (64 * 0.1 / (2 * math.pi) - 1) / 3, 0.0]
    expected = [f * (share + (1 - share) / 8) for f, share in zip(plain, shares, strict=True)]
    cos, sin = Rotary(shape_of(**rope))(torch.tensor([[1]]), torch.float32)
    assert torch.atan2(sin, cos)[0, 0, 0, :4].tolist() == pytest.approx(expected, rel=1e-5)


def test_yarn_scaling() -> None:
    """Fast frequencies stay, slow ones are divided; cosines and sines grow by 0.1 ln 4 + 1."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    cos, sin = Rotary(shape_of(rope_scaling=rope))(torch.tensor([[1]]), torch.float32)
    growth = 0.1 * math.log(4.0) + 1
    assert (cos[0, 0, 0] ** 2 + sin[0, 0, 0] ** 2).tolist() == pytest.approx([growth**2] * 8)
    # 10000^-3/4 turns in 6283 positions, less than once in 4096; 1 turns 652 times.
    turned = torch.atan2(sin, cos)[0, 0, 0, :4].tolist()
    assert turned[0] == pytest.approx(1.0)
    assert turned[3] == pytest.approx(10000**-0.75 / 4)


def test_linear_scaling() -> None:
    shape = shape_of(rope_theta=100, rope_scaling={"type": "linear", "factor": 4.0})
    cos, sin = Rotary(shape)(torch.tensor([[2]]), torch.float32)
    expected = [2 * 100 ** -(j / 4) / 4 for j in range(4)]
    assert torch.atan2(sin, cos)[0, 0, 0, :4].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"type": "dynamic", "factor": 2.0}, "type 'dynamic' are not supported .* llama3, yarn"),
        ({"rope_type": "llama3", "factor": 2.0}, "rotary scaling .* is incomplete"),
    ],
)
def test_scaling_that_is_not_supported(rope: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rotary(shape_of(rope_scaling=rope))
