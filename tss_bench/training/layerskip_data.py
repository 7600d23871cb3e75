"""Self-generated shards as training batches of a whole model.

May import: torch, tss_bench.training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tss_bench.training.eagle_data import AnsweredPrompt, Corpus


@dataclass(frozen=True)
class TextBatch:
    """B sequences padded on the right to n inputs; input i predicts id i + 1.

    ids [B, n]; labels [B, n]; features [B, n, H] are the untouched model's last hidden states;
    prompt_lengths [B]. `answer` bool [B, n] marks the inputs that predict a token of the answer,
    `prompt` those that predict one of the prompt.
    """

    ids: Tensor
    labels: Tensor
    features: Tensor
    prompt_lengths: Tensor
    answer: Tensor
    prompt: Tensor

    def to(self, device: torch.device) -> TextBatch:
        return TextBatch(**{name: value.to(device) for name, value in vars(self).items()})


def text_batch(corpus: Corpus, sequences: Sequence[AnsweredPrompt]) -> TextBatch:
    """The sequences as one batch."""
    width = max(len(s.ids) for s in sequences) - 1
    shape = (len(sequences), width)
    ids, labels = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    states = [corpus.features(s) for s in sequences]
    features = torch.zeros(*shape, states[0].shape[1])
    for row, (sequence, state) in enumerate(zip(sequences, states, strict=True)):
        n = len(sequence.ids) - 1
        ids[row, :n], labels[row, :n] = sequence.ids[:-1], sequence.ids[1:]
        features[row, :n] = state
    lengths = torch.tensor([len(s.ids) - 1 for s in sequences])
    prompts = torch.tensor([s.prompt_length for s in sequences])
    place = torch.arange(width)
    prompt = place < prompts[:, None] - 1
    answer = (place < lengths[:, None]) & ~prompt
    return TextBatch(ids, labels, features, prompts, answer, prompt)


def loss_positions(batch: TextBatch, prompt_share: float, generator: torch.Generator) -> Tensor:
    """Inputs that count in the loss, bool [B, n]: all of the answer, a share of the prompt."""
    draws = torch.rand(batch.prompt.shape, generator=generator).to(batch.prompt.device)
    return batch.answer | (batch.prompt & (draws < prompt_share))
