"""The models that lm-eval knows by name: each drafter native and with skip sets, and early exit.

May import: torch, tss_bench.{decoding,weights}, model_adapters.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from pathlib import Path
from typing import Any

import torch

from model_adapters.arguments import (
    EAGLE,
    TOKEN_RECYCLING,
    AdapterError,
    Arguments,
    IncompleteError,
)
from model_adapters.base import SpeculativeLM
from model_adapters.draft_model import NativeDraftModel, TssDraftModel
from model_adapters.layerskip import EarlyExit, NativeLayerSkip, TssLayerSkip
from model_adapters.loaded import load_tokenizer
from model_adapters.prompt_lookup import NativePromptLookup, TssPromptLookup
from model_adapters.samd import NativeSamd, TssSamd
from tss_bench import weights
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.drafters.eagle import DynamicTree, Eagle
from tss_bench.decoding.drafters.none import NoDraft
from tss_bench.decoding.drafters.token_recycling import TokenRecycling
from tss_bench.decoding.drafters.tree_template import TreeTemplate
from tss_bench.weights.loading import resolve_device

_SIZES = ("total_token", "depth", "top_k")
_CPU_TREE = "token_recycling_8"
_GPU_TREE = "token_recycling_61"
_LABEL = re.compile(r"[A-Za-z0-9_+-]+")


class NativeAR(SpeculativeLM):
    """Plain autoregressive decoding of the dense target."""

    name = "native_ar"
    drafter_id = "none"
    sparse = False

    def make_drafter(self) -> Drafter:
        return NoDraft()


class NativeEagle(SpeculativeLM):
    """EAGLE drafts for the dense target; a `tree` (name or file) replaces the dynamic tree."""

    name = "native_eagle"
    drafter_id = "eagle"
    sparse = False
    own_arguments = EAGLE

    def check_drafter(self) -> None:
        arguments = self.arguments
        self._template = _template(arguments.tree)
        sizes = [name for name in _SIZES if getattr(arguments, name) is not None]
        if self._template is not None and sizes:
            raise AdapterError(
                f"tree={arguments.tree} is a fixed tree, {', '.join(sizes)} shape a dynamic "
                f"one; give one or the other"
            )
        try:
            self._head_path: Path = weights.resolve_eagle(
                arguments.draft, self.info, arguments.draft_revision
            )
        except weights.NoPackagedHeadError as error:
            raise IncompleteError(error) from error
        self._same_tokenizer = weights.check_eagle_head(
            self._head_path, self.info, lambda: load_tokenizer(arguments)
        )
        self._fingerprint = weights.weights_fingerprint(self._head_path)

    def make_drafter(self) -> Drafter:
        head = weights.load_eagle_head(
            self._head_path,
            target_hidden_size=self.target.hidden_size,
            target_vocab_size=self.target.vocab_size,
            same_tokenizer=self._same_tokenizer,
        )
        for note in weights.eagle_notes(self._head_path, self.info):
            self._say(note)
        return Eagle(head, self.target, self._template or self._dynamic_tree())

    def drafter_record(self) -> dict[str, Any]:
        fixed = self._template
        shape = fixed.fingerprint if fixed else dataclasses.asdict(self._dynamic_tree())
        return {"draft_fingerprint": self._fingerprint, "tree_shape": shape}

    def _dynamic_tree(self) -> DynamicTree:
        given = {name: getattr(self.arguments, name) for name in _SIZES}
        sizes = {name: value for name, value in given.items() if value is not None}
        return dataclasses.replace(DynamicTree.default_for(_device(self.arguments)), **sizes)


class NativeTokenRecycling(SpeculativeLM):
    """Token Recycling for the dense target; `tree` is a packaged tree's name or a file."""

    name = "native_token_recycling"
    drafter_id = "token_recycling"
    sparse = False
    own_arguments = TOKEN_RECYCLING

    def check_drafter(self) -> None:
        self._template = _template(self.arguments.tree)
        if self._template is not None:
            # Its constructor refuses a tree it cannot fill; the vocabulary does not matter yet.
            TokenRecycling(1, self._template)

    def make_drafter(self) -> Drafter:
        return TokenRecycling(self.target.vocab_size, self._tree(), self.arguments.state)

    def drafter_record(self) -> dict[str, Any]:
        return {"tree_shape": self._tree().fingerprint}

    def _tree(self) -> TreeTemplate:
        default = _CPU_TREE if _device(self.arguments).type == "cpu" else _GPU_TREE
        return self._template or TreeTemplate.load(default)


class TssAR(NativeAR):
    """Plain autoregressive decoding of the sparse target."""

    name = "tss_ar"
    sparse = True


class TssEagle(NativeEagle):
    """EAGLE drafts for the sparse target."""

    name = "tss_eagle"
    sparse = True


class TssTokenRecycling(NativeTokenRecycling):
    """Token Recycling for the sparse target."""

    name = "tss_token_recycling"
    sparse = True


ADAPTERS: dict[str, type[SpeculativeLM]] = {
    adapter.name: adapter
    for adapter in (
        NativeAR,
        TssAR,
        NativeEagle,
        TssEagle,
        NativeTokenRecycling,
        TssTokenRecycling,
        NativePromptLookup,
        TssPromptLookup,
        NativeDraftModel,
        TssDraftModel,
        NativeLayerSkip,
        TssLayerSkip,
        EarlyExit,
        NativeSamd,
        TssSamd,
    )
}
"""All adapters by the name that lm-eval knows them by."""


def find_adapter(name: str) -> type[SpeculativeLM]:
    """The adapter of that name, of `tss_eagle@LABEL` that of `tss_eagle`.

    Labels tell several adapters of one class apart. Raises AdapterError naming the nearest
    adapter, and for a label that is no word.
    """
    name, at, label = str(name).partition("@")
    if at and not _LABEL.fullmatch(label):
        raise AdapterError(
            f"{name}@{label}: a label is letters, digits, '_', '+' and '-', such as {name}@a"
        )
    if name in ADAPTERS:
        return ADAPTERS[name]
    near = difflib.get_close_matches(name, ADAPTERS, n=1)
    hint = f"did you mean {near[0]!r}? There" if near else "there"
    raise AdapterError(f"no adapter {name!r}; {hint} is {', '.join(ADAPTERS)}")


def _device(arguments: Arguments) -> torch.device:
    """Where the target is, or will be once it is loaded."""
    return torch.device(resolve_device(arguments.device))


def _template(name: str | None) -> TreeTemplate | None:
    return None if name is None else TreeTemplate.load(name)
