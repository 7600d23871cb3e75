"""Teacher-forced comparison of two targets on the same text: divergence, agreement, likelihood.

All skip sets and exit layers of a batch of answers share one dense pass up to their first
skipped block, and all of them share the reference's logits, which are made once for a few
positions at a time: memory does not grow with the vocabulary times the text.

May import: torch, tqdm, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm import tqdm

from tss_bench.decoding.target import Target
from tss_bench.types import SkipSet

Role = Literal["reference", "target"]

# Logits held at once by one variant, in numbers: 64 MB of float32.
_LOGITS_AT_ONCE = 2**24


@dataclass(frozen=True, eq=False)
class Answer:
    """Ids [n] of a prompt of `prompt_length` ids and its answer."""

    ids: Tensor
    prompt_length: int


@dataclass(frozen=True)
class Variant:
    """One way to run a target: with a skip set, or up to block `exit` and then norm and head."""

    role: Role
    skip: SkipSet
    exit: int | None = None

    @property
    def first(self) -> int:
        """The block from which on this differs from the dense pass."""
        if self.exit is not None:
            return self.exit + 1
        return min(self.skip, default=self.skip.num_layers)


@dataclass(frozen=True)
class Readings:
    """Sums over the positions of each answer, float64 [N] by variant, and their numbers.

    A position predicts the id after it. `divergence`: KL(dense reference || variant) in nats;
    `agreement`: positions with the same likeliest id (the lowest of equal ones) as the dense
    reference; `surprise` and `prompt_surprise`: -log p of the ids of answers and, for dense
    variants, of prompts (but the first id), in nats. Exits have agreement alone.
    """

    answer_positions: Tensor
    prompt_positions: Tensor
    agreement: dict[Variant, Tensor]
    divergence: dict[Variant, Tensor]
    surprise: dict[Variant, Tensor]
    prompt_surprise: dict[Variant, Tensor]


def variants(role: Role, sets: Iterable[SkipSet], num_layers: int) -> list[Variant]:
    """Dense, every single layer, `sets` and every exit of one target, each once."""
    dense = SkipSet.dense(num_layers)
    singles = [SkipSet.of([layer], num_layers) for layer in range(num_layers)]
    return [
        *(Variant(role, skip) for skip in dict.fromkeys([dense, *singles, *sets])),
        *(Variant(role, dense, layer) for layer in range(num_layers)),
    ]


@torch.inference_mode()
def measure(
    targets: Mapping[Role, Target],
    answers: Sequence[Answer],
    wanted: Sequence[Variant],
    tokens: int = 4096,
) -> Readings:
    """Readings of `wanted`, `tokens` ids with padding in a batch; the dense reference is in it."""
    count = len(answers)
    lengths = torch.tensor([len(answer.ids) for answer in answers])
    prompts = torch.tensor([answer.prompt_length for answer in answers])

    def zeros(chosen: Iterable[Variant]) -> dict[Variant, Tensor]:
        return {variant: torch.zeros(count, dtype=torch.float64) for variant in chosen}

    skipping = [variant for variant in wanted if variant.exit is None]
    dense = [variant for variant in skipping if not variant.skip]
    readings = Readings(
        (lengths - prompts).double(),
        (prompts - 1).double(),
        zeros(wanted),
        zeros(skipping),
        zeros(skipping),
        zeros(dense),
    )
    batches = list(_batches(lengths.tolist(), tokens))
    with tqdm(total=len(batches) * len(wanted), unit="pass", desc="fidelity") as bar:
        for members in batches:
            _measure_batch(targets, answers, members, wanted, readings, bar)
    return readings


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Answers of similar length together, longest first: the largest batch fails first."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batch and (len(batch) + 1) * lengths[batch[0]] > tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


@dataclass(frozen=True)
class _Positions:
    """Places in a batch whose next id is looked at: row, column, the next id, whose they are."""

    rows: Tensor
    columns: Tensor
    labels: Tensor
    owners: Tensor

    @classmethod
    def where(cls, mask: Tensor, labels: Tensor, members: Tensor) -> _Positions:
        rows, columns = mask.nonzero(as_tuple=True)
        return cls(rows, columns, labels[rows, columns], members[rows])

    def of(self, hidden: Tensor) -> Tensor:
        """[P, H] of [B, n, H]."""
        return hidden[self.rows.to(hidden.device), self.columns.to(hidden.device)]


def _measure_batch(
    targets: Mapping[Role, Target],
    answers: Sequence[Answer],
    members: Sequence[int],
    wanted: Sequence[Variant],
    readings: Readings,
    bar: tqdm[Any],
) -> None:
    group = [answers[place] for place in members]
    width = max(len(answer.ids) for answer in group) - 1
    ids = torch.zeros(len(group), width, dtype=torch.long)
    labels = torch.zeros_like(ids)
    for row, answer in enumerate(group):
        n = len(answer.ids) - 1
        ids[row, :n], labels[row, :n] = answer.ids[:-1], answer.ids[1:]
    place = torch.arange(width)
    begins = torch.tensor([answer.prompt_length - 1 for answer in group])[:, None]
    ends = torch.tensor([len(answer.ids) - 1 for answer in group])[:, None]
    owners = torch.tensor(members)
    in_answer = _Positions.where((place >= begins) & (place < ends), labels, owners)
    in_prompt = _Positions.where(place < begins, labels, owners)
    hidden: dict[Variant, Tensor] = {}
    for role, target in targets.items():
        own = [variant for variant in wanted if variant.role == role]
        for variant, states in _passes(target, ids.to(target.device), own):
            hidden[variant] = in_answer.of(states)
            if variant in readings.prompt_surprise:
                _read_prompt(target, in_prompt, in_prompt.of(states), variant, readings)
            bar.update()
    _read_answer(targets, in_answer, hidden, readings)


def _passes(
    target: Target, ids: Tensor, own: Sequence[Variant]
) -> Iterator[tuple[Variant, Tensor]]:
    """Hidden states [B, n, H] after the final norm, variant by variant."""
    positions = torch.arange(ids.shape[1], device=target.device).expand_as(ids)
    # Nothing of a pass stays in the cache, so all of them use one.
    cache = target.new_cache(ids.shape[1], batch=len(ids))
    inputs = target.layer_inputs(ids, positions, None, cache)
    for variant in own:
        first = target.num_layers if variant.exit is not None else variant.first
        entering = inputs[variant.first]
        yield variant, target.forward_from(first, entering, positions, None, cache, variant.skip)


def _read_prompt(
    target: Target, at: _Positions, hidden: Tensor, variant: Variant, readings: Readings
) -> None:
    for part in _chunks(len(hidden), target.vocab_size):
        logits = target.logits(hidden[part]).float()
        surprise = _surprise(logits, logits.logsumexp(-1), at.labels[part])
        _add(readings.prompt_surprise[variant], at.owners[part], surprise)


def _read_answer(
    targets: Mapping[Role, Target],
    at: _Positions,
    hidden: Mapping[Variant, Tensor],
    readings: Readings,
) -> None:
    reference = targets["reference"]
    dense = Variant("reference", SkipSet.dense(reference.num_layers))
    for part in _chunks(len(at.labels), reference.vocab_size):
        owners = at.owners[part]
        expected = reference.logits(hidden[dense][part]).float()
        scale = expected.logsumexp(-1)
        probabilities = (expected - scale[:, None]).exp()
        best = expected.max(-1).indices
        for variant, states in hidden.items():
            logits = targets[variant.role].logits(states[part])
            # `max` gives the first of equal maxima; `argmax` is slower in bfloat16.
            agrees = logits.max(-1).indices == best
            _add(readings.agreement[variant], owners, agrees)
            if variant.exit is not None:
                continue
            logits = logits.float()
            own_scale = logits.logsumexp(-1)
            # As differences, so that equal logits are exactly 0 apart.
            gap = torch.einsum("pv,pv->p", probabilities, expected - logits)
            divergence = (gap - (scale - own_scale)).clamp_min(0)
            _add(readings.divergence[variant], owners, divergence)
            surprise = _surprise(logits, own_scale, at.labels[part])
            _add(readings.surprise[variant], owners, surprise)


def _surprise(logits: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    """-log p of the labels [P]."""
    return scale - logits.gather(1, labels.to(logits.device)[:, None])[:, 0]


def _chunks(count: int, vocabulary: int) -> Iterator[slice]:
    size = max(1, _LOGITS_AT_ONCE // vocabulary)
    for begin in range(0, count, size):
        yield slice(begin, begin + size)


def _add(sums: Tensor, owners: Tensor, values: Tensor) -> None:
    sums.index_add_(0, owners, values.to("cpu", torch.float64))
