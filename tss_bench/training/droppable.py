"""A causal LM whose blocks can be dropped per sample and position, for training.

May import: torch, transformers, tss_bench.decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from tss_bench.decoding.blocks import HubBlocks, Pass, decoder
from tss_bench.decoding.kv_cache import NoCache

# Positions from which a block's attention matrices, n x n a head, are too many to keep.
_RECOMPUTED = 512


class DroppableModel(nn.Module):
    """Runs embedding, blocks and final norm of `model`; the weights stay the model's own."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self._norm = decoder(model).norm
        self._blocks = HubBlocks(model, frozen=False)
        self.num_layers = self._blocks.num_layers

    def forward(
        self, ids: Tensor, kept: Tensor | None = None, exits: Sequence[int] | None = None
    ) -> list[Tensor]:
        """Hidden states [B, n, H] after the final norm, one tensor for each layer of `exits`.

        ids [B, n], padded on the right; `kept` bool [L, B, n] (None: all): where it is False a
        block passes its input on. `exits` ascend; None is the last layer alone. A block that is
        dropped at every position does not run and gets no gradient.
        """
        wanted = [self.num_layers - 1] if exits is None else list(exits)
        embedding = self.model.get_input_embeddings()
        hidden: Tensor = embedding(ids)
        positions = torch.arange(ids.shape[1], device=ids.device)[None]
        state = self._blocks.begin(hidden, positions, None, NoCache())
        states = []
        for layer in range(wanted[-1] + 1):
            hidden = self._run(layer, hidden, state, None if kept is None else kept[layer])
            if layer in wanted:
                states.append(self._norm(hidden))
        return states

    def _run(self, layer: int, hidden: Tensor, state: Pass, kept: Tensor | None) -> Tensor:
        """One block on the rows that keep it somewhere, and there only its output counts."""
        if kept is None or bool(kept.all()):
            return self._block(layer, hidden, state)
        rows = kept.any(dim=1).nonzero()[:, 0]
        if not len(rows):
            return hidden
        part = hidden[rows]
        output = torch.where(kept[rows, :, None], self._block(layer, part, state), part)
        return output if len(rows) == len(hidden) else hidden.index_copy(0, rows, output)

    def _block(self, layer: int, hidden: Tensor, state: Pass) -> Tensor:
        """One block; in training over long text it is computed again in the backward pass."""
        if torch.is_grad_enabled() and hidden.shape[1] >= _RECOMPUTED:
            output: Tensor = checkpoint(self._blocks.run, layer, hidden, state, use_reentrant=False)
            return output
        return self._blocks.run(layer, hidden, state)
