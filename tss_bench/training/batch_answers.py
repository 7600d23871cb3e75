"""Answer a batch of prompts with the target, greedily or at temperature 1.

Knows nothing of recipes, shards or files.

May import: torch, transformers, tss_bench.{types, decoding}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from tss_bench.decoding.kv_cache import KVCache
from tss_bench.decoding.target import Target
from tss_bench.types import SkipSet

# Finished rows leave the batch when this share of it is done.
_COMPACT_AT = 0.25


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
def answer_batch(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    sampled: Sequence[bool],
    max_new_tokens: int,
    eos: frozenset[int],
    generator: torch.Generator,
    keep_features: bool = True,
) -> Answers:
    """Answer all prompts at once, row i greedily or at temperature 1.

    The end id belongs to the answer. Prompts are padded on the right and the gap is masked, so
    that the prompt pass needs no mask. Raises ValueError for a prompt that is empty or leaves
    no room in the context.
    """
    longest = max(map(len, prompts))
    if not min(map(len, prompts)) or longest + max_new_tokens > target.context_length:
        raise ValueError(
            f"prompts of 1 … {target.context_length - max_new_tokens} tokens fit this target "
            f"with {max_new_tokens} new ones, got {min(map(len, prompts))} … {longest}"
        )
    batch = _Batch(target, prompts, sampled, generator, max_new_tokens, keep_features)
    for step in range(max_new_tokens):
        alive = batch.choose(eos)
        if not alive or step == max_new_tokens - 1:
            break
        batch.advance()
    return batch.answers()


class _Batch:
    """The rows of one batch while they grow; finished rows are taken out from time to time."""

    def __init__(
        self,
        target: Target,
        prompts: Sequence[Sequence[int]],
        sampled: Sequence[bool],
        generator: torch.Generator,
        max_new_tokens: int,
        keep_features: bool,
    ) -> None:
        device = target.device
        self._target = target
        self._skip = SkipSet.dense(target.num_layers)
        self._generator = generator
        self._sampled = list(sampled)
        self._prompts = [list(prompt) for prompt in prompts]
        self._new: list[list[int]] = [[] for _ in prompts]
        self._rows = list(range(len(prompts)))
        self._done = [False] * len(prompts)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = int(lengths.max())
        ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
        self._cache = target.new_cache(longest + max_new_tokens, batch=len(prompts))
        hidden = target.prefill(ids, self._cache, self._skip)
        self._hidden = hidden[torch.arange(len(prompts), device=device), lengths - 1]
        self._positions = lengths
        self._seen = torch.arange(longest, device=device) < lengths[:, None]
        self._features: list[list[Tensor]] | None = None
        if keep_features:
            kept = hidden.to("cpu", torch.bfloat16)
            self._features = [[kept[i, : len(p)].clone()] for i, p in enumerate(prompts)]

    def choose(self, eos: frozenset[int]) -> bool:
        """Give every unfinished row its next id; whether any row is left."""
        logits = self._target.logits(self._hidden).float()
        self._next = logits.argmax(dim=-1)
        warm = [i for i, row in enumerate(self._rows) if self._sampled[row]]
        if warm:
            chances = logits[warm].softmax(dim=-1).cpu()
            picks = torch.multinomial(chances, 1, generator=self._generator)[:, 0]
            self._next[warm] = picks.to(self._next.device)
        for row, token in zip(self._rows, self._next.tolist(), strict=True):
            if not self._done[row]:
                self._new[row].append(token)
                self._done[row] = token in eos
        self._compact()
        return bool(self._rows)

    def advance(self) -> None:
        """Run the chosen ids through the target."""
        one = torch.ones(len(self._rows), 1, dtype=torch.bool, device=self._seen.device)
        self._seen = torch.cat((self._seen, one), dim=1)
        hidden = self._target.forward(
            self._next[:, None],
            self._positions[:, None],
            self._seen[:, None],
            self._cache,
            self._skip,
        )
        self._cache.advance(1)
        self._positions = self._positions + 1
        self._hidden = hidden[:, 0]
        if self._features is not None:
            kept = self._hidden.to("cpu", torch.bfloat16)
            for i, row in enumerate(self._rows):
                if not self._done[row]:
                    self._features[row].append(kept[i : i + 1].clone())

    def answers(self) -> Answers:
        ids = [torch.tensor(p + new) for p, new in zip(self._prompts, self._new, strict=True)]
        features = None
        if self._features is not None:
            features = [torch.cat(parts) for parts in self._features]
        return Answers(ids, [len(p) for p in self._prompts], self._sampled, features)

    def _compact(self) -> None:
        left = [i for i, row in enumerate(self._rows) if not self._done[row]]
        if left and len(left) > (1 - _COMPACT_AT) * len(self._rows):
            return
        self._rows = [self._rows[i] for i in left]
        if not left:
            return
        index = torch.tensor(left, device=self._seen.device)
        self._next, self._positions = self._next[index], self._positions[index]
        self._seen = self._seen[index]
        self._cache = _rows_of(self._cache, index)


def _rows_of(cache: KVCache, rows: Tensor) -> KVCache:
    """A cache with the chosen sequences of another one."""
    layers, _, _, heads, capacity, dim = cache.data.shape
    smaller = KVCache(
        num_layers=layers,
        kv_heads=heads,
        head_dim=dim,
        capacity=capacity,
        dtype=cache.data.dtype,
        device=cache.data.device,
        batch=len(rows),
    )
    past = slice(0, cache.length)
    for layer in range(layers):
        smaller.data[layer, ..., past, :] = cache.data[layer][:, rows, :, past]
    smaller.length = cache.length
    return smaller
