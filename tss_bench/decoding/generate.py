"""The decoding loop: propose -> forward -> verify -> keep -> observe, with stop rules and clocks.

May import: torch, transformers (tokenizer type), decoding/, tss_bench.types, tss_bench.protocols.
Knows nothing of chat templates, tasks, domains or files. A method is a drafter; there is one loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tss_bench.decoding.answer import Answer, Clock
from tss_bench.decoding.capture import Capture
from tss_bench.decoding.drafters.base import Drafter, Prompt, SharesTarget, Step
from tss_bench.decoding.kv_cache import KVCache
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Sampling, verify
from tss_bench.protocols import StopRule
from tss_bench.types import GenerationStats, Protocol, Scope, SkipSet

SkipRule = Callable[[Tensor], SkipSet]
"""Chooses the skip set of an answer from the prompt's dense features [n, H]."""

T = TypeVar("T")


@dataclass(frozen=True)
class DecodingOptions:
    """How one answer is decoded; names and meanings as in definitions.md."""

    max_new_tokens: int
    eos_ids: frozenset[int]
    stop_strings: tuple[str, ...] = ()
    temperature: float = 0.0
    seed: int = 0
    scope: Scope = "verify"
    protocol: Protocol = "strict"

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise ValueError(f"max_new_tokens must be 0 or more, got {self.max_new_tokens}")
        if "" in self.stop_strings:
            raise ValueError("an empty stop string would end every answer at once")


@dataclass(frozen=True)
class Generation:
    """An answer: its ids (end-of-text included), its text (without it) and its counts."""

    ids: tuple[int, ...]
    text: str
    stats: GenerationStats


def generate(
    target: Target,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    skip: SkipSet | SkipRule,
    options: DecodingOptions,
    tokenizer: PreTrainedTokenizerBase,
) -> Generation:
    """Answer one prompt with the sparse target `skip`, or with the one that a rule chooses.

    Greedy output equals plain greedy decoding of the same sparse target, whatever the drafter.
    A rule is asked once, after the dense prefill, if the answer has any id; under scope `all` a
    sparse prefill follows. Its time is part of the prefill's. The limit is clamped to the context
    (`limit_clamped`). Raises ValueError for an empty prompt or one that leaves no room in the
    context, and for a skip set of another depth.
    """
    return finish(generate_steps(target, drafter, prompt_ids, skip, options, tokenizer))


def generate_steps(
    target: Target,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    skip: SkipSet | SkipRule,
    options: DecodingOptions,
    tokenizer: PreTrainedTokenizerBase,
) -> Generator[Answer, None, Generation]:
    """As `generate`, but hands out the answer whenever it has grown and is not at its end.

    The time that the caller takes between two steps is not counted.
    """
    if isinstance(skip, SkipSet):
        target.check(skip)
    check_prompt(prompt_ids, target.context_length)
    clock = Clock(target.device)
    answer = new_answer(options, target.context_length - len(prompt_ids), tokenizer)
    if answer.stop is None:
        steps = _decode(target, drafter, list(prompt_ids), skip, options, answer, clock)
        while _advance(steps):
            yield answer
            clock.resume()
    text = answer.text()
    stats = answer.stats(len(prompt_ids), clock, clock.wall())
    if isinstance(drafter, SharesTarget):
        drafter.detach()
    return Generation(tuple(answer.ids), text, stats)


def finish(steps: Generator[Any, None, T]) -> T:
    """Run a generator to its end, for what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _advance(steps: Iterator[Any]) -> bool:
    # The mode belongs to the thread: it must not stay on while the caller has its turn.
    with torch.inference_mode():
        return next(steps, None) is not None


def check_prompt(prompt_ids: Sequence[int], context_length: int) -> None:
    """Raises ValueError for a prompt that cannot be answered."""
    if not prompt_ids:
        raise ValueError("the prompt is empty; give at least one token")
    if len(prompt_ids) >= context_length:
        raise ValueError(
            f"a prompt of {len(prompt_ids)} tokens leaves no room for an answer in a context of "
            f"{context_length}; shorten the prompt"
        )


def new_answer(options: DecodingOptions, room: int, tokenizer: PreTrainedTokenizerBase) -> Answer:
    """An empty answer; `room` is how many positions of the context the prompt leaves."""
    clamped = room < options.max_new_tokens
    rule = StopRule(
        eos_ids=options.eos_ids,
        limit=room if clamped else options.max_new_tokens,
        limit_reason="context" if clamped else "length",
        protocol=options.protocol,
    )
    return Answer(rule, options.stop_strings, tokenizer)


def max_depth(options: DecodingOptions, emitted: int, past: int, context_length: int) -> int:
    """Deepest draft of use behind `past` cached positions, `emitted` of the answer's ids emitted.

    The bonus needs one of the ids that are left; protocol `paper` may overshoot the limit.
    """
    in_context = context_length - 1 - past
    if options.protocol == "paper":
        return in_context
    # The answer's last id is not in the cache yet.
    room = context_length - (past - emitted + 1)
    return min(in_context, min(options.max_new_tokens, room) - emitted - 1)


def _decode(
    target: Target,
    drafter: Drafter,
    prompt_ids: list[int],
    rule: SkipSet | SkipRule,
    options: DecodingOptions,
    answer: Answer,
    clock: Clock,
) -> Iterator[Answer]:
    sampling = _sampling(options, target.device)
    shares = drafter if isinstance(drafter, SharesTarget) else None

    # 1. Prefill: the skip set, the first id, and what the drafter learns from the prompt.
    cache, skip = _begin(target, drafter, prompt_ids, rule, options, answer, clock, sampling)

    while answer.stop is None:
        yield answer

        # 2. Draft, no deeper than the answer or the context may still grow.
        depth = max_depth(options, len(answer.ids), cache.length, target.context_length)
        tree = drafter.propose(answer.ids[-1], depth).cut(depth)
        clock.lap("draft")

        # 3. Verify the whole tree in one pass of the sparse target, keep the accepted path.
        capture = Capture(drafter.feature_layers)
        hidden = _forward_tree(target, tree, cache, skip, shares, capture)
        logits = target.logits(hidden)
        acceptance = verify(tree, logits, sampling)
        cache.keep(acceptance.path)
        clock.lap("verify")

        # 4. Emit what the stop rules leave of it; let the drafter learn.
        step = Step(tree, capture.features(hidden[None])[0], logits, acceptance)
        answer.append_step(step.accepted, drafted=len(tree) - 1)
        if answer.stop is None:
            drafter.observe(step)
        clock.lap("draft")


def _begin(
    target: Target,
    drafter: Drafter,
    prompt_ids: list[int],
    rule: SkipSet | SkipRule,
    options: DecodingOptions,
    answer: Answer,
    clock: Clock,
    sampling: Sampling,
) -> tuple[KVCache, SkipSet]:
    """The cache that holds the prompt, and the answer's skip set; the first id is emitted."""
    room = min(options.max_new_tokens, target.context_length - len(prompt_ids))
    cache = target.new_cache(len(prompt_ids) + room + drafter.max_nodes)
    capture = Capture(drafter.feature_layers)
    skip, hidden = _prefill(target, prompt_ids, rule, options.scope, cache, capture)
    last = DraftTree.root(prompt_ids[-1])
    first = verify(last, target.logits(hidden[-1:]), sampling).bonus
    answer.append_first(first)
    clock.lap("prefill")
    if answer.stop is None:
        if isinstance(drafter, SharesTarget):
            drafter.attach(target, cache, skip)
        features = capture.features(hidden[None])[0]
        drafter.begin(Prompt(prompt_ids, features, target.logits, first))
    clock.lap("draft")
    return cache, skip


def _prefill(
    target: Target,
    prompt_ids: list[int],
    rule: SkipSet | SkipRule,
    scope: Scope,
    cache: KVCache,
    capture: Capture,
) -> tuple[SkipSet, Tensor]:
    """The answer's skip set, and the hidden states [n, H] of its prompt, which `cache` holds."""
    row = torch.tensor([prompt_ids], device=target.device)
    dense = SkipSet.dense(target.num_layers)
    first = rule if isinstance(rule, SkipSet) and scope == "all" else dense
    hidden = target.prefill(row, cache, first, capture)[0]
    if isinstance(rule, SkipSet):
        return rule, hidden
    skip = rule(hidden)
    target.check(skip)
    if scope == "all" and skip != dense:
        cache.truncate(0)
        capture.clear()
        hidden = target.prefill(row, cache, skip, capture)[0]
    return skip, hidden


def _forward_tree(
    target: Target,
    tree: DraftTree,
    cache: KVCache,
    skip: SkipSet,
    shares: SharesTarget | None,
    capture: Capture,
) -> Tensor:
    """Hidden states [n, H] of a tree's nodes, the root at the position behind the cache."""
    first = 0 if shares is None else shares.exit_layer
    if shares is None:
        entering = target.embed(torch.tensor([tree.tokens], device=target.device))
    else:
        entering = shares.entering(tree)[None]
    positions = torch.tensor([tree.depths], device=target.device) + cache.length
    mask = tree.mask(cache.length, target.device)[None] if len(tree) > 1 else None
    return target.forward_from(first, entering, positions, mask, cache, skip, capture)[0]


def _sampling(options: DecodingOptions, device: torch.device) -> Sampling:
    if options.temperature == 0:
        return Sampling()
    generator = torch.Generator(device=device).manual_seed(options.seed)
    return Sampling(options.temperature, generator)
