"""The adapters of speculative decoding with a draft model.

May import: tss_bench.{decoding,weights}, model_adapters.{arguments,base,loaded}.
"""

from __future__ import annotations

from typing import Any

from model_adapters.arguments import DRAFT_MODEL, Arguments, IncompleteError
from model_adapters.base import SpeculativeLM
from model_adapters.loaded import load_tokenizer
from tss_bench import weights
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.drafters.draft_model import DraftModel
from tss_bench.decoding.target import Target


class NativeDraftModel(SpeculativeLM):
    """Chains of `draft`, a causal LM with the target's tokenizer, for the dense target.

    The draft runs in the target's dtype, on its device.
    """

    name = "native_draft_model"
    drafter_id = "draft_model"
    sparse = False
    own_arguments = DRAFT_MODEL

    def check_drafter(self) -> None:
        arguments = self.arguments
        # `auto` is the packaged head of EAGLE; there is no packaged draft model.
        if arguments.draft == Arguments.draft:
            raise IncompleteError(
                f"{self.name} needs draft=MODEL: a hub id or a directory of a causal LM with the "
                f"tokenizer of {self.info.id}, smaller than it; tss-bench export --pretrained "
                f"{arguments.pretrained} --skip LAYERS --out DIR makes one from the target itself"
            )
        self._draft_info = weights.describe(
            arguments.draft,
            arguments.draft_revision,
            trust_remote_code=arguments.trust_remote_code,
        )
        weights.require_same_tokenizer(
            load_tokenizer(arguments),
            weights.load_tokenizer(
                arguments.draft,
                arguments.draft_revision,
                trust_remote_code=arguments.trust_remote_code,
            ),
            target_name=self.info.id,
            draft_name=self._draft_info.id,
        )

    def make_drafter(self) -> Drafter:
        arguments = self.arguments
        model, _, _ = weights.load_model(
            arguments.draft,
            dtype=self.dtype,
            device=str(self.device),
            revision=arguments.draft_revision,
            trust_remote_code=arguments.trust_remote_code,
        )
        draft = Target(model)
        if draft.context_length < self.max_length:
            self._say(
                f"draft {self._draft_info.id} has a context of {draft.context_length} tokens, the "
                f"target {self.max_length}: beyond it nothing is drafted"
            )
        length = self.within_context(arguments.num_draft_tokens)
        return DraftModel(draft, self.target.vocab_size, length)

    def drafter_record(self) -> dict[str, Any]:
        info = self._draft_info
        return {"draft_model": info.id, "draft_fingerprint": info.revision}


class TssDraftModel(NativeDraftModel):
    """Chains of a draft model for the sparse target."""

    name = "tss_draft_model"
    sparse = True
