"""Answer many prompts with the target, greedily or at temperature 1, some of them at a time.

Knows nothing of recipes, shards or files, and nothing of drafts: with rows enough a pass is bound
by arithmetic, and a rejected draft would cost as much as an id.

May import: torch, transformers, tss_bench.{types, decoding}.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tss_bench.decoding.batch_cache import Prefix, move_last
from tss_bench.decoding.target import Target
from tss_bench.decoding.verify import best_ids
from tss_bench.types import SkipSet

# Free rows wait until this share of all is free: prompts are read faster a few at a time.
_REFILL_SHARE = 1 / 16
# Prompts are read together up to this many tokens, padding included.
_PROMPT_TOKENS = 4096


@dataclass(frozen=True)
class Answers:
    """Answered prompts: row i is prompt ids + answer ids, `prompt_lengths[i]` of them the prompt.

    `sampled[i]` tells temperature 1 from greedy. `features[i]` [len(ids[i]) - 1, H] are the
    hidden states after the final norm of all ids but the last; None when they were not kept.
    """

    ids: list[Tensor]
    prompt_lengths: list[int]
    sampled: list[bool]
    features: list[Tensor] | None = None

    @property
    def new_tokens(self) -> int:
        return sum(len(row) for row in self.ids) - sum(self.prompt_lengths)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of one user message in the tokenizer's chat template; plain text for a base model."""
    if tokenizer.chat_template is None:
        return list(tokenizer(text + "\n\n")["input_ids"])
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(str(rendered), add_special_tokens=False)["input_ids"])


@torch.inference_mode()
def answer_prompts(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    sampled: Sequence[bool],
    max_new_tokens: int,
    eos: frozenset[int],
    seed: int,
    rows: int,
    keep_features: bool = True,
) -> Answers:
    """Answer all prompts, at most `rows` at once, prompt i greedily or at temperature 1.

    A row whose answer ends goes to the next prompt. An answer depends on its prompt, its place in
    `prompts` and the seed; on the answers beside it only as far as products round differently.
    The end id belongs to the answer. Prompts of similar length waste the least on padding.
    Raises ValueError for a prompt that is empty or leaves no room in the context.
    """
    longest = max(map(len, prompts))
    if not min(map(len, prompts)) or longest + max_new_tokens > target.context_length:
        raise ValueError(
            f"prompts of 1 … {target.context_length - max_new_tokens} tokens fit this target "
            f"with {max_new_tokens} new ones, got {min(map(len, prompts))} … {longest}"
        )
    answers = [
        _Answer(list(prompt), random.Random(f"answer {seed} {place}") if warm else None)
        for place, (prompt, warm) in enumerate(zip(prompts, sampled, strict=True))
    ]
    batch = _Batch(target, min(rows, len(prompts)), max_new_tokens, eos, keep_features)
    waiting = deque(answers)
    while batch.fill(waiting):
        batch.step()
    return Answers(
        [torch.tensor(answer.prompt + answer.new) for answer in answers],
        [len(answer.prompt) for answer in answers],
        list(sampled),
        [torch.cat(answer.features) for answer in answers] if keep_features else None,
    )


@dataclass(eq=False)
class _Answer:
    """An answer while it grows; `draws` is None where it is greedy."""

    prompt: list[int]
    draws: random.Random | None
    new: list[int] = field(default_factory=list)
    features: list[Tensor] = field(default_factory=list)


class _Batch:
    """The answers that grow at the moment, one a row."""

    def __init__(
        self,
        target: Target,
        rows: int,
        max_new_tokens: int,
        eos: frozenset[int],
        keep_features: bool,
    ) -> None:
        self._target = target
        self._skip = SkipSet.dense(target.num_layers)
        self._max_new_tokens, self._eos = max_new_tokens, eos
        self._keep_features = keep_features
        self._rows, self._running = rows, list[_Answer]()
        self._refill = max(1, round(rows * _REFILL_SHARE))
        self._cache = target.new_prompt_batch(rows)

    def fill(self, waiting: deque[_Answer]) -> bool:
        """Begin waiting answers if enough rows are free; whether any answer is left to grow."""
        free = self._rows - len(self._running)
        while waiting and free and (free >= self._refill or not self._running):
            self._begin(_first_of(waiting, free))
            free = self._rows - len(self._running)
        return bool(self._running)

    def step(self) -> None:
        """Run the last id of every answer and give each its next one."""
        device = self._target.device
        ids = torch.tensor([[answer.new[-1]] for answer in self._running], device=device)
        self._cache.open(1)
        mask = self._cache.visible(torch.ones(len(ids), 1, 1, dtype=torch.bool, device=device))
        positions = self._cache.positions()[:, None]
        skips = [self._skip] * len(ids)
        hidden = self._target.forward_rows(ids, positions, mask, self._cache, skips)
        self._cache.keep([(0,)] * len(ids))
        self._record(self._running, hidden, [1] * len(ids))
        ended = self._grow(self._running, hidden[:, 0])
        for row in reversed(range(len(ids))):
            if ended[row]:
                self._cache.drop(row)
                move_last(self._running, row)

    def _begin(self, answers: Sequence[_Answer]) -> None:
        """Read the prompts, padded on the right, so that no mask is needed: what comes behind a
        prompt is seen by none of its ids."""
        device = self._target.device
        lengths = [len(answer.prompt) for answer in answers]
        ids = torch.zeros(len(answers), max(lengths), dtype=torch.long)
        for row, answer in enumerate(answers):
            ids[row, : lengths[row]] = torch.tensor(answer.prompt)
        cache = self._target.new_cache(max(lengths), batch=len(answers))
        hidden = self._target.prefill(ids.to(device), cache, self._skip)
        self._record(answers, hidden, lengths)
        # The last id of an answer is never run.
        self._cache.reserve(max(lengths) + self._max_new_tokens - 1)
        last = hidden[torch.arange(len(answers)), torch.tensor(lengths) - 1]
        for row, (answer, ended) in enumerate(zip(answers, self._grow(answers, last), strict=True)):
            if not ended:
                self._cache.add(Prefix.of(cache, row).start(lengths[row]))
                self._running.append(answer)

    def _record(self, answers: Sequence[_Answer], hidden: Tensor, counts: Sequence[int]) -> None:
        """Keep the hidden states of the first `counts[i]` ids of row i, if they are wanted."""
        if self._keep_features:
            kept = hidden.to("cpu", torch.bfloat16)
            for row, (answer, count) in enumerate(zip(answers, counts, strict=True)):
                answer.features.append(kept[row, :count].clone())

    def _grow(self, answers: Sequence[_Answer], hidden: Tensor) -> list[bool]:
        """Give every answer its next id after the hidden states [B, H]; which of them end."""
        chosen = choose(self._target.logits(hidden), [answer.draws for answer in answers])
        for answer, token in zip(answers, chosen, strict=True):
            answer.new.append(token)
        return [
            answer.new[-1] in self._eos or len(answer.new) == self._max_new_tokens
            for answer in answers
        ]


def choose(logits: Tensor, draws: Sequence[random.Random | None]) -> list[int]:
    """An id for each row of logits [B, V]: the best one, or where there are draws one that the
    next draw picks with the probability the logits give it."""
    ids = best_ids(logits)
    warm = [row for row, draw in enumerate(draws) if draw is not None]
    if warm:
        heaped = logits[warm].float().softmax(dim=-1).cumsum(dim=-1)
        points = [[draw.random()] for draw in draws if draw is not None]
        total = heaped[:, -1:].contiguous()
        picks = torch.searchsorted(heaped, torch.tensor(points).to(total) * total, right=True)
        # A product rounded up to the total would pick what has no probability.
        picks = torch.minimum(picks, torch.searchsorted(heaped, total))
        for row, pick in zip(warm, picks[:, 0].tolist(), strict=True):
            ids[row] = pick
    return ids


def _first_of(waiting: deque[_Answer], count: int) -> list[_Answer]:
    """The next 1 … `count` answers, as many as are read together."""
    taken = [waiting.popleft()]
    longest = len(taken[0].prompt)
    while waiting and len(taken) < count:
        longest = max(longest, len(waiting[0].prompt))
        if (len(taken) + 1) * longest > _PROMPT_TOKENS:
            break
        taken.append(waiting.popleft())
    return taken
