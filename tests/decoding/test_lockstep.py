"""Answers decoded side by side, and replayed ones, against `generate` one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from tests import tiny
from tests.decoding.test_keystone import FAMILIES, PROMPTS, SCOPES, SKIPS, drafters
from tss_bench.decoding.answer import Answer
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.eagle_rows import HeadPrompt
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.decoding.generate import DecodingOptions, generate
from tss_bench.decoding.lockstep import (
    ReadPrompt,
    Request,
    capacity_for,
    decode_together,
    read_prompt,
)
from tss_bench.decoding.replay import Recorder, Trajectory, replay, replay_eagle
from tss_bench.decoding.target import Target
from tss_bench.types import Protocol, Scope, SkipSet

ROWS = st.lists(st.tuples(PROMPTS, SKIPS, st.integers(0, 14)), min_size=1, max_size=6)
PROTOCOLS = st.sampled_from(["strict", "strict", "paper"])
DENSE = SkipSet.dense(tiny.LAYERS)


def options(
    limit: int, scope: Scope = "verify", protocol: Protocol = "strict", stop: tuple[str, ...] = ()
) -> DecodingOptions:
    return DecodingOptions(limit, frozenset({tiny.EOS}), stop, scope=scope, protocol=protocol)


def requests(
    family: str, rows: Sequence[tuple[list[int], SkipSet, DecodingOptions]], drafter: Drafter
) -> list[Request]:
    """Requests that share a prefill wherever prompt and prefill are the same."""
    target = tiny.target(family)
    read: dict[tuple[tuple[int, ...], SkipSet], ReadPrompt] = {}
    made = []
    for place, (prompt, skip, how) in enumerate(rows):
        prefill = skip if how.scope == "all" else DENSE
        key = (tuple(prompt), prefill)
        read[key] = read.get(key) or read_prompt(target, prompt, prefill, drafter.feature_layers)
        own = drafter.fork()
        own.begin(read[key].for_drafter(target))
        made.append(Request(read[key], skip, own, how, tag=place))
    return made


def together(family: str, asked: Sequence[Request], rows: int) -> list[Answer]:
    waiting = deque(asked)
    capacity = max(capacity_for(one.options, one.drafter.max_nodes, tiny.CONTEXT) for one in asked)
    answers: dict[int, Answer] = {}
    for request, answer in decode_together(
        tiny.target(family),
        lambda: waiting.popleft() if waiting else None,
        tiny.tokenizer(),
        rows=rows,
        capacity=capacity,
    ):
        assert request.tag not in answers
        answers[request.tag] = answer
    return [answers[place] for place in range(len(asked))]


def alone(family: str, drafter: Drafter, prompt: list[int], skip: SkipSet, how: DecodingOptions):
    return generate(tiny.target(family), drafter, prompt, skip, how, tiny.tokenizer())


def same(answer: Answer, family: str, drafter: Drafter, row: tuple) -> None:
    """Ids, text and all counts of an answer are those of `generate`."""
    expected = alone(family, drafter, *row)
    found = answer.stats(len(row[0]))
    assert tuple(answer.ids) == expected.ids
    assert answer.text() == expected.text
    counts = ("accept_lengths", "drafted", "accepted", "stop", "limit_clamped", "verify_steps")
    for name in counts:
        assert getattr(found, name) == getattr(expected.stats, name), name


@settings(max_examples=120, deadline=None)
@given(st.data(), FAMILIES, ROWS, SCOPES, PROTOCOLS, st.integers(1, 4))
def test_side_by_side_equals_one_after_the_other(
    data: st.DataObject, family: str, drawn: list, scope: Scope, protocol: Protocol, rows: int
) -> None:
    drafter = data.draw(drafters(family))
    asked = [(prompt, skip, options(limit, scope, protocol)) for prompt, skip, limit in drawn]
    answers = together(family, requests(family, asked, drafter), rows)
    for answer, row in zip(answers, asked, strict=True):
        same(answer, family, drafter, row)


@settings(max_examples=120, deadline=None)
@given(
    st.data(),
    FAMILIES,
    ROWS,
    SCOPES,
    st.sampled_from([(), ("t17",), ("t5 t6", "t30")]),
    st.booleans(),
)
def test_a_replay_equals_decoding_with_the_drafter(
    data: st.DataObject, family: str, drawn: list, scope: Scope, stop: tuple, static: bool
) -> None:
    target = tiny.target(family)
    shape = DynamicTree(
        data.draw(st.integers(2, 12)), data.draw(st.integers(0, 4)), data.draw(st.integers(1, 4))
    )
    template = TreeTemplate.from_dict({"paths": [[0], [1], [0, 0], [0, 1], [0, 0, 0]]}, "drawn")
    make_head = data.draw(st.sampled_from([tiny.eagle_head, tiny.eagle3_head]))
    head = make_head(data.draw(st.sampled_from([None, 16])))
    drafter = Eagle(head, target, template if static else shape)
    asked = [(prompt, skip, options(limit, scope, stop=stop)) for prompt, skip, limit in drawn]
    prompts, known = trajectories(family, asked, drafter.feature_layers)
    if static:
        for one, prompt, row in zip(known, prompts, asked, strict=True):
            own = drafter.fork()
            own.begin(prompt.for_drafter(target))
            same(replay(own, one, target, tiny.tokenizer()), family, drafter, row)
        return
    starts = [HeadPrompt.read(drafter.fork(), one.for_drafter(target)) for one in prompts]
    found = dict(replay_eagle(drafter, known, starts, target, tiny.tokenizer()))
    assert sorted(found) == list(range(len(asked)))
    for place, row in enumerate(asked):
        same(found[place], family, drafter, row)


@settings(max_examples=25, deadline=None)
@given(st.data(), FAMILIES, PROMPTS, SKIPS, st.integers(1, 14), SCOPES)
def test_every_replayable_drafter_can_be_replayed(
    data: st.DataObject, family: str, prompt: list[int], skip: SkipSet, limit: int, scope: Scope
) -> None:
    drafter = data.draw(drafters(family).filter(lambda one: one.replayable))
    row = (prompt, skip, options(limit, scope))
    (read,), (known,) = trajectories(family, [row], drafter.feature_layers)
    own = drafter.fork()
    own.begin(read.for_drafter(tiny.target(family)))
    # A prompt is read once and forked for each of its answers.
    for forked in (own.fork(), own.fork()):
        same(replay(forked, known, tiny.target(family), tiny.tokenizer()), family, drafter, row)


def trajectories(
    family: str, asked: Sequence[tuple], feature_layers: tuple[int, ...]
) -> tuple[list[ReadPrompt], list[Trajectory]]:
    made = requests(family, asked, Recorder(feature_layers))
    answers = together(family, made, rows=4)
    known = []
    for request, answer in zip(made, answers, strict=True):
        assert isinstance(request.drafter, Recorder)
        kept = request.drafter.features
        features = torch.cat(kept) if kept else request.prompt.features[:0]
        known.append(
            Trajectory(len(request.prompt.ids), tuple(answer.ids), features, request.options)
        )
    return [request.prompt for request in made], known


def test_rotary_embeddings_that_depend_on_the_longest_row_are_refused() -> None:
    config = LlamaConfig(
        **tiny._SHAPE,
        rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0},
    )
    target = Target(LlamaForCausalLM(config).eval())
    with pytest.raises(ValueError, match=r"type dynamic .* --evaluator sequential"):
        target.new_batch(2, 8)


def test_a_generous_limit_takes_no_more_than_the_context() -> None:
    # Two trees of three nodes and the node that keeps a single row company.
    assert capacity_for(options(10**9), 3, tiny.CONTEXT) == tiny.CONTEXT + 7
    assert capacity_for(options(5), 3, tiny.CONTEXT) == 5 + 7


def test_drafters_with_other_features_are_refused_side_by_side() -> None:
    asked = [
        *requests("llama", [([5], DENSE, options(3))], Recorder()),
        *requests("llama", [([5], DENSE, options(3))], Recorder((1, 2))),
    ]
    with pytest.raises(ValueError, match=r"the same features, got the layers \[\(\), \(1, 2\)\]"):
        together("llama", asked, rows=2)


def test_sampled_requests_are_refused() -> None:
    (request,) = requests("llama", [([5], DENSE, options(3))], Recorder())
    warm = replace(request.options, temperature=1.0)
    with pytest.raises(ValueError, match="greedy; use generate to sample"):
        replace(request, options=warm)
