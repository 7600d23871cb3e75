"""SAM-Decoding (arXiv 2411.10666): suffix matches, and another adapter's drafter where they end.

May import: tss_bench.{decoding,weights}, model_adapters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from model_adapters.arguments import EAGLE, SAMD, AdapterError, Arguments
from model_adapters.base import SpeculativeLM
from model_adapters.loaded import load_tokenizer
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.drafters.static_automaton import COMMAND, StaticAutomaton
from tss_bench.decoding.drafters.suffix_automaton import MatchRules, SamDecoding
from tss_bench.weights import ModelInfo, vocabulary_digest


class NativeSamd(SpeculativeLM):
    """Suffix matches draft for the dense target, in the request and in the corpus of `sam`.

    Where no match is long enough, `fallback` drafts: Token Recycling or EAGLE with the arguments,
    checks and defaults of its own adapter. Nothing is kept between requests.
    """

    name = "native_samd"
    drafter_id = "samd"
    sparse = False
    own_arguments = SAMD

    def check_drafter(self) -> None:
        arguments = self.arguments
        self._rules = MatchRules(arguments.n_predicts, arguments.len_threshold, arguments.len_bias)
        self._fallback = _fallback(arguments)
        self._corpus = None if arguments.sam is None else _corpus(arguments, self.info)

    def make_drafter(self) -> Drafter:
        self._fallback.load(share=self.loaded)
        rules = replace(self._rules, n_predicts=self.within_context(self._rules.n_predicts))
        return SamDecoding(self._fallback.drafter, rules, self._corpus)

    def drafter_record(self) -> dict[str, Any]:
        corpus = self._corpus.fingerprint if self._corpus else None
        return {**self._fallback.drafter_record(), "sam_fingerprint": corpus}


class TssSamd(NativeSamd):
    """Suffix matches draft for the sparse target."""

    name = "tss_samd"
    sparse = True


def _fallback(arguments: Arguments) -> SpeculativeLM:
    """The checked adapter whose drafter is used. Raises AdapterError as that adapter does."""
    # adapters.py imports this module.
    from model_adapters.adapters import NativeEagle, NativeTokenRecycling

    default = Arguments()
    if arguments.fallback == "eagle":
        adapter: type[SpeculativeLM] = NativeEagle
    else:
        adapter = NativeTokenRecycling
        for name in sorted(EAGLE - NativeTokenRecycling.own_arguments):
            if getattr(arguments, name) != getattr(default, name):
                raise AdapterError(
                    f"{name} is for fallback=eagle, here fallback={arguments.fallback}; leave "
                    f"{name} out or give fallback=eagle"
                )
    return adapter.prepare({name: getattr(arguments, name) for name in adapter.allowed_arguments()})


def _corpus(arguments: Arguments, info: ModelInfo) -> StaticAutomaton:
    """The static automaton of `sam`. Raises ValueError where it is not for this target."""
    corpus = StaticAutomaton.load(Path(str(arguments.sam)))
    mend = f"build it with `{COMMAND} CORPUS --pretrained {arguments.pretrained} --out FILE`"
    if corpus.source.get("vocabulary") != vocabulary_digest(load_tokenizer(arguments)):
        raise ValueError(
            f"sam={arguments.sam} was built with the tokenizer of "
            f"{corpus.source.get('pretrained')!r}, and target {info.id!r} has another; {mend}"
        )
    if corpus.largest_id >= info.vocab_size:
        raise ValueError(
            f"sam={arguments.sam} holds id {corpus.largest_id}, but target {info.id!r} has ids 0 "
            f"to {info.vocab_size - 1}; {mend}"
        )
    return corpus
