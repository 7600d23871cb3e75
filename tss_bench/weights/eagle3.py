"""EAGLE-3 heads on disk, as their authors write them and as the speculators library does.

The speculators format nests the block's sizes in `transformer_layer_config`, without those that
are a Llama's defaults, and calls the block `layers.0` instead of `midlayer`.
Sources: SafeAILab/EAGLE `cnets.py`, vllm-project/speculators `models/eagle3`.

May import: torch, tss_bench.decoding.drafters.eagle3_head, tss_bench.weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tss_bench.decoding.drafters.eagle3_head import LAYER_IDS, Eagle3Config, Eagle3Head
from tss_bench.decoding.drafters.head_block import target_ids
from tss_bench.weights.eagle_files import State, check_draft_ids, check_keys, with_rows
from tss_bench.weights.loading import ModelInfo

_EMBEDDING, _OUTPUT = "embed_tokens.weight", "lm_head.weight"
_OWN_BLOCK, _SPECULATORS_BLOCK = "midlayer.", "layers.0."
_OWN_FIELDS = (
    "draft_vocab_size",
    "target_hidden_size",
    "norm_before_residual",
    "norm_before_fc",
    LAYER_IDS,
)
# What the library leaves out of a file where it equals the default of transformers' LlamaConfig.
_LLAMA_DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def is_eagle3(config: Mapping[str, Any], names: Iterable[str]) -> bool:
    """Whether a directory's `config.json` or tensor names are those of an EAGLE-3 head."""
    architectures = (str(name).lower() for name in config.get("architectures") or ())
    return (
        "speculators_model_type" in config
        or any("eagle3" in name for name in architectures)
        or any(name.startswith(_OWN_BLOCK) or "hidden_norm" in name for name in names)
    )


def flat_config(directory: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `config.json` with a speculators one's nested parts at the top.

    Raises ValueError for a speculators file of another method or another kind of block.
    """
    if "speculators_model_type" not in config:
        return config
    method = config["speculators_model_type"]
    if method != "eagle3":
        raise ValueError(
            f"{directory} is a head of type {method!r} in the speculators format; of those, type "
            f"'eagle3' is supported"
        )
    block = config.get("transformer_layer_config")
    if not isinstance(block, dict):
        raise ValueError(f"the config.json of {directory} lacks transformer_layer_config")
    if block.get("model_type", "llama") != "llama":
        raise ValueError(
            f"{directory} has a transformer_layer_config of model_type {block['model_type']!r}; "
            f"'llama' is supported"
        )
    if "norm_before_residual" not in config:
        raise ValueError(
            f"the config.json of {directory} lacks norm_before_residual, for which speculators and "
            f"vLLM assume different values; add it as true or false"
        )
    own = {name: config[name] for name in _OWN_FIELDS if name in config}
    return {**_LLAMA_DEFAULTS, **block, **own}


def eagle3_config(config: Mapping[str, Any]) -> Eagle3Config:
    """The shape of a head, from a flat `config.json`.

    A draft vocabulary of full size is none: the authors' code does not look at its `d2t`.
    """
    shape = Eagle3Config.from_dict(config)
    if shape.draft_vocab_size == shape.vocab_size:
        return replace(shape, draft_vocab_size=None)
    return shape


def check_tensors(directory: Path, config: Eagle3Config, state: Mapping[str, Tensor]) -> None:
    """Raises ValueError naming each missing, extra or misshaped tensor, by the file's names.

    `t2d` may be missing: `d2t` says the same.
    """
    with torch.device("meta"):
        expected = Eagle3Head(config, own_embedding=_brings_embedding(config, state)).state_dict()
        for name in {"d2t", "t2d"} & state.keys():
            rows = config.vocab_size
            if name == "d2t":
                rows = config.draft_vocab_size or rows
            expected[name] = torch.empty(rows, dtype=torch.long)
    block = _block_name(state)
    expected = {name.replace(_OWN_BLOCK, block, 1): value for name, value in expected.items()}
    check_keys(directory, "EAGLE-3", state, expected)


def make_head(directory: Path, config: Eagle3Config, state: State, target_rows: int) -> Eagle3Head:
    """The head of checked tensors, with as many token rows as the target.

    Raises ValueError for a `d2t` that is no choice among the target's ids, or not that of `t2d`.
    """
    state = dict(state)
    offsets, mask = state.pop("d2t", None), state.pop("t2d", None)
    own = _brings_embedding(config, state)
    if own:
        state[_EMBEDDING] = with_rows(state[_EMBEDDING], target_rows)
    known = min(config.vocab_size, target_rows)
    if config.draft_vocab_size is not None:
        assert offsets is not None
        check_draft_ids(directory, offsets, known)
        _check_mask(directory, offsets, mask)
        state["d2t"] = offsets
    elif known < target_rows or known < config.vocab_size:
        # A row that only pads the vocabulary must not be drafted.
        state[_OUTPUT] = state[_OUTPUT][:known]
        state["d2t"] = torch.zeros(known, dtype=torch.long)
        config = replace(config, draft_vocab_size=known)
    head = Eagle3Head(replace(config, vocab_size=target_rows), own_embedding=own)
    block = _block_name(state)
    head.load_state_dict({name.replace(block, _OWN_BLOCK, 1): t for name, t in state.items()})
    return head.eval()


def verifier_note(config: Mapping[str, Any], info: ModelInfo) -> str | None:
    """A line for the user where a speculators `config.json` names another model than the target."""
    verifier = (config.get("speculators_config") or {}).get("verifier") or {}
    named = verifier.get("name_or_path")
    known = {_last_part(one) for one in (info.id, info.base) if one}
    if not named or _last_part(named) in known:
        return None
    return (
        f"the draft head was trained for {named}, the target is {info.id}: answers are the "
        f"target's all the same, but fewer drafts may be accepted"
    )


def _check_mask(directory: Path, offsets: Tensor, mask: Tensor | None) -> None:
    if mask is None:
        return
    by_offsets, by_mask = set(target_ids(offsets).tolist()), set(mask.nonzero()[:, 0].tolist())
    if different := sorted(by_offsets ^ by_mask):
        raise ValueError(
            f"d2t and t2d of {directory} choose different target ids: {len(different)} are in one "
            f"of them alone, such as {different[0]}"
        )


def _brings_embedding(config: Eagle3Config, state: Mapping[str, Tensor]) -> bool:
    """The target's embedding does for a head of the target's width."""
    return _EMBEDDING in state or config.hidden_size != config.feature_size


def _block_name(state: Mapping[str, Tensor]) -> str:
    speculators = any(name.startswith(_SPECULATORS_BLOCK) for name in state)
    return _SPECULATORS_BLOCK if speculators else _OWN_BLOCK


def _last_part(name: object) -> str:
    return str(name).rstrip("/").rsplit("/", 1)[-1].lower()
