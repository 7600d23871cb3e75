"""A causal LM as embed -> active blocks -> norm -> head, with the skip set as an argument.

May import: torch, transformers, the rest of decoding/, tss_bench.types. Knows nothing of
drafts, tokenizers or tasks. Shapes: B sequences, n positions, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from tss_bench.decoding.batch_cache import BatchCache, OwnPromptCache
from tss_bench.decoding.blocks import decoder, key_heads, make_blocks
from tss_bench.decoding.capture import Capture
from tss_bench.decoding.kv_cache import KVCache
from tss_bench.decoding.linear import Linear, linear
from tss_bench.types import SkipSet

# Relative difference to the model's own forward pass above which the two are not the same
# function; rounding alone stays a magnitude below.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}

AnyBatch = TypeVar("AnyBatch", bound=BatchCache)


class Target:
    """The verifier. Dtype and device are the model's.

    Takes over the model's weights without a second copy: do not use the model itself afterwards
    (on a CPU in bfloat16 its projections are emptied). Raises ValueError when the family
    computes something that this pass does not (checked against the model's own forward pass on
    a few ids).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        probe = _probe(model)
        expected = _model_logits(model.eval(), probe)
        inner = decoder(model)
        config = model.config.get_text_config(decoder=True)
        self._embedding: Any = model.get_input_embeddings()
        self._norm: Any = inner.norm
        head: Any = model.get_output_embeddings()
        self._head_weight: Tensor = head.weight.detach()
        self._head_bias: Tensor | None = head.bias
        self._head = linear(self._head_weight, self._head_bias)
        self._rope = str(getattr(inner.rotary_emb, "rope_type", "default"))
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._kv_heads, self._head_dim = key_heads(model)
        self._blocks = make_blocks(model)
        self.num_layers = self._blocks.num_layers
        self.hidden_size: int = config.hidden_size
        self.vocab_size: int = self._head_weight.shape[0]
        self.context_length: int = config.max_position_embeddings
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self._check_against(type(model).__name__, probe, expected)

    def embed(self, ids: Tensor) -> Tensor:
        """Embeddings [.., H] of ids [..]."""
        return self._embedding(ids)

    def head_rows(self, rows: Tensor) -> Tensor:
        """The output matrix's rows for a reduced draft vocabulary, [len(rows), H], a copy."""
        return self._head_weight.index_select(0, rows)

    def logits(self, hidden: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits [.., V] of hidden states [.., H]; with `rows` (from `head_rows`) only theirs."""
        return self._capped(self._head(hidden) if rows is None else F.linear(hidden, rows))

    def draft_head(self, rows: Tensor) -> Linear:
        """`logits` of the ids `rows` alone, as a map of its own; for inference."""
        bias = None if self._head_bias is None else self._head_bias.index_select(0, rows)
        project = linear(self.head_rows(rows), bias)
        return lambda hidden: self._capped(project(hidden))

    def _capped(self, scores: Tensor) -> Tensor:
        if self._softcap is None:
            return scores
        return torch.tanh(scores / self._softcap) * self._softcap

    def new_cache(self, capacity: int, batch: int = 1) -> KVCache:
        """An empty cache for `capacity` positions."""
        return KVCache(
            num_layers=self.num_layers,
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            capacity=capacity,
            dtype=self.dtype,
            device=self.device,
            batch=batch,
        )

    def new_batch(self, rows: int, capacity: int) -> BatchCache:
        """An empty cache for `rows` answers of at most `capacity` positions each.

        Raises ValueError for several rows of a family whose rotary embeddings change with the
        longest position of a pass: a row would depend on the ones beside it.
        """
        return self._batch(BatchCache, rows, capacity)

    def new_prompt_batch(self, rows: int) -> OwnPromptCache:
        """As `new_batch`, for prompts of one answer each; it grows with what is reserved."""
        return self._batch(OwnPromptCache, rows, 1)

    def _batch(self, kind: type[AnyBatch], rows: int, capacity: int) -> AnyBatch:
        if self._rope in ("dynamic", "longrope") and rows > 1:
            raise ValueError(
                f"rotary embeddings of type {self._rope} depend on the longest row of a pass, so "
                f"answers cannot be decoded side by side; decode them one by one (search: "
                f"--evaluator sequential, self-generated text: --generation-batch 1)"
            )
        return kind(
            num_layers=self.num_layers,
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            rows=rows,
            capacity=capacity,
            dtype=self.dtype,
            device=self.device,
        )

    def position_bytes(self) -> int:
        """Bytes that the keys and values of one position take in a cache."""
        values = self.num_layers * 2 * self._kv_heads * self._head_dim
        return values * self.dtype.itemsize

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache,
        skip: SkipSet,
        capture: Capture | None = None,
    ) -> Tensor:
        """Hidden states [B, n, H] after the final norm.

        ids, positions int [B, n]; mask bool [B or 1, n, past + n], True = may attend (None:
        causal). Active blocks write their keys and values behind the cache's past; the caller
        decides with `advance` or `keep` what stays. A skipped block passes its input on: it
        computes and stores nothing. `capture` is shown the input of every block.
        """
        return self.forward_from(0, self.embed(ids), positions, mask, cache, skip, capture)

    def forward_from(
        self,
        first: int,
        hidden: Tensor,
        positions: Tensor,
        mask: Tensor | None,
        cache: KVCache,
        skip: SkipSet,
        capture: Capture | None = None,
    ) -> Tensor:
        """`forward` from block `first` on, for the hidden states [B, n, H] that enter it.

        What comes before need not be run again for another `skip` whose layers are all `first`
        or later. `first` = L applies the final norm alone.
        """
        self.check(skip)
        state = self._blocks.begin(hidden, positions, mask, cache)
        for layer in range(first, self.num_layers):
            if capture is not None:
                capture.see(layer, hidden)
            if layer not in skip:
                hidden = self._blocks.run(layer, hidden, state)
        if capture is not None:
            capture.see(self.num_layers, hidden)
        return self._norm(hidden)

    def forward_to(
        self, last: int, ids: Tensor, positions: Tensor, cache: KVCache, skip: SkipSet
    ) -> Tensor:
        """Hidden states [B, n, H] that enter block `last`: a causal `forward` that stops there.

        Without the final norm; what `forward_from` goes on with.
        """
        self.check(skip)
        hidden = self.embed(ids)
        state = self._blocks.begin(hidden, positions, None, cache)
        for layer in skip.active:
            if layer < last:
                hidden = self._blocks.run(layer, hidden, state)
        return hidden

    def exit_logits(self, hidden: Tensor) -> Tensor:
        """Logits [.., V] of hidden states [.., H] that left any block: final norm, then head."""
        return self.logits(self._norm(hidden))

    def forward_rows(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor,
        cache: BatchCache,
        skips: Sequence[SkipSet],
        capture: Capture | None = None,
    ) -> Tensor:
        """`forward` of an open pass over a batch whose row i runs under `skips[i]`.

        ids, positions int [B, n]; mask as `BatchCache.visible` gives it. A block that only some
        rows skip computes all of them and those rows keep their input: what it writes for them
        is read by no block that they run.
        """
        for skip in set(skips):
            self.check(skip)
        hidden = self.embed(ids)
        state = self._blocks.begin(hidden, positions, mask, cache)
        for layer in range(self.num_layers):
            if capture is not None:
                capture.see(layer, hidden)
            active = [layer not in skip for skip in skips]
            if not any(active):
                continue
            output = self._blocks.run(layer, hidden, state)
            if not all(active):
                keeps = torch.tensor(active, device=hidden.device)[:, None, None]
                output = torch.where(keeps, output, hidden)
            hidden = output
        if capture is not None:
            capture.see(self.num_layers, hidden)
        return self._norm(hidden)

    def layer_inputs(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, cache: KVCache
    ) -> list[Tensor]:
        """Hidden states [B, n, H] that enter block 0 … L-1 of the dense target, then its output.

        L + 1 tensors, all before the final norm; arguments as in `forward`.
        """
        inputs = [self.embed(ids)]
        state = self._blocks.begin(inputs[0], positions, mask, cache)
        for layer in range(self.num_layers):
            inputs.append(self._blocks.run(layer, inputs[-1], state))
        return inputs

    def prefill(
        self, ids: Tensor, cache: KVCache, skip: SkipSet, capture: Capture | None = None
    ) -> Tensor:
        """Append ids [B, n] causally to the cache; hidden states [B, n, H]."""
        positions = torch.arange(ids.shape[1], device=self.device) + cache.length
        hidden = self.forward(ids, positions.expand_as(ids), None, cache, skip, capture)
        cache.advance(ids.shape[1])
        return hidden

    @torch.inference_mode()
    def score(self, ids: Sequence[int], skip: SkipSet) -> Tensor:
        """float32 logits [n, V] of one sequence under `skip` (scope `all`)."""
        row = torch.tensor([list(ids)], device=self.device)
        hidden = self.prefill(row, self.new_cache(len(ids)), skip)
        return self.logits(hidden[0]).float()

    def check(self, skip: SkipSet) -> None:
        """Raises ValueError when `skip` was made for a target of another depth."""
        if skip.num_layers != self.num_layers:
            raise ValueError(
                f"the skip set {skip} is for {skip.num_layers} layers, "
                f"the target has {self.num_layers}"
            )

    def _check_against(self, family: str, probe: list[int], expected: Tensor) -> None:
        found = self.score(probe, SkipSet.dense(self.num_layers))
        gap = (found - expected).norm() / expected.norm().clamp_min(1e-9)
        tolerance = SELF_CHECK_TOLERANCE.get(self.dtype, 1e-3)
        if not gap <= tolerance:
            raise ValueError(
                f"{family} is not supported: a pass over its blocks differs from its own forward "
                f"pass by {float(gap):.2g} (allowed: {tolerance}); the family computes something "
                "beside embedding, blocks, norm and head"
            )


def _probe(model: PreTrainedModel) -> list[int]:
    """A few ids from all over the vocabulary."""
    config = model.config.get_text_config(decoder=True)
    length = min(8, config.max_position_embeddings)
    return [place * 7919 % config.vocab_size for place in range(length)]


@torch.inference_mode()
def _model_logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """The model's own float32 logits [n, V], before its weights are taken over."""
    output = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    return output.logits[0].float()
