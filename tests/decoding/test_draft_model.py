"""The draft model against Hugging Face's own passes over the whole text, without a cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaForCausalLM

from tests import tiny
from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.draft_model import DraftModel
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.generate import DecodingOptions, generate
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance
from tss_bench.types import SkipSet

NOTHING = torch.zeros(0)
IDS = st.integers(3, tiny.VOCAB - 1)
DENSE = SkipSet.dense(tiny.LAYERS)


def begun(drafter: DraftModel, text: Sequence[int]) -> DraftModel:
    """The drafter after a prompt whose answer begins with the last id of `text`."""
    drafter.begin(Prompt(text[:-1], NOTHING, lambda hidden: hidden, text[-1]))
    return drafter


def step(tree: DraftTree, right: int, bonus: int) -> Step:
    """A verification that accepts the first `right` drafts of a chain."""
    return Step(tree, NOTHING, NOTHING, Acceptance(tuple(range(right + 1)), bonus))


def greedy(text: Sequence[int], count: int, vocab: int, model: LlamaForCausalLM) -> list[int]:
    """The `count` likeliest next ids below `vocab`, one after the other."""
    ids = list(text)
    with torch.no_grad():
        for _ in range(count):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1, :vocab]
            ids.append(int(logits.argmax()))
    return ids[len(text) :]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(IDS, min_size=2, max_size=12),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 4), IDS, st.integers(0, 5)), max_size=6),
    st.sampled_from([tiny.VOCAB, 60]),
)
def test_it_drafts_the_model_s_greedy_answer_whatever_was_accepted(
    text: list[int], length: int, steps: list[tuple[int, int, int]], vocab: int
) -> None:
    drafter = begun(DraftModel(tiny.draft(vocab), tiny.VOCAB, length), text)
    model = tiny.draft_model(vocab)
    for right, bonus, depth in steps:
        tree = drafter.propose(text[-1], depth)
        wanted = greedy(text, min(length, depth), tiny.VOCAB, model)
        assert tree == DraftTree.chain(text[-1], wanted)
        done = step(tree, min(right, len(wanted)), bonus)
        drafter.observe(done)
        text = [*text, *done.accepted]


def test_every_id_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.draft()
    read: list[int] = []
    prefill = model.prefill
    monkeypatch.setattr(
        model, "prefill", lambda ids, *rest: read.extend(ids[0].tolist()) or prefill(ids, *rest)
    )
    drafter = begun(DraftModel(model, tiny.VOCAB, 3), [5, 6, 7])
    first = drafter.propose(7, 9)
    # The prompt at once, so that its time is drafting time; the last draft of a chain not yet.
    assert read == [5, 6, 7, *first.tokens[1:3]]
    drafter.observe(step(first, 3, 20))
    read.clear()
    second = drafter.propose(20, 9)
    assert read == [first.tokens[3], 20, *second.tokens[1:3]]
    drafter.observe(step(second, 1, 21))
    read.clear()
    third = drafter.propose(21, 9)
    assert read == [21, *third.tokens[1:3]]


def test_the_target_as_its_own_draft_is_always_right() -> None:
    target = tiny.target()
    options = DecodingOptions(25, frozenset())
    drafter = DraftModel(target, tiny.VOCAB, 3)
    found = generate(target, drafter, [5, 6, 7, 8], DENSE, options, tiny.tokenizer())
    plain = generate(target, NoDraft(), [5, 6, 7, 8], DENSE, options, tiny.tokenizer())
    assert found.ids == plain.ids
    assert found.stats.accept_lengths == (4,) * 6


def test_ids_that_the_target_lacks_are_never_drafted() -> None:
    model = copy.deepcopy(tiny.draft_model(60))
    with torch.no_grad():
        # Rows that pad the draft's matrix become likelier than all others.
        model.lm_head.weight[tiny.VOCAB :] = 9 * model.lm_head.weight[: 60 - tiny.VOCAB]
    assert max(greedy([5, 6, 7], 1, 60, model)) >= tiny.VOCAB
    drafter = begun(DraftModel(Target(model), tiny.VOCAB, 8), [5, 6, 7])
    tokens = drafter.propose(7, 9).tokens
    assert len(tokens) == 9
    assert max(tokens) < tiny.VOCAB


def test_nothing_is_drafted_behind_an_id_that_the_draft_lacks() -> None:
    drafter = begun(DraftModel(tiny.draft(40), tiny.VOCAB, 2), [5, 6, 7])
    assert len(drafter.propose(7, 9)) == 3
    drafter.observe(step(DraftTree.root(7), 0, 40))
    assert drafter.propose(40, 9) == DraftTree.root(40)
    drafter.observe(step(DraftTree.root(40), 0, 8))
    assert drafter.propose(8, 9) == DraftTree.root(8)
    # Also where it stands in the prompt; the next request is not affected.
    assert begun(drafter, [5, 45, 7]).propose(7, 9) == DraftTree.root(7)
    assert len(begun(drafter, [5, 6, 7]).propose(7, 9)) == 3


@pytest.mark.parametrize(("text", "drafts"), [(20, 5), (21, 4), (24, 1), (25, 0), (30, 0)])
def test_drafting_ends_with_the_draft_s_context(text: int, drafts: int) -> None:
    """Of a context of 24 every position is used; the last draft needs none."""
    ids = [3 + place % 40 for place in range(text)]
    drafter = begun(DraftModel(tiny.draft(context=24), tiny.VOCAB, 5), ids)
    tree = drafter.propose(ids[-1], 9)
    wanted = greedy(ids, drafts, tiny.VOCAB, tiny.draft_model(context=24))
    assert tree == DraftTree.chain(ids[-1], wanted)
    drafter.observe(step(tree, 0, 9))
    assert len(drafter.propose(9, 9)) <= max(1, drafts)


def test_a_fork_goes_its_own_way() -> None:
    first = begun(DraftModel(tiny.draft(), tiny.VOCAB, 3), [5, 6, 7])
    second = first.fork()
    tree = first.propose(7, 9)
    first.observe(step(tree, 1, 30))
    first.propose(30, 9)
    wanted = greedy([5, 6, 7], 3, tiny.VOCAB, tiny.draft_model())
    assert second.propose(7, 9) == tree == DraftTree.chain(7, wanted)


def test_a_chain_of_no_drafts_is_refused() -> None:
    with pytest.raises(ValueError, match="num_draft_tokens must be at least 1, got 0"):
        DraftModel(tiny.draft(), tiny.VOCAB, 0)
