"""Self-speculation with the target's own first blocks, and early exit without verification.

Any checkpoint works; only one whose early exits were trained (the official ones below, or what
`tss-bench train layerskip --drop layerskip` makes) drafts well. Source: LayerSkip, arXiv
2404.16710, github.com/facebookresearch/LayerSkip.

May import: tss_bench.{decoding,domains,types,weights}, model_adapters.
"""

from __future__ import annotations

from typing import Any

from model_adapters.arguments import EXIT_LAYER, LAYERSKIP, AdapterError, Arguments, IncompleteError
from model_adapters.base import SpeculativeLM
from model_adapters.skip_plan import SkipPlan
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.drafters.layerskip import LayerSkip
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.domains import SkipController
from tss_bench.types import SkipSet
from tss_bench.weights import ModelInfo

EXIT_LAYERS = {
    "facebook/layerskip-llama2-7B": 4,
    "facebook/layerskip-llama2-13B": 8,
    "facebook/layerskip-llama2-70B": 10,
    "facebook/layerskip-codellama-7B": 4,
    "facebook/layerskip-codellama-34B": 8,
    "facebook/layerskip-llama3-8B": 4,
    "facebook/layerskip-llama3.2-1B": 4,
}
"""The exits that LayerSkip's authors give figures for in huggingface.co/blog/layerskip, the faster
one where there are two."""

NUM_SPECULATIONS = 6
"""As in the README of facebook's repository, for its 7B model and the exit after 8 of 32 blocks."""

AUTO = (20, 0.4)
"""`num_speculations=auto`: the most drafts and the confidence that stops them, the defaults of
`num_assistant_tokens` and `assistant_confidence_threshold` in transformers."""


def exit_layer(arguments: Arguments, info: ModelInfo) -> int:
    """The number of blocks that run before the exit.

    Given, or known for an official checkpoint, or a quarter of the blocks: 8 of 32, as in the
    example of facebook's README. Raises AdapterError unless it is 1 to L - 1.
    """
    wanted = arguments.exit_layer
    if info.num_layers < 2:
        raise IncompleteError(f"{info.id} has one layer, so there is no early exit from it")
    if wanted is None:
        wanted = EXIT_LAYERS.get(info.id, max(1, info.num_layers // 4))
    if not 1 <= wanted < info.num_layers:
        raise AdapterError(
            f"exit_layer={wanted} is out of range: {info.id} has {info.num_layers} layers, so it "
            f"must be 1 to {info.num_layers - 1} (the number of layers that run)"
        )
    return wanted


class NativeLayerSkip(SpeculativeLM):
    """The dense target drafts with its first `exit_layer` blocks and verifies with the rest."""

    name = "native_layerskip"
    drafter_id = "layerskip"
    sparse = False
    side_by_side = False
    own_arguments = LAYERSKIP

    def check_drafter(self) -> None:
        self._exit_layer = exit_layer(self.arguments, self.info)
        length, confidence = self.arguments.num_speculations, self.arguments.draft_confidence
        most, stops = AUTO if length == "auto" else (length or NUM_SPECULATIONS, 0.0)
        self._num_speculations = most
        self._confidence = stops if confidence is None else confidence

    def make_drafter(self) -> Drafter:
        ends = self.loaded.eos_ids
        length = self.within_context(self._num_speculations)
        return LayerSkip(self._exit_layer, length, self._confidence, ends)

    def drafter_record(self) -> dict[str, Any]:
        return {
            "exit_layer": self._exit_layer,
            "num_speculations": self._num_speculations,
            "draft_confidence": self._confidence,
        }


class TssLayerSkip(NativeLayerSkip):
    """Self-speculation of the sparse target; blocks that it skips do not draft either."""

    name = "tss_layerskip"
    sparse = True


class EarlyExit(SpeculativeLM):
    """Answers of the first `exit_layer` blocks alone, without verification: **lossy**.

    This is plain decoding of the target that skips all later blocks, in the prompt, too.
    """

    name = "early_exit"
    drafter_id = "early exit (lossy)"
    sparse = False
    own_arguments = EXIT_LAYER

    @classmethod
    def allowed_arguments(cls) -> frozenset[str]:
        """The scope is always `all`."""
        return super().allowed_arguments() - {"scope"}

    @property
    def label(self) -> str:
        return f"{self.name} (lossy)"

    def skip_plan(self) -> SkipPlan:
        layers = self.info.num_layers
        self._exit_layer = exit_layer(self.arguments, self.info)
        source = f"early exit after {self._exit_layer} of {layers} layers, lossy"
        skip = SkipSet.of(range(self._exit_layer, layers), layers)
        note = f"{source}: nothing verifies these answers, they are not those of {self.info.id}"
        return SkipPlan(SkipController.fixed(skip, source), "all", source, (note,))

    def make_drafter(self) -> Drafter:
        return NoDraft()

    def drafter_record(self) -> dict[str, Any]:
        return {"exit_layer": self._exit_layer}
