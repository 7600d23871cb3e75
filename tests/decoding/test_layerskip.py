"""LayerSkip: the target drafts for itself, exactly, and runs no block twice for a node."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.decoding import reference
from tests.decoding.test_keystone import FAMILIES, PROMPTS, SCOPES, SKIPS
from tss_bench.decoding.drafters.base import Drafter, SharesTarget
from tss_bench.decoding.drafters.layerskip import LayerSkip
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.generate import DecodingOptions, Generation, generate
from tss_bench.decoding.kv_cache import KVCache
from tss_bench.decoding.lockstep import Request, read_prompt
from tss_bench.decoding.target import Target
from tss_bench.types import Protocol, Scope, SkipSet

DENSE = SkipSet.dense(tiny.LAYERS)
ENDS = frozenset({tiny.EOS})
CONFIDENCES = (0.0, 0.5, 0.999)
DRAFTERS = st.builds(
    LayerSkip,
    st.integers(1, tiny.LAYERS - 1),
    st.integers(1, 6),
    st.sampled_from(CONFIDENCES),
    st.sampled_from([ENDS, frozenset()]),
)
PROMPT = [5, 9, 30, 7, 12, 3]


def run(
    drafter: Drafter,
    prompt: list[int],
    skip: SkipSet = DENSE,
    scope: Scope = "verify",
    limit: int = 16,
    family: str = "llama",
    protocol: Protocol = "strict",
    ends: frozenset[int] = ENDS,
) -> Generation:
    options = DecodingOptions(limit, ends, scope=scope, protocol=protocol)
    return generate(tiny.target(family), drafter, prompt, skip, options, tiny.tokenizer())


@settings(max_examples=120, deadline=None)
@given(DRAFTERS, FAMILIES, PROMPTS, SKIPS, SCOPES, st.integers(1, 20))
def test_self_speculation_equals_plain_decoding(
    drafter: LayerSkip, family: str, prompt: list[int], skip: SkipSet, scope: Scope, limit: int
) -> None:
    plain = run(NoDraft(), prompt, skip, scope, limit, family)
    speculative = run(drafter, prompt, skip, scope, limit, family)
    assert speculative.ids == plain.ids
    assert speculative.text == plain.text
    assert speculative.stats.stop == plain.stats.stop
    assert sum(speculative.stats.accept_lengths) == len(plain.ids) - 1


@pytest.mark.parametrize("room", [1, 2, 3, 5])
def test_the_end_of_the_context_is_reached_and_not_passed(room: int) -> None:
    prompt = [3 + place % 40 for place in range(tiny.CONTEXT - room)]
    plain = run(NoDraft(), prompt, limit=50, ends=frozenset())
    speculative = run(LayerSkip(3, 6), prompt, limit=50, ends=frozenset())
    assert speculative.ids == plain.ids
    assert len(plain.ids) == room
    assert speculative.stats.stop == "context"


@settings(max_examples=40, deadline=None)
@given(DRAFTERS, FAMILIES, PROMPTS, SKIPS, SCOPES, st.integers(1, 12))
def test_protocol_paper_overshoots_along_the_plain_answer(
    drafter: LayerSkip, family: str, prompt: list[int], skip: SkipSet, scope: Scope, limit: int
) -> None:
    """It may run on past the limit and an end of text, with what the target says next."""
    answer = run(drafter, prompt, skip, scope, limit, family, "paper")
    plain = run(NoDraft(), prompt, skip, scope, limit + 7, family, ends=frozenset())
    room = tiny.CONTEXT - len(prompt)
    assert len(answer.ids) <= min(limit + drafter.max_nodes - 1, room + 1)
    assert answer.ids[: len(plain.ids)] == plain.ids[: len(answer.ids)]
    assert answer.stats.stop == "eos" or len(answer.ids) >= min(limit, room)


class _Recorder:
    """The blocks of a target, and which (layer, positions) each call of theirs was about."""

    def __init__(self, blocks: Any) -> None:
        self.num_layers = blocks.num_layers
        self._blocks = blocks
        self.begin = blocks.begin
        self.calls: list[tuple[int, list[int]]] = []

    def run(self, layer: int, hidden: Any, state: Any) -> Any:
        assert hidden.shape[1] == state.positions.shape[1]
        self.calls.append((layer, state.positions[0].tolist()))
        return self._blocks.run(layer, hidden, state)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("skipped", [[], [1], [0, 2]])
@pytest.mark.parametrize("exit_layer", [1, 2, 3])
@pytest.mark.parametrize("confidence", [0.0, 0.5])
def test_no_block_runs_twice_for_a_node(
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    skipped: list[int],
    exit_layer: int,
    confidence: float,
) -> None:
    skip = SkipSet.of(skipped, tiny.LAYERS)
    recorder = _Recorder(tiny.target(family)._blocks)
    monkeypatch.setattr(tiny.target(family), "_blocks", recorder)
    stats = run(LayerSkip(exit_layer, 4, confidence), PROMPT, skip, "all", family=family).stats

    nodes = stats.drafted + stats.verify_steps
    for layer in range(tiny.LAYERS):
        executed = sum(len(where) for which, where in recorder.calls if which == layer)
        assert executed == (0 if layer in skip else len(PROMPT) + nodes)
    # Step by step: a verification begins at the first active block behind the exit, and the
    # blocks before it have then seen every node of its tree once.
    first, *rest = (layer for layer in skip.active if layer >= exit_layer)
    seen: dict[int, list[int]] = {}
    steps = 0
    for layer, where in recorder.calls[len(skip.active) :]:
        if layer < exit_layer:
            seen.setdefault(layer, []).extend(where)
        elif layer == first:
            early = [one for one in skip.active if one < exit_layer]
            assert seen == dict.fromkeys(early, where)
            seen, steps = {}, steps + 1
        else:
            assert layer in rest
    assert steps == stats.verify_steps
    assert stats.drafted > 0


def simulate(
    answer: list[int],
    prompt: list[int],
    skip: SkipSet,
    drafter: tuple[int, int, float],
    family: str,
    limit: int,
) -> tuple[list[int], int]:
    """Accept lengths and number of drafts, from Hugging Face's passes of a truncated model.

    Knows the answer; every draft is made anew from the whole text so far, without a cache.
    """
    exit_layer, length, confidence = drafter
    early = skip | SkipSet.of(range(exit_layer, tiny.LAYERS), tiny.LAYERS)
    lengths, drafted, emitted = [], 0, 1
    room = min(limit, tiny.CONTEXT - len(prompt))
    while emitted < len(answer):
        drafts: list[int] = []
        with reference.without_blocks(tiny.model(family), early) as model, torch.no_grad():
            while len(drafts) < min(length, room - emitted - 1):
                ids = torch.tensor([prompt + answer[:emitted] + drafts])
                chances = model(input_ids=ids, use_cache=False).logits[0, -1].softmax(-1)
                drafts.append(int(chances.argmax()))
                if float(chances.max()) < confidence or drafts[-1] == tiny.EOS:
                    break
        known = answer[emitted:]
        right = next((i for i, draft in enumerate(drafts) if draft != known[i]), len(drafts))
        lengths.append(min(right + 1, len(known)))
        drafted += len(drafts)
        emitted += lengths[-1]
    return lengths, drafted


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["llama", "qwen2"]),
    PROMPTS,
    SKIPS,
    st.integers(1, tiny.LAYERS - 1),
    st.integers(1, 5),
    st.sampled_from(CONFIDENCES),
    st.integers(2, 14),
)
def test_counts_are_those_of_a_truncated_model_that_drafts_apart(
    family: str,
    prompt: list[int],
    skip: SkipSet,
    exit_layer: int,
    length: int,
    confidence: float,
    limit: int,
) -> None:
    answer = reference.sparse_everywhere(family, prompt, skip, limit)
    how = (exit_layer, length, confidence)
    lengths, drafted = simulate(answer, prompt, skip, how, family, limit)
    stats = run(LayerSkip(*how, ENDS), prompt, skip, "all", limit, family).stats
    assert list(stats.accept_lengths) == lengths
    assert stats.drafted == drafted


@pytest.mark.parametrize("scope", ["verify", "all"])
def test_a_target_that_skips_all_behind_the_exit_agrees_with_every_draft(scope: Scope) -> None:
    """A block skipped below the exit is skipped in the draft, too: else they would differ."""
    skip = SkipSet.of([0, 2, 3], tiny.LAYERS)
    stats = run(LayerSkip(2, 3), PROMPT, skip, scope, limit=13, ends=frozenset()).stats
    assert stats.accept_lengths == (4, 4, 4)


def test_the_cache_of_an_answer_goes_with_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny.target()
    caches: list[weakref.ref[KVCache]] = []
    new_cache = target.new_cache

    def watched(capacity: int) -> KVCache:
        cache = new_cache(capacity)
        caches.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(target, "new_cache", watched)
    drafter = LayerSkip(2, 4)
    generate(target, drafter, PROMPT, DENSE, DecodingOptions(8, ENDS), tiny.tokenizer())
    gc.collect()
    assert [cache() for cache in caches] == [None]


def test_a_fork_and_a_second_request_start_anew() -> None:
    drafter = LayerSkip(2, 4)
    first = run(drafter, PROMPT)
    other = run(drafter.fork(), PROMPT[::-1])
    assert run(drafter, PROMPT).stats.accept_lengths == first.stats.accept_lengths
    assert run(LayerSkip(2, 4), PROMPT[::-1]).ids == other.ids
    drafter.reset()
    with pytest.raises(RuntimeError, match="call attach before propose"):
        drafter.propose(5, 3)


def test_the_last_draft_is_the_first_that_ends_the_text() -> None:
    def drafted(*ends: int) -> tuple[int, ...]:
        target, drafter = tiny.target(), LayerSkip(3, 6, ends=ends)
        cache = target.new_cache(20)
        with torch.inference_mode():
            target.prefill(torch.tensor([PROMPT]), cache, DENSE)
            drafter.attach(target, cache, DENSE)
            return drafter.propose(11, 9).tokens

    chain = drafted()
    assert len(chain) == 7
    assert drafted(chain[3]) == chain[: chain.index(chain[3], 1) + 1]


def test_only_layerskip_shares_the_target() -> None:
    assert isinstance(LayerSkip(1, 1), SharesTarget)
    assert not isinstance(NoDraft(), SharesTarget)


def test_side_by_side_answers_are_refused() -> None:
    prompt = read_prompt(tiny.target(), PROMPT, DENSE)
    with pytest.raises(ValueError, match="LayerSkip drafts in the cache of the one answer"):
        Request(prompt, DENSE, LayerSkip(1, 2), DecodingOptions(4, ENDS))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 2), "exit_layer must be at least 1, got 0"),
        ((1, 0), "num_speculations must be at least 1, got 0"),
        ((1, 2, 1.5), r"confidence must be 0 to 1, got 1\.5"),
    ],
)
def test_sizes_out_of_range(sizes: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LayerSkip(*sizes)


def test_an_exit_behind_the_last_block_is_refused() -> None:
    with pytest.raises(ValueError, match="exit_layer must be 1 to 3 for a target of 4 layers, got"):
        run(LayerSkip(tiny.LAYERS, 2), PROMPT)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_an_exit_behind_all_blocks_gives_the_target_s_own_logits(family: str) -> None:
    target: Target = tiny.target(family)
    ids = torch.tensor([PROMPT])
    cache = target.new_cache(len(PROMPT))
    with torch.inference_mode():
        left = target.forward_to(tiny.LAYERS, ids, torch.arange(len(PROMPT))[None], cache, DENSE)
        assert torch.equal(target.exit_logits(left)[0], target.score(PROMPT, DENSE))
    assert cache.length == 0
