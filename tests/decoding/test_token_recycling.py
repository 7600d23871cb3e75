from __future__ import annotations

import pytest
import torch

from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.token_recycling import TokenRecycling, top_candidates
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance

VOCAB = 12
TREE = TreeTemplate.from_dict({"paths": [[0], [1], [0, 0], [1, 0], [0, 0, 0]]}, "small")


def rows(*rankings: list[int]) -> torch.Tensor:
    """Logits whose best ids are the given ones, in order."""
    logits = torch.zeros(len(rankings), VOCAB)
    for row, ranking in enumerate(rankings):
        for place, token in enumerate(ranking):
            logits[row, token] = 10 - place
    return logits


def prompt(ids: list[int], *rankings: list[int]) -> Prompt:
    return Prompt(ids, rows(*rankings), lambda features: features, first=0)


def test_an_unknown_token_proposes_nothing() -> None:
    drafter = TokenRecycling(VOCAB, TREE)
    drafter.begin(prompt([3], [4, 5]))
    assert drafter.propose(9, 8) == DraftTree.root(9)


def test_the_template_is_filled_from_the_rows_of_the_tokens() -> None:
    drafter = TokenRecycling(VOCAB, TREE)
    drafter.begin(prompt([3, 4, 5], [4, 5], [6, 7], [8, 9]))
    # root 3 -> 4, 5; 4 -> 6; 5 -> 8; 6 is unknown, so the deepest node is left out.
    assert drafter.propose(3, 8) == DraftTree((3, 4, 5, 6, 8), (-1, 0, 0, 1, 2))
    assert drafter.propose(3, 1) == DraftTree((3, 4, 5), (-1, 0, 0))


def test_later_rows_win_and_rejected_nodes_teach() -> None:
    drafter = TokenRecycling(VOCAB, TREE)
    drafter.begin(prompt([3, 3], [4, 5], [6, 7]))
    assert drafter.propose(3, 1).tokens == (3, 6, 7)
    tree = DraftTree((3, 6, 7), (-1, 0, 0))
    logits = rows([8, 9], [10, 11], [1, 2])
    drafter.observe(Step(tree, logits, logits, Acceptance((0,), 8)))
    assert drafter.propose(3, 1).tokens == (3, 8, 9)
    assert drafter.propose(6, 1).tokens == (6, 10, 11)
    assert drafter.propose(7, 1).tokens == (7, 1, 2)


def test_state_request_forgets_and_state_run_remembers() -> None:
    for state, expected in (("request", (3,)), ("run", (3, 4, 5))):
        drafter = TokenRecycling(VOCAB, TREE, state)  # type: ignore[arg-type]
        drafter.begin(prompt([3], [4, 5]))
        drafter.begin(prompt([7], [8, 9]))
        assert drafter.propose(3, 1).tokens == expected
        drafter.reset()
        assert drafter.propose(7, 1) == DraftTree.root(7)


def test_a_long_prompt_is_learnt_in_pieces() -> None:
    ids = [i % VOCAB for i in range(300)]
    drafter = TokenRecycling(VOCAB, TREE)
    drafter.begin(prompt(ids, *([(i + 1) % VOCAB, (i + 2) % VOCAB] for i in ids)))
    assert drafter.propose(11, 1).tokens == (11, 0, 1)


def test_equal_logits_rank_the_lower_id_first() -> None:
    logits = torch.tensor([[1.0, 3.0, 5.0, 3.0, 5.0, 0.0]])
    assert top_candidates(logits, 4).tolist() == [[2, 4, 1, 3]]


def test_a_tree_wider_than_the_memory_is_refused() -> None:
    wide = TreeTemplate.from_dict({"paths": [[rank] for rank in range(9)]}, "wide")
    with pytest.raises(ValueError, match="'wide' has 9 children"):
        TokenRecycling(VOCAB, wide)


def test_an_unknown_state_is_refused() -> None:
    with pytest.raises(ValueError, match="'request' or 'run', got 'forever'"):
        TokenRecycling(VOCAB, TREE, "forever")  # type: ignore[arg-type]
