"""SAM-Decoding: when a match drafts and what, what the fallback learns, what is forgotten.

May import: pytest, torch, hypothesis, tss_bench, tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.decoding.test_keystone import FAMILIES, SCOPES
from tests.decoding.test_lockstep import ROWS, options, same, trajectories
from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.eagle import Eagle
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.drafters.static_automaton import StaticAutomaton
from tss_bench.decoding.drafters.suffix_automaton import MatchRules, SamDecoding
from tss_bench.decoding.drafters.token_recycling import TokenRecycling
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.replay import replay
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance
from tss_bench.types import Scope

VOCAB = 100
SHORT = MatchRules(n_predicts=4, len_threshold=2, len_bias=1)
TREE = TreeTemplate.from_dict({"paths": [[0], [1], [0, 0]]}, "small")


class Fallback(NoDraft):
    """Proposes id 99 and notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, ...]] = []

    def begin(self, prompt: Prompt) -> None:
        self.told = [(*prompt.ids, prompt.first)]

    def propose(self, root: int, max_depth: int) -> DraftTree:
        return DraftTree.chain(root, [99])

    def observe(self, step: Step) -> None:
        self.told.append(step.accepted)


def prompt(*ids: int) -> Prompt:
    """All but the last are the prompt, which is the id that prefill gave."""
    features = torch.zeros(len(ids) - 1, VOCAB)
    return Prompt(ids[:-1], features, lambda hidden: hidden, first=ids[-1])


def proposed(drafter: SamDecoding, *ids: int, depth: int = 50) -> tuple[int, ...]:
    """Drafts behind a text; a chain."""
    drafter.begin(prompt(*ids))
    tree = drafter.propose(ids[-1], depth)
    assert tree == DraftTree.chain(ids[-1], tree.tokens[1:])
    return tree.tokens[1:]


def corpus(*documents: Sequence[int]) -> StaticAutomaton:
    return StaticAutomaton.build(documents, {})


def test_defaults_are_those_of_the_field() -> None:
    assert MatchRules() == MatchRules(n_predicts=40, len_threshold=5, len_bias=5)


def test_a_match_of_the_threshold_drafts_what_followed() -> None:
    drafter = SamDecoding(Fallback(), SHORT)
    assert proposed(drafter, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2) == (3, 4, 5, 6)
    # One id alone is below the threshold.
    assert proposed(drafter, 1, 2, 3, 4, 9, 2) == (99,)
    longer = SamDecoding(Fallback(), MatchRules(40, 3, 0))
    assert proposed(longer, 1, 2, 3, 4, 1, 2) == (99,)
    assert proposed(longer, 1, 2, 3, 4, 1, 2, 3) == (4, 1, 2, 3)


def test_a_chain_is_never_padded() -> None:
    drafter = SamDecoding(Fallback(), MatchRules(40, 2, 0), corpus([50, 51, 52], [60, 61]))
    # The text ends two ids behind the match, the document one, though both know more ids.
    assert proposed(drafter, 1, 2, 1, 2) == (1, 2)
    assert proposed(drafter, 9, 50, 51) == (52,)
    # Nothing follows 61 in its document: no match.
    assert proposed(drafter, 9, 60, 61) == (99,)


def test_no_more_is_drafted_than_may_be_emitted() -> None:
    drafter = SamDecoding(Fallback(), SHORT)
    assert proposed(drafter, 1, 2, 3, 4, 5, 1, 2, depth=2) == (3, 4)
    assert proposed(drafter, 1, 2, 3, 4, 5, 1, 2, depth=0) == ()
    assert proposed(drafter, 1, 2, 3, 4, 5, 1, 2, depth=-1) == ()


def test_the_bias_lengthens_what_a_corpus_match_needs() -> None:
    static = corpus([1, 2, 3, 4, 5])
    for bias, drafts in ((0, (4, 5)), (1, (4, 5)), (2, (99,))):
        drafter = SamDecoding(Fallback(), MatchRules(4, 2, bias), static)
        assert proposed(drafter, 9, 1, 2, 3) == drafts


@pytest.mark.parametrize(
    ("bias", "drafts"),
    [
        # The text matches 2 ids, the corpus 4: less the bias 4, 3, 2 (a tie: the text wins), 1.
        (0, (70,)),
        (1, (70,)),
        (2, (9, 7, 8, 1)),
        (3, (9, 7, 8, 1)),
    ],
)
def test_the_text_wins_a_tie(bias: int, drafts: tuple[int, ...]) -> None:
    drafter = SamDecoding(Fallback(), MatchRules(4, 2, bias), corpus([7, 8, 1, 2, 70]))
    assert proposed(drafter, 1, 2, 9, 7, 8, 1, 2) == drafts


def test_accepted_ids_go_on_matching_and_the_fallback_hears_of_every_step() -> None:
    fallback = Fallback()
    drafter = SamDecoding(fallback, SHORT)
    drafter.begin(prompt(1, 2, 3, 4, 5, 6, 1, 2))
    tree = drafter.propose(2, 9)
    assert tree.tokens == (2, 3, 4, 5, 6)
    # 3 and 4 are right, then comes 7: the end 4, 7 has not been seen.
    nothing = torch.zeros(len(tree), VOCAB)
    drafter.observe(Step(tree, nothing, nothing, Acceptance((0, 1, 2), 7)))
    assert drafter.propose(7, 9).tokens == (7, 99)
    step = Step(DraftTree.root(7), nothing[:1], nothing[:1], Acceptance((0,), 3))
    drafter.observe(step)
    drafter.observe(Step(DraftTree.root(3), nothing[:1], nothing[:1], Acceptance((0,), 4)))
    # Now 3, 4 has: its first place is in the prompt.
    assert drafter.propose(4, 9).tokens == (4, 5, 6, 1, 2)
    assert fallback.told == [(1, 2, 3, 4, 5, 6, 1, 2), (3, 4, 7), (3,), (4,)]


def test_a_rejected_chain_teaches_token_recycling() -> None:
    drafter = SamDecoding(TokenRecycling(VOCAB, TREE), SHORT)
    drafter.begin(prompt(1, 2, 3, 1, 2))
    tree = drafter.propose(2, 9)
    assert tree.tokens == (2, 3, 1, 2)
    logits = torch.zeros(len(tree), VOCAB)
    for node, best in enumerate((40, 50, 60, 70)):
        logits[node, best] = 1.0
    # The draft 3 is rejected, its logits (50 first) are learnt all the same.
    drafter.observe(Step(tree, logits, logits, Acceptance((0,), 40)))
    logits = logits[:1] * 0
    logits[0, 3] = 1.0
    drafter.observe(Step(DraftTree.root(40), logits, logits, Acceptance((0,), 3)))
    assert drafter.propose(3, 1).tokens[:2] == (3, 50)


def test_nothing_is_kept_between_requests() -> None:
    drafter = SamDecoding(Fallback(), SHORT, corpus([30, 31, 32, 33]))
    texts = [(1, 2, 3, 4, 5, 1, 2), (9, 30, 31, 32), (8, 1, 2), (8, 31)]
    alone = [proposed(SamDecoding(Fallback(), SHORT, corpus([30, 31, 32, 33])), *t) for t in texts]
    assert alone == [(3, 4, 5, 1), (33,), (99,), (99,)]
    for order in (texts, texts[::-1]):
        assert [proposed(drafter, *text) for text in order] == [
            alone[texts.index(text)] for text in order
        ]
    drafter.begin(prompt(1, 2, 3))
    drafter.reset()
    drafter.observe(Step(DraftTree.root(3), torch.zeros(1), torch.zeros(1), Acceptance((0,), 1)))
    assert drafter.propose(1, 9).tokens == (1, 99)


def test_forks_go_their_own_way() -> None:
    drafter = SamDecoding(Fallback(), SHORT, corpus([30, 31, 32, 33]))
    drafter.begin(prompt(1, 2, 3, 1))
    fork = drafter.fork()
    nothing = torch.zeros(1, VOCAB)
    for one, ids in ((fork, [30, 31, 32]), (drafter, [2])):
        for token in ids:
            one.observe(Step(DraftTree.root(0), nothing, nothing, Acceptance((0,), token)))
    assert drafter.propose(2, 9).tokens == (2, 3, 1, 2)
    assert fork.propose(32, 9).tokens == (32, 33)


@pytest.mark.parametrize("name", ["n_predicts", "len_threshold", "len_bias"])
def test_sizes_below_their_least_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least"):
        MatchRules(**{name: -1})


def test_it_can_be_replayed_where_its_fallback_can() -> None:
    assert SamDecoding(NoDraft()).replayable
    assert not SamDecoding(TokenRecycling(VOCAB, TREE)).replayable
    assert SamDecoding(NoDraft()).max_nodes == 41
    big = TreeTemplate.load("token_recycling_61")
    assert SamDecoding(TokenRecycling(VOCAB, big)).max_nodes == 61


@settings(max_examples=25, deadline=None)
@given(FAMILIES, ROWS, SCOPES, st.integers(1, 3))
def test_a_replay_equals_decoding_with_the_drafter(
    family: str, drawn: list, scope: Scope, threshold: int
) -> None:
    target = tiny.target(family)
    static = StaticAutomaton.build([prompt for prompt, _, _ in drawn], {})
    rules = MatchRules(6, threshold, 1)
    drafter = SamDecoding(Eagle(tiny.eagle_head(), target, TREE), rules, static)
    asked = [(prompt, skip, options(limit, scope)) for prompt, skip, limit in drawn]
    prompts, known = trajectories(family, asked, ())
    for one, start, row in zip(known, prompts, asked, strict=True):
        own = drafter.fork()
        own.begin(start.for_drafter(target))
        same(replay(own, one, target, tiny.tokenizer()), family, drafter, row)
