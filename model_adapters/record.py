"""What results files record of an adapter: all that its answers depend on, and what was used.

May import: tss_bench, model_adapters.{arguments,base}.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from model_adapters.arguments import SPARSE
from tss_bench import __version__

if TYPE_CHECKING:
    from model_adapters.base import SpeculativeLM


def configuration(adapter: SpeculativeLM) -> dict[str, Any]:
    """All that an answer depends on, besides its prompt."""
    told_below = SPARSE | {"pretrained", "batch_size"}
    own = adapter.allowed_arguments() - told_below
    return {
        **{name: getattr(adapter.arguments, name) for name in sorted(own)},
        "version": __version__,
        "adapter": adapter.name,
        "model": adapter.info.id,
        "revision": adapter.info.revision,
        "num_layers": adapter.info.num_layers,
        "drafter": adapter.drafter_id,
        "max_nodes": adapter.drafter.max_nodes,
        "skip_source": adapter.chooser.source,
        "skip_sets": {name: list(skip) for name, skip in adapter.controller.sets.items()},
        "scope": adapter.scope,
        "dtype": adapter.dtype,
        "device": str(adapter.device),
        "chat_template": adapter.prompter.chat,
        "max_length": adapter.max_length,
        **adapter.drafter_record(),
        **({"router": adapter.router.record()} if adapter.router else {}),
    }


def model_info(adapter: SpeculativeLM) -> dict[str, Any]:
    """The record of a run, under `tss_bench` and lm-eval's own keys."""
    return {
        "model_dtype": adapter.dtype,
        "model_revision": adapter.info.revision,
        "tss_bench": {
            **configuration(adapter),
            **adapter.chooser.record(),
            "overflow": adapter.overflow,
        },
    }
