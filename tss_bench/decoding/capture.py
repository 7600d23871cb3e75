"""What a drafter gets to see of a pass: the final hidden states, or those that enter some blocks.

May import: torch. Shapes: B sequences, n positions, H hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Capture:
    """Collects the features of one pass of a target; a new one, or a cleared one, for every pass.

    `layers`, ascending, are the blocks whose input [B, n, H] is kept, 0 … L: L is what leaves the
    last block, before the final norm. None: the features are the result of the pass. A skipped
    block has an input, too: the output of the last active one before it.
    """

    def __init__(self, layers: tuple[int, ...]) -> None:
        self._layers = layers
        self._states: list[Tensor] = []

    def clear(self) -> None:
        """The pass is run again."""
        self._states.clear()

    def see(self, layer: int, hidden: Tensor) -> None:
        """`hidden` enters block `layer`."""
        if layer in self._layers:
            self._states.append(hidden)

    def features(self, result: Tensor) -> Tensor:
        """[B, n, len(layers) * H] in the order of the layers, or the pass's `result` [B, n, H]."""
        return torch.cat(self._states, dim=-1) if self._layers else result
