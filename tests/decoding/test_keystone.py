"""Keystone: greedy speculative output equals plain greedy decoding of the same sparse target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.decoding import reference
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.drafters.draft_model import DraftModel
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.drafters.prompt_lookup import PromptLookup
from tss_bench.decoding.drafters.static_automaton import StaticAutomaton
from tss_bench.decoding.drafters.suffix_automaton import MatchRules, SamDecoding
from tss_bench.decoding.drafters.token_recycling import TokenRecycling
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.generate import DecodingOptions, Generation, SkipRule, generate
from tss_bench.decoding.target import Target
from tss_bench.types import SkipSet

SKIPS = st.sets(st.integers(0, tiny.LAYERS - 1)).map(lambda s: SkipSet.of(s, tiny.LAYERS))
PROMPTS = st.lists(st.integers(3, tiny.VOCAB - 1), min_size=1, max_size=50)
SCOPES = st.sampled_from(["verify", "all"])
FAMILIES = st.sampled_from(["llama", "llama", "qwen2", "gemma3"])


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    size = draw(st.integers(0, 7))
    tokens = draw(st.lists(st.integers(0, tiny.VOCAB - 1), min_size=size, max_size=size))
    return tokens, [draw(st.integers(0, node)) for node in range(size)]


@st.composite
def templates(draw: st.DrawFn) -> TreeTemplate:
    paths: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 10))):
        parent = draw(st.sampled_from([(), *paths]))
        paths.append((*parent, draw(st.integers(0, 3))))
    return TreeTemplate.from_dict({"paths": list(dict.fromkeys(paths))}, "drawn")


def drafts(family: str) -> st.SearchStrategy[Target]:
    """The target itself, which is always right, and models of other vocabularies and contexts."""
    others = [(tiny.VOCAB, tiny.CONTEXT), (60, tiny.CONTEXT), (40, tiny.CONTEXT), (tiny.VOCAB, 24)]
    return st.sampled_from([tiny.target(family), *(tiny.draft(*shape) for shape in others)])


KINDS = ("adversary", "recycling", "dynamic", "static", "lookup", "draft")


@st.composite
def sams(draw: st.DrawFn, family: str) -> SamDecoding:
    """SAM-Decoding with short matches, with and without a corpus, on any fallback."""
    rules = MatchRules(draw(st.integers(1, 8)), draw(st.integers(1, 3)), draw(st.integers(0, 2)))
    documents = draw(st.none() | st.lists(PROMPTS, min_size=1, max_size=3))
    corpus = None if documents is None else StaticAutomaton.build(documents, {})
    return SamDecoding(draw(drafters(family, KINDS)), rules, corpus)


@st.composite
def drafters(draw: st.DrawFn, family: str, kinds: Sequence[str] = (*KINDS, "sam")) -> Drafter:
    kind = draw(st.sampled_from(kinds))
    if kind == "sam":
        return draw(sams(family))
    if kind == "adversary":
        return tiny.Adversary(draw(st.lists(trees(), max_size=3)))
    if kind == "recycling":
        return TokenRecycling(tiny.VOCAB, draw(templates()))
    if kind == "lookup":
        return PromptLookup(draw(st.integers(1, 4)), draw(st.integers(1, 8)))
    if kind == "draft":
        return DraftModel(draw(drafts(family)), tiny.VOCAB, draw(st.integers(1, 6)))
    make_head = draw(st.sampled_from([tiny.eagle_head, tiny.eagle3_head]))
    head = make_head(draw(st.sampled_from([None, 16])))
    if kind == "static":
        return Eagle(head, tiny.target(family), draw(templates()))
    shape = DynamicTree(draw(st.integers(2, 12)), draw(st.integers(0, 4)), draw(st.integers(1, 4)))
    return Eagle(head, tiny.target(family), shape)


def run(
    drafter: Drafter,
    prompt: list[int],
    skip: SkipSet | SkipRule,
    scope: str,
    limit: int,
    family: str,
) -> Generation:
    options = DecodingOptions(limit, frozenset({tiny.EOS}), scope=scope)  # type: ignore[arg-type]
    return generate(tiny.target(family), drafter, prompt, skip, options, tiny.tokenizer())


@settings(max_examples=150, deadline=None)
@given(st.data(), FAMILIES, PROMPTS, SKIPS, SCOPES, st.integers(1, 20))
def test_speculative_equals_plain_decoding(
    data: st.DataObject, family: str, prompt: list[int], skip: SkipSet, scope: str, limit: int
) -> None:
    drafter = data.draw(drafters(family))
    plain = run(NoDraft(), prompt, skip, scope, limit, family)
    speculative = run(drafter, prompt, skip, scope, limit, family)
    assert speculative.ids == plain.ids
    assert speculative.text == plain.text
    assert speculative.stats.stop == plain.stats.stop
    assert sum(speculative.stats.accept_lengths) == len(plain.ids) - 1


@settings(max_examples=100, deadline=None)
@given(FAMILIES, PROMPTS, SKIPS, SCOPES, st.integers(3, 20), st.integers(1, 6))
def test_right_drafts_are_accepted_and_change_nothing(
    family: str, prompt: list[int], skip: SkipSet, scope: str, limit: int, length: int
) -> None:
    """Every accepted path goes around a wrong sibling, so the cache must gather it."""
    plain = run(NoDraft(), prompt, skip, scope, limit, family)
    speculative = run(tiny.Oracle(plain.ids, length), prompt, skip, scope, limit, family)
    assert speculative.ids == plain.ids
    assert speculative.stats.stop == plain.stats.stop
    if len(plain.ids) > 2:
        assert speculative.stats.accepted > 0


@settings(max_examples=60, deadline=None)
@given(FAMILIES, PROMPTS, st.integers(1, 20))
def test_plain_decoding_equals_hub_generate(family: str, prompt: list[int], limit: int) -> None:
    ours = run(NoDraft(), prompt, SkipSet.dense(tiny.LAYERS), "verify", limit, family)
    assert list(ours.ids) == reference.hub_generate(family, prompt, limit)


@settings(max_examples=60, deadline=None)
@given(FAMILIES, PROMPTS, SKIPS, st.integers(1, 20))
def test_scope_all_equals_the_model_without_the_skipped_blocks(
    family: str, prompt: list[int], skip: SkipSet, limit: int
) -> None:
    ours = run(NoDraft(), prompt, skip, "all", limit, family)
    assert list(ours.ids) == reference.sparse_everywhere(family, prompt, skip, limit)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["llama", "qwen2"]), PROMPTS, SKIPS, st.integers(1, 20))
def test_scope_verify_equals_dense_prompt_and_sparse_answer(
    family: str, prompt: list[int], skip: SkipSet, limit: int
) -> None:
    ours = run(NoDraft(), prompt, skip, "verify", limit, family)
    assert list(ours.ids) == reference.sparse_after_prompt(family, prompt, skip, limit)


@settings(max_examples=25, deadline=None)
@given(st.data(), FAMILIES, PROMPTS, SKIPS, SCOPES, st.integers(1, 12))
def test_a_chosen_set_answers_as_the_same_set_does(
    data: st.DataObject, family: str, prompt: list[int], skip: SkipSet, scope: str, limit: int
) -> None:
    drafter = data.draw(drafters(family))
    asked: list[torch.Tensor] = []

    def rule(features: torch.Tensor) -> SkipSet:
        asked.append(features)
        return skip

    given = run(drafter, prompt, skip, scope, limit, family)
    assert run(drafter, prompt, rule, scope, limit, family).ids == given.ids
    dense = SkipSet.dense(tiny.LAYERS)
    target = tiny.target(family)
    expected = target.prefill(torch.tensor([prompt]), target.new_cache(len(prompt)), dense)[0]
    (features,) = asked
    assert torch.allclose(features, expected, atol=1e-5)
