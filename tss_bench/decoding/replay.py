"""What a drafter would have got accepted on answers that are known already.

Greedy output does not depend on the drafter, so an answer is decoded once, plainly and in a
batch, and a drafter whose proposals depend on the accepted ids and their features alone (EAGLE;
not Token Recycling, which learns from rejected nodes) is run along it without the target.

May import: torch, transformers (tokenizer type), decoding/, tss_bench.types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tss_bench.decoding.answer import Answer
from tss_bench.decoding.batch_cache import move_last
from tss_bench.decoding.drafters.base import Drafter, Step
from tss_bench.decoding.drafters.eagle import Eagle
from tss_bench.decoding.drafters.eagle_rows import EagleRows, HeadPrompt
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.generate import DecodingOptions, max_depth, new_answer
from tss_bench.decoding.lockstep import Request
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree
from tss_bench.decoding.verify import Acceptance


class Recorder(NoDraft):
    """Plain decoding that keeps the feature [1, F] of each emitted id but the last, as a drafter
    with these `feature_layers` gets them."""

    def __init__(self, feature_layers: tuple[int, ...] = ()) -> None:
        self.feature_layers = feature_layers
        self.features: list[Tensor] = []

    def fork(self) -> Recorder:
        return Recorder(self.feature_layers)

    def observe(self, step: Step) -> None:
        self.features.append(step.features)


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A known greedy answer: its ids, and the features [m, F] of all of them but the last.

    Protocol `strict` only: under `paper` a step may emit ids behind the end of the answer, which
    no plain answer knows.
    """

    prompt_tokens: int
    ids: tuple[int, ...]
    features: Tensor
    options: DecodingOptions

    def __post_init__(self) -> None:
        if self.options.protocol != "strict":
            raise ValueError("answers are replayed under protocol strict only")

    @classmethod
    def of(cls, request: Request, answer: Answer) -> Trajectory:
        """A finished answer that was decoded plainly, its drafter a `Recorder`."""
        assert isinstance(request.drafter, Recorder)
        parts = request.drafter.features or [request.prompt.features[:0]]
        prompt_tokens = len(request.prompt.ids)
        return cls(prompt_tokens, tuple(answer.ids), torch.cat(parts), request.options)

    def accept(self, tree: DraftTree, emitted: int) -> Acceptance:
        """What of `tree` is right behind the first `emitted` ids of the answer."""
        path = [0]
        for wanted in self.ids[emitted:]:
            match = [node for node in tree.children[path[-1]] if tree.tokens[node] == wanted]
            if not match:
                return Acceptance(tuple(path), wanted)
            path.append(match[0])
        # The answer ended within the tree: whatever the bonus is, it is cut off.
        return Acceptance(tuple(path), self.ids[-1])

    def step(self, tree: DraftTree, emitted: int) -> Step:
        """The verified tree; only the accepted nodes have features, none has logits."""
        acceptance = self.accept(tree, emitted)
        features = self.features.new_zeros(len(tree), self.features.shape[-1])
        known = self.features[emitted - 1 : emitted - 1 + len(acceptance.path)]
        features[list(acceptance.path[: len(known)])] = known
        return Step(tree, features, features[:, :0], acceptance)

    def depth(self, answer: Answer, target: Target) -> int:
        """Deepest draft of use behind the ids that `answer` has."""
        emitted = len(answer.ids)
        past = self.prompt_tokens + emitted - 1
        return max_depth(self.options, emitted, past, target.context_length)

    def begin(self, target: Target, tokenizer: PreTrainedTokenizerBase) -> Answer:
        """The answer with its first id alone."""
        answer = new_answer(self.options, target.context_length - self.prompt_tokens, tokenizer)
        if answer.stop is None:
            answer.append_first(self.ids[0])
        return answer


@torch.inference_mode()
def replay(
    drafter: Drafter, known: Trajectory, target: Target, tokenizer: PreTrainedTokenizerBase
) -> Answer:
    """The answer as `generate` would have made it with `drafter`, counts included.

    `drafter` has begun with the prompt; its `replayable` must be true.
    """
    answer = known.begin(target, tokenizer)
    while answer.stop is None:
        depth = known.depth(answer, target)
        tree = drafter.propose(answer.ids[-1], depth).cut(depth)
        step = known.step(tree, len(answer.ids))
        answer.append_step(step.accepted, drafted=len(tree) - 1)
        if answer.stop is None:
            drafter.observe(step)
    return answer


@torch.inference_mode()
def replay_eagle(
    drafter: Eagle,
    known: Sequence[Trajectory],
    starts: Sequence[HeadPrompt],
    target: Target,
    tokenizer: PreTrainedTokenizerBase,
) -> Iterator[tuple[int, Answer]]:
    """`replay` of many answers side by side: (place in `known`, answer), as they finish.

    `starts[i]` is the prompt of `known[i]` as the head has read it. One pass of the head a tree
    level serves all answers. Dynamic trees only, see `EagleRows`.
    """
    answers = [one.begin(target, tokenizer) for one in known]
    rows = [place for place, answer in enumerate(answers) if answer.stop is None]
    yield from ((place, answers[place]) for place in set(range(len(known))) - set(rows))
    if not rows:
        return
    longest = max(len(one.ids) for one in known)
    batch = EagleRows(drafter, [starts[place] for place in rows], longest)
    while rows:
        depths = [known[place].depth(answers[place], target) for place in rows]
        trees = batch.propose([answers[place].ids[-1] for place in rows], depths)
        steps, ended = [], []
        for row, (place, tree, depth) in enumerate(zip(rows, trees, depths, strict=True)):
            step = known[place].step(tree.cut(depth), len(answers[place].ids))
            answers[place].append_step(step.accepted, drafted=len(step.tree) - 1)
            steps.append(step)
            if answers[place].stop is not None:
                ended.append(row)
        for row in reversed(ended):
            batch.drop(row)
            move_last(steps, row)
            place = move_last(rows, row)
            yield place, answers[place]
        if rows:
            batch.observe(steps)
