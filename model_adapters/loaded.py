"""The model behind an adapter: checked by its description, loaded once, shared by adapters.

May import: transformers, tss_bench.{decoding,weights}, model_adapters.arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from model_adapters.arguments import AdapterError, Arguments
from tss_bench import weights
from tss_bench.decoding.target import Target

_DEPENDS_ON = ("pretrained", "revision", "trust_remote_code", "dtype", "device", "max_length")


@dataclass(frozen=True)
class LoadedModel:
    """A target with its tokenizer and the ids that end a text; `arguments` are those it is of."""

    arguments: Arguments
    info: weights.ModelInfo
    target: Target
    tokenizer: PreTrainedTokenizerBase
    eos_ids: frozenset[int]

    def require(self, arguments: Arguments) -> LoadedModel:
        """This model. Raises AdapterError if `arguments` ask for another one."""
        for name in _DEPENDS_ON:
            wanted, there = getattr(arguments, name), getattr(self.arguments, name)
            if wanted != there:
                raise AdapterError(
                    f"adapters share a target only if it is the same: {name} is {wanted} for one "
                    f"and {there} for another"
                )
        return self


def describe_model(arguments: Arguments) -> weights.ModelInfo:
    """What is known before loading. Raises AdapterError where the arguments do not fit it."""
    info = weights.describe(
        arguments.pretrained, arguments.revision, trust_remote_code=arguments.trust_remote_code
    )
    wanted = arguments.max_length
    if wanted is not None and wanted > info.context_length:
        raise AdapterError(
            f"max_length={wanted} is above the context of {info.id}, which is {info.context_length}"
        )
    if arguments.chat_template and not info.is_chat:
        raise AdapterError(
            f"chat_template=true, but {info.id} has no chat template; leave chat_template out"
        )
    return info


def load_tokenizer(arguments: Arguments) -> PreTrainedTokenizerBase:
    """The tokenizer alone, for checks before the weights."""
    return weights.load_tokenizer(
        arguments.pretrained, arguments.revision, trust_remote_code=arguments.trust_remote_code
    )


def load(arguments: Arguments) -> LoadedModel:
    """The model of these arguments, its context limited by `max_length`."""
    model, tokenizer, info = weights.load_model(
        arguments.pretrained,
        dtype=arguments.dtype,
        device=arguments.device,
        revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
    )
    target = Target(model)
    target.context_length = arguments.max_length or target.context_length
    return LoadedModel(
        arguments, info, target, tokenizer, weights.end_of_text_ids(model, tokenizer)
    )
