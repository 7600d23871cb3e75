"""EAGLE draft heads on disk: find, read with strict checks, write with provenance.

A head belongs to a target of its width and token ids. Rows that pad a vocabulary mean nothing:
a head with fewer or more of them than the target is fitted to the target's rows.

May import: torch, transformers (types only),
tss_bench.decoding.drafters.{eagle_head, eagle3_head, head_block}, tss_bench.files and
tss_bench.weights.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tss_bench.decoding.drafters.eagle3_head import Eagle3Config, Eagle3Head
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.drafters.head_block import HeadShape
from tss_bench.files import replace_text
from tss_bench.weights.eagle3 import (
    check_tensors,
    eagle3_config,
    flat_config,
    is_eagle3,
    make_head,
    verifier_note,
)
from tss_bench.weights.eagle_files import (
    PICKLE,
    SAFETENSORS,
    State,
    check_draft_ids,
    check_keys,
    read_config_file,
    read_state,
    with_rows,
)
from tss_bench.weights.hub import hub_directory, tokenizer_files
from tss_bench.weights.loading import ModelInfo, read_tokenizer
from tss_bench.weights.tensor_file import write_tensors
from tss_bench.weights.tokenizers import require_same_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROVENANCE = "provenance.json"
_EMBEDDING = "embed_tokens.weight"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


class NoPackagedHeadError(ValueError):
    """No head comes with the package for a target."""


def resolve_eagle(draft: str, info: ModelInfo, revision: str | None = None) -> Path:
    """The directory of the head `draft`: `auto` (the packaged one), a directory or a hub id.

    A LoRA without a packaged head of its own drafts with its base's: their features are close.
    Raises NoPackagedHeadError when there is none, saying how to get one, and ValueError for a
    `draft` that is none and a `revision` (branch, tag or commit) of what is not on the hub.
    """
    path = Path(draft).expanduser()
    local = draft == "auto" or (draft and path.is_dir())
    if local and revision not in (None, "main"):
        raise ValueError(
            f"draft_revision={revision!r} does not apply to draft={draft!r}: only heads on the "
            f"hub have revisions; leave it out"
        )
    if draft == "auto":
        for owner in filter(None, (info.id, info.base)):
            packaged = packaged_heads() / owner
            if (packaged / "config.json").is_file():
                return packaged
        raise NoPackagedHeadError(
            f"no EAGLE head is packaged for {info.id!r}; train one with `tss-bench train eagle` "
            f"or pass draft=<directory or hub id of a head> (the authors' heads are named "
            f"yuhuili/EAGLE-… and yuhuili/EAGLE3-… on the hub)"
        )
    if local:
        return path
    if path.exists() or draft.startswith((".", "/", "~")) or draft.count("/") != 1:
        raise ValueError(
            f"draft={draft!r} is no directory of an EAGLE head; pass draft=auto, a directory "
            f"with config.json and {SAFETENSORS}, or a hub id such as owner/name"
        )
    return hub_directory(draft, revision, _head_files)[0]


def packaged_heads() -> Path:
    """Where the heads that come with the package lie, one directory a model id."""
    return Path(str(files("tss_bench"))) / "assets" / "eagle"


def _head_files(names: list[str]) -> list[str]:
    weights = SAFETENSORS if SAFETENSORS in names else PICKLE
    return [name for name in names if name in ("config.json", weights)] + tokenizer_files(names)


def check_eagle_head(
    path: str | Path, info: ModelInfo, target_tokenizer: Callable[[], PreTrainedTokenizerBase]
) -> bool:
    """Refuse a head that cannot draft for the target, from its config, tensor names and shapes.

    Returns whether its tokenizer was compared with the target's and found equal; without one
    in the directory the vocabulary's size decides. Raises ValueError: no head in the directory,
    one of an unknown kind or with other tensors than its config means, another width, vocabulary
    or tokenizer, naming both, and an EAGLE-3 head for a target with too few layers.
    """
    directory = Path(path)
    config, state = _read(directory, outline=True)
    _check_width(directory, config, info.hidden_size)
    same_tokenizer = any((directory / name).is_file() for name in _TOKENIZERS)
    if same_tokenizer:
        require_same_tokenizer(
            target_tokenizer(),
            read_tokenizer(directory, str(directory)),
            target_name=info.id,
            draft_name=str(directory),
        )
    _check_vocabulary(directory, config, info.vocab_size, same_tokenizer)
    _check_tensors(directory, config, state)
    if isinstance(config, Eagle3Config):
        config.feature_layers(info.num_layers)
    return same_tokenizer


def eagle_notes(path: str | Path, info: ModelInfo) -> list[str]:
    """What the user should be told of a head that passed `check_eagle_head`, a line each."""
    directory = Path(path)
    notes = verifier_note(read_config_file(directory), info), _target_note(directory, info)
    return [note for note in notes if note is not None]


def _target_note(directory: Path, info: ModelInfo) -> str | None:
    """A line where the head's own record names another target; a LoRA may use its base's head.

    Others' files of that name say nothing here.
    """
    try:
        record = json.loads((directory / PROVENANCE).read_text("utf-8"))
        target, revision = record["target"], record["target_revision"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if revision == info.revision or target == info.base:
        return None
    return (
        f"the draft head was trained for {target} (revision {str(revision)[:12]}), the target is "
        f"{info.id} (revision {info.revision[:12]}): answers are the target's all the same, but "
        f"fewer drafts may be accepted"
    )


def load_eagle_head(
    path: str | Path,
    *,
    target_hidden_size: int,
    target_vocab_size: int,
    same_tokenizer: bool = False,
) -> EagleHead | Eagle3Head:
    """Read a head as a float32 module in eval mode, with as many token rows as the target.

    Config and tensor names tell whether it is of EAGLE-1/2 or EAGLE-3. `same_tokenizer`: see
    `check_eagle_head`. Raises ValueError naming every missing, extra or misshaped key, and both
    numbers when the head belongs to a target of another width or vocabulary.
    """
    directory = Path(path)
    config, state = _read(directory)
    _check_width(directory, config, target_hidden_size)
    _check_vocabulary(directory, config, target_vocab_size, same_tokenizer)
    _check_tensors(directory, config, state)
    if isinstance(config, Eagle3Config):
        return make_head(directory, config, state, target_vocab_size)
    if config.draft_vocab_size is not None:
        check_draft_ids(directory, state["d2t"], min(config.vocab_size, target_vocab_size))
    own = _EMBEDDING in state
    if own:
        state[_EMBEDDING] = with_rows(state[_EMBEDDING], target_vocab_size)
    head = EagleHead(dataclasses.replace(config, vocab_size=target_vocab_size), own_embedding=own)
    head.load_state_dict(state)
    return head.eval()


def save_eagle_head(head: EagleHead, path: str | Path, provenance: Mapping[str, Any]) -> None:
    """Write `model.safetensors` (the head's own dtype), `config.json` and `provenance.json`.

    Each file appears whole or not at all; the weights come last. Raises OSError where one
    cannot be written.
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", head.config.to_dict())
    _write_json(directory / PROVENANCE, dict(provenance))
    state = {key: value.detach().cpu().contiguous() for key, value in head.state_dict().items()}
    write_tensors(directory / SAFETENSORS, state, {"format": "pt"})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    replace_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _read(directory: Path, *, outline: bool = False) -> tuple[EagleConfig | Eagle3Config, State]:
    """Shape and tensors of a head; `outline`: the tensors' names and shapes alone."""
    raw = read_config_file(directory)
    config = flat_config(directory, raw)
    if int(config.get("num_hidden_layers", 1)) != 1:
        raise ValueError(
            f"{directory / 'config.json'} has num_hidden_layers {config['num_hidden_layers']}, an "
            f"EAGLE head has 1: is this a whole model?"
        )
    state = read_state(directory, outline=outline)
    if is_eagle3(raw, state):
        return eagle3_config(config), state
    return _fit_config(EagleConfig.from_dict(config), state), state


def _check_tensors(
    directory: Path, config: EagleConfig | Eagle3Config, state: Mapping[str, Tensor]
) -> None:
    if isinstance(config, Eagle3Config):
        check_tensors(directory, config, state)
        return
    with torch.device("meta"):
        expected = EagleHead(config, own_embedding=_EMBEDDING in state).state_dict()
    check_keys(directory, "EAGLE-1/2", state, expected)


def _check_width(directory: Path, config: HeadShape, target: int) -> None:
    if config.feature_size != target:
        raise ValueError(
            f"the EAGLE head {directory} has hidden_size {config.feature_size}, the target has "
            f"{target}: it was trained for another model; pass a head of this target as draft="
        )


def _check_vocabulary(
    directory: Path, config: HeadShape, target: int, same_tokenizer: bool
) -> None:
    """A larger vocabulary may have tokens that the target lacks; equal tokenizers rule it out."""
    if config.vocab_size > target and not same_tokenizer:
        raise ValueError(
            f"the EAGLE head {directory} has vocab_size {config.vocab_size}, the target has "
            f"{target}: it was trained for another model; pass a head of this target as draft=, "
            f"or put the head's tokenizer files beside it if they only differ in padded rows"
        )


def _fit_config(config: EagleConfig, state: Mapping[str, Tensor]) -> EagleConfig:
    """No `fc.bias` in the file means no bias; a draft vocabulary of full size needs no `d2t`."""
    if "fc.bias" not in state:
        config = dataclasses.replace(config, bias=False)
    if config.draft_vocab_size == config.vocab_size and "d2t" not in state:
        config = dataclasses.replace(config, draft_vocab_size=None)
    return config
