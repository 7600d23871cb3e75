from __future__ import annotations

from collections import Counter

import pytest
import torch
from scipy.stats import chisquare

from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance, Sampling, verify

GREEDY = Sampling()


def one_hot(*winners: int, vocab: int = 8) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(winners), vocab).float()


def test_nothing_counts_after_a_reject() -> None:
    tree = DraftTree.chain(0, [1, 2, 3, 4])
    logits = one_hot(1, 7, 3, 4, 5)
    assert verify(tree, logits, GREEDY) == Acceptance((0, 1), 7)


def test_the_matching_branch_wins() -> None:
    tree = DraftTree((0, 1, 2, 3, 4), (-1, 0, 0, 1, 2))
    assert verify(tree, one_hot(2, 0, 4, 0, 6), GREEDY) == Acceptance((0, 2, 4), 6)


def test_no_draft_gives_the_bonus_alone() -> None:
    assert verify(DraftTree.root(3), one_hot(5), GREEDY) == Acceptance((0,), 5)


def test_equal_maxima_the_lowest_id_wins() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0]] * 2)
    assert verify(DraftTree.root(0), logits[:1], GREEDY).bonus == 1
    assert verify(DraftTree.chain(0, [2]), logits, GREEDY) == Acceptance((0,), 1)
    assert verify(DraftTree.chain(0, [1]), logits, GREEDY) == Acceptance((0, 1), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("places", [[7, 4000], [1023, 1024], [0, 4999], [2500, 2501, 4096]])
def test_the_lowest_of_equal_maxima_wins_in_a_large_vocabulary(
    dtype: torch.dtype, places: list[int]
) -> None:
    logits = torch.zeros(3, 5000, dtype=dtype)
    logits[:, places] = 2.0
    tree = DraftTree((0, places[-1], places[0]), (-1, 0, 0))
    assert verify(tree, logits, GREEDY) == Acceptance((0, 2), places[0])


def test_token_zero_is_accepted_only_if_it_was_drafted() -> None:
    assert verify(DraftTree.root(5), one_hot(0), GREEDY) == Acceptance((0,), 0)
    assert verify(DraftTree.chain(5, [0]), one_hot(0, 3), GREEDY) == Acceptance((0, 1), 3)


def test_one_row_of_logits_a_node() -> None:
    with pytest.raises(ValueError, match="2 rows of logits for a tree of 1 nodes"):
        verify(DraftTree.root(0), one_hot(1, 2), GREEDY)


@pytest.mark.parametrize(
    "tree",
    [
        DraftTree.root(0),
        DraftTree.chain(0, [1]),
        DraftTree((0, 3, 1, 1), (-1, 0, 0, 0)),
        DraftTree((0, 0, 1, 2, 3), (-1, 0, 0, 0, 0)),
    ],
    ids=["no draft", "chain", "siblings, one twice", "whole vocabulary"],
)
def test_sampled_first_id_has_the_targets_distribution(tree: DraftTree) -> None:
    weights = torch.tensor([0.5, 0.25, 0.15, 0.1])
    temperature = 2.0
    logits = (weights.log() * temperature).expand(len(tree), -1)
    sampling = Sampling(temperature, torch.Generator().manual_seed(5))
    draws = 4000
    seen = Counter[int]()
    for _ in range(draws):
        acceptance = verify(tree, logits, sampling)
        block = [tree.tokens[node] for node in acceptance.path[1:]] + [acceptance.bonus]
        seen[block[0]] += 1
    observed = [seen[token] for token in range(4)]
    assert chisquare(observed, (weights * draws).tolist()).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-6])
def test_a_tiny_temperature_is_nearly_greedy(temperature: float) -> None:
    sampling = Sampling(temperature, torch.Generator().manual_seed(0))
    logits = torch.tensor([[1.0, 40.0, 39.0], [2.0, 0.0, 30.0]])
    assert verify(DraftTree.chain(0, [1]), logits, sampling) == Acceptance((0, 1), 2)
    assert verify(DraftTree.chain(0, [2]), logits, sampling) == Acceptance((0,), 1)


def test_sampling_needs_a_generator_and_a_temperature() -> None:
    with pytest.raises(ValueError, match=r"needs a torch\.Generator"):
        Sampling(1.0)
    with pytest.raises(ValueError, match="0 or more"):
        Sampling(-1.0)
