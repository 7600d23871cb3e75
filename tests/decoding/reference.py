"""Greedy decoding written down again with Hugging Face's own forward passes and caches.

Nothing here uses the code under test, so that equality means something.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import DynamicCache, PreTrainedModel

from tests import tiny
from tss_bench.types import SkipSet


def hub_generate(family: str, prompt: list[int], limit: int) -> list[int]:
    ids = torch.tensor([prompt])
    output = tiny.model(family).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=min(limit, tiny.CONTEXT - len(prompt)),
        do_sample=False,
        eos_token_id=tiny.EOS,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


def sparse_everywhere(family: str, prompt: list[int], skip: SkipSet, limit: int) -> list[int]:
    """Scope `all`: the model with the skipped blocks taken out, without any cache."""
    answer: list[int] = []
    with without_blocks(tiny.model(family), skip) as model, torch.no_grad():
        while not _ended(answer, prompt, limit):
            ids = torch.tensor([prompt + answer])
            answer.append(int(model(input_ids=ids, use_cache=False).logits[0, -1].argmax()))
    return answer


def sparse_after_prompt(family: str, prompt: list[int], skip: SkipSet, limit: int) -> list[int]:
    """Scope `verify`: a dense pass over the prompt, then the sparse model over its cache."""
    model = tiny.model(family)
    cache = DynamicCache()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt]), cache=cache).logits
        answer = [int(logits[0, -1].argmax())]
        with without_blocks(model, skip):
            while not _ended(answer, prompt, limit):
                length = len(prompt) + len(answer)
                logits = model(
                    input_ids=torch.tensor([answer[-1:]]),
                    position_ids=torch.tensor([[length - 1]]),
                    # A given 4-d mask keeps the model from reading a length off layer 0.
                    attention_mask=torch.zeros(1, 1, 1, length),
                    cache=cache,
                ).logits
                answer.append(int(logits[0, -1].argmax()))
    return answer


@contextmanager
def without_blocks(model: PreTrainedModel, skip: SkipSet) -> Iterator[PreTrainedModel]:
    """`model` with the blocks of `skip` taken out, put back at the end."""
    inner, config = model.get_decoder(), model.config
    blocks, kinds = inner.layers, getattr(config, "layer_types", None)
    try:
        inner.layers = torch.nn.ModuleList(blocks[i] for i in skip.active)
        config.num_hidden_layers = len(skip.active)
        if kinds:
            config.layer_types = [kinds[i] for i in skip.active]
        yield model
    finally:
        inner.layers = blocks
        config.num_hidden_layers = len(blocks)
        if kinds:
            config.layer_types = kinds


def _ended(answer: list[int], prompt: list[int], limit: int) -> bool:
    full = len(answer) >= min(limit, tiny.CONTEXT - len(prompt))
    return full or answer[-1:] == [tiny.EOS]
