"""The adapters of prompt-lookup decoding.

May import: tss_bench.decoding, model_adapters.{arguments,base}.
"""

from __future__ import annotations

from model_adapters.arguments import PROMPT_LOOKUP
from model_adapters.base import SpeculativeLM
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.drafters.prompt_lookup import PromptLookup


class NativePromptLookup(SpeculativeLM):
    """Prompt lookup for the dense target."""

    name = "native_prompt_lookup"
    drafter_id = "prompt_lookup"
    sparse = False
    own_arguments = PROMPT_LOOKUP

    def make_drafter(self) -> Drafter:
        sizes = (self.arguments.max_ngram_size, self.arguments.num_pred_tokens)
        return PromptLookup(*(self.within_context(size) for size in sizes))


class TssPromptLookup(NativePromptLookup):
    """Prompt lookup for the sparse target."""

    name = "tss_prompt_lookup"
    sparse = True
