"""Self-generated shards as training batches of an EAGLE head.

Slot i of a sequence of n ids pairs feature i with the embedding of id i + 1; the head predicts
feature i + 1 and, through the target's head, id i + 2. There are n - 2 slots; those from the
last id of the prompt on are the ones a drafter is asked for (the answer part).

May import: torch, tqdm, tss_bench.{types, decoding} and tss_bench.training.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from tss_bench.decoding.target import Target
from tss_bench.training.batch_answers import Answers
from tss_bench.training.self_generation import (
    features_path,
    read_answers,
    read_features,
    write_features,
)
from tss_bench.types import SkipSet

# Sequences whose hidden states set the scale of all of them.
_SCALE_SAMPLE = 64
# Sequences of similar answer length that are then sorted by prompt length.
_ALIKE = 384


@dataclass(frozen=True, eq=False)
class AnsweredPrompt:
    """One answered prompt; its hidden states are rows `first` … of feature file `shard`."""

    ids: Tensor
    prompt_length: int
    sampled: bool
    shard: int
    first: int

    @property
    def slots(self) -> int:
        return len(self.ids) - 2

    @property
    def answer_slots(self) -> int:
        return len(self.ids) - 1 - self.prompt_length


@dataclass(frozen=True)
class Batch:
    """Sequences with the starts of their answer parts in column `start`; B rows, T slots.

    ids [B, T] go with features [B, T, H] at positions [B, T]; next_features [B, T, H] and
    labels [B, T] are what the slots predict. `valid` marks real slots, `sampled` [B] rows at
    temperature 1. Columns before `start` are prompts, padded on the left.
    """

    ids: Tensor
    features: Tensor
    next_features: Tensor
    labels: Tensor
    positions: Tensor
    valid: Tensor
    sampled: Tensor
    start: int

    def to(self, device: torch.device) -> Batch:
        moved = {name: value.to(device) for name, value in vars(self).items() if name != "start"}
        return Batch(**moved, start=self.start)


class Corpus:
    """The sequences of all shards; hidden states stay on disk, memory-mapped.

    `hidden_size`: the target's; None where it is not known. Raises ValueError when no sequence
    has a slot to learn from, and naming a file of hidden states that is none of its shard.
    """

    def __init__(self, shards: Sequence[Path], hidden_size: int | None = None) -> None:
        self.sequences: list[AnsweredPrompt] = []
        self._features: list[Any] = []
        for number, path in enumerate(shards):
            features, answers = read_features(features_path(path)), read_answers(path)
            hidden_size = hidden_size or features.get_shape()[-1]
            _check_shape(features_path(path), features.get_shape(), answers, hidden_size)
            self._features.append(features)
            first = 0
            rows = zip(answers.ids, answers.prompt_lengths, answers.sampled, strict=True)
            for ids, prompt_length, sampled in rows:
                sequence = AnsweredPrompt(ids, prompt_length, sampled, number, first)
                first += len(ids) - 1
                if sequence.answer_slots > 0 and prompt_length > 1:
                    self.sequences.append(sequence)
        if len(self.sequences) < 2:
            raise ValueError("the data hold fewer than two answers of two or more tokens")

    def features(self, sequence: AnsweredPrompt) -> Tensor:
        """Hidden states [n - 1, H] of one sequence, float32."""
        end = sequence.first + len(sequence.ids) - 1
        rows: Tensor = self._features[sequence.shard][sequence.first : end]
        return rows.float()

    def batch(self, sequences: Sequence[AnsweredPrompt]) -> Batch:
        """The sequences as one batch."""
        start = max(s.slots - s.answer_slots for s in sequences)
        width = start + max(s.answer_slots for s in sequences)
        rows = len(sequences)
        ids, labels, positions = (torch.zeros(rows, width, dtype=torch.long) for _ in range(3))
        valid = torch.zeros(rows, width, dtype=torch.bool)
        states = [self.features(s) for s in sequences]
        now = torch.zeros(rows, width, states[0].shape[1])
        after = torch.zeros_like(now)
        for row, (sequence, state) in enumerate(zip(sequences, states, strict=True)):
            begin = start - (sequence.slots - sequence.answer_slots)
            at = slice(begin, begin + sequence.slots)
            ids[row, at], labels[row, at] = sequence.ids[1:-1], sequence.ids[2:]
            now[row, at], after[row, at] = state[:-1], state[1:]
            positions[row, at] = torch.arange(sequence.slots)
            valid[row, at] = True
        sampled = torch.tensor([s.sampled for s in sequences])
        return Batch(ids, now, after, labels, positions, valid, sampled, start)

    def feature_scale(self) -> float:
        """The standard deviation of hidden states, over channels and tokens."""
        step = max(1, len(self.sequences) // _SCALE_SAMPLE)
        return float(torch.cat([self.features(s) for s in self.sequences[::step]]).std())


def _check_shape(path: Path, found: list[int], answers: Answers, hidden_size: int) -> None:
    """Raises ValueError unless a shard's hidden states are as many and as wide as they must be."""
    wanted = [sum(len(ids) - 1 for ids in answers.ids), hidden_size]
    if found != wanted:
        raise ValueError(
            f"{path} holds hidden states of shape {found} where the text and the model need "
            f"{wanted}; delete it, and training computes it again"
        )


def split(
    sequences: Sequence[AnsweredPrompt], share: float, seed: int
) -> tuple[list[AnsweredPrompt], list[AnsweredPrompt]]:
    """Training and held-out sequences; at least one of each."""
    order = list(sequences)
    random.Random(f"held out {seed}").shuffle(order)
    held = min(max(1, round(share * len(order))), len(order) - 1)
    return order[held:], order[:held]


def plan_batches(
    sequences: Sequence[AnsweredPrompt], slots: int, seed: int | None = None
) -> list[list[AnsweredPrompt]]:
    """Batches of at most `slots` slots with padding (a longer sequence stands alone).

    Prompts and answers that are alike in length share a batch. With a seed, lengths are blurred
    and batches shuffled, so that every epoch has other ones; without one they go by length.
    """
    rng = random.Random(f"batches {seed}")

    def blurred(length: int) -> float:
        return length if seed is None else length * rng.uniform(0.9, 1.1)

    by_answer = sorted(sequences, key=lambda s: blurred(s.answer_slots))
    order = [
        sequence
        for begin in range(0, len(by_answer), _ALIKE)
        for sequence in sorted(by_answer[begin : begin + _ALIKE], key=lambda s: blurred(s.slots))
    ]
    batches: list[list[AnsweredPrompt]] = [[]]
    for sequence in order:
        group = [*batches[-1], sequence]
        prompt = max(s.slots - s.answer_slots for s in group)
        if batches[-1] and len(group) * (prompt + max(s.answer_slots for s in group)) > slots:
            batches.append([])
        batches[-1].append(sequence)
    if seed is not None:
        rng.shuffle(batches)
    return batches


def first_tokens(sequences: Sequence[AnsweredPrompt], tokens: int) -> list[AnsweredPrompt]:
    """The first sequences that have at least `tokens` answer ids together, or all of them.

    Of the training sequences that `split` gives, fewer tokens are a part of more tokens.
    """
    chosen: list[AnsweredPrompt] = []
    for sequence in sequences:
        if tokens <= 0:
            break
        chosen.append(sequence)
        tokens -= len(sequence.ids) - sequence.prompt_length
    return chosen


def draft_vocabulary(
    sequences: Sequence[AnsweredPrompt], vocab_size: int, size: int
) -> Tensor | None:
    """The `size` most frequent ids of the answers, ascending; None when `size` covers all.

    Where the answers have fewer different ids, those of the prompts and then the lowest ids
    (the first merges of a tokenizer, its most frequent words) fill the rest.
    """
    if size >= vocab_size:
        return None
    answers = _answer_counts(sequences, vocab_size)
    prompts = torch.zeros(vocab_size, dtype=torch.long)
    for s in sequences:
        prompts += torch.bincount(s.ids[: s.prompt_length], minlength=vocab_size)
    ranked = sorted(range(vocab_size), key=lambda i: (-int(answers[i]), -int(prompts[i]), i))
    return torch.tensor(sorted(ranked[:size]))


def size_for_coverage(sequences: Sequence[AnsweredPrompt], vocab_size: int, share: float) -> int:
    """How many of the most frequent ids hold `share` of the answers' ids."""
    ranked = _answer_counts(sequences, vocab_size).sort(descending=True).values.cumsum(dim=0)
    return int((ranked < share * int(ranked[-1])).sum()) + 1


def _answer_counts(sequences: Sequence[AnsweredPrompt], vocab_size: int) -> Tensor:
    """How often each id [V] stands in the answers."""
    counts = torch.zeros(vocab_size, dtype=torch.long)
    for s in sequences:
        counts += torch.bincount(s.ids[s.prompt_length :], minlength=vocab_size)
    return counts


def coverage(sequences: Sequence[AnsweredPrompt], rows: Tensor | None) -> float:
    """Share of the answers' ids that the draft vocabulary holds."""
    if rows is None:
        return 1.0
    ids = torch.cat([s.ids[s.prompt_length :] for s in sequences])
    return float(torch.isin(ids, rows).float().mean())


def make_features(target: Target, shards: Sequence[Path], tokens: int = 4096) -> None:
    """Compute the hidden states of shards that lack them, batch by batch."""
    missing = [path for path in shards if not features_path(path).is_file()]
    for path in tqdm(missing, unit="shard", desc="features", disable=not missing):
        answers = read_answers(path)
        write_features(features_path(path), list(_hidden_states(target, answers, tokens)))


@torch.inference_mode()
def _hidden_states(target: Target, answers: Answers, tokens: int) -> Iterator[Tensor]:
    """Per row [len - 1, H]; rows of a shard are alike in length, so padding is cheap."""
    width = max(map(len, answers.ids)) - 1
    size = max(1, tokens // width)
    skip = SkipSet.dense(target.num_layers)
    for begin in range(0, len(answers.ids), size):
        group = answers.ids[begin : begin + size]
        ids = torch.zeros(len(group), width, dtype=torch.long)
        for row, sequence in enumerate(group):
            ids[row, : len(sequence) - 1] = sequence[:-1]
        cache = target.new_cache(width, batch=len(group))
        hidden = target.prefill(ids.to(target.device), cache, skip).to("cpu", torch.bfloat16)
        yield from (hidden[row, : len(s) - 1] for row, s in enumerate(group))
