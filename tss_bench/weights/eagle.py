"""EAGLE-1/2 draft heads on disk: find, read with strict checks, write with provenance.

A head belongs to a target of its width and token ids. Rows that pad a vocabulary mean nothing:
a head with fewer or more of them than the target is fitted to the target's rows.

May import: torch, safetensors, transformers (types only),
tss_bench.decoding.drafters.eagle_head and tss_bench.weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.weights.hub import hub_directory, tokenizer_files
from tss_bench.weights.loading import ModelInfo, read_tokenizer
from tss_bench.weights.tokenizers import require_same_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAFETENSORS, PICKLE, PROVENANCE = "model.safetensors", "pytorch_model.bin", "provenance.json"
_EMBEDDING = "embed_tokens.weight"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def resolve_eagle(draft: str, info: ModelInfo, revision: str | None = None) -> Path:
    """The directory of the head `draft`: `auto` (the packaged one), a directory or a hub id.

    A LoRA without a packaged head of its own drafts with its base's: their features are close.
    Raises ValueError when there is none, saying how to get one, and for a `revision` (branch,
    tag or commit) of what is not on the hub.
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
        raise ValueError(
            f"no EAGLE head is packaged for {info.id!r}; train one with `tss-bench train eagle` "
            f"or pass draft=<directory or hub id of a head> (the authors' heads are named "
            f"yuhuili/EAGLE-… on the hub)"
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
    """Refuse a head that cannot draft for the target, from its config and file names alone.

    Returns whether its tokenizer was compared with the target's and found equal; without one
    in the directory the vocabulary's size decides. Raises ValueError: no head in the directory,
    a head of another kind, and another width, vocabulary or tokenizer, naming both.
    """
    directory = Path(path)
    config = _read_config(directory)
    _check_kind(directory, _weight_names(directory))
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
    return same_tokenizer


def load_eagle_head(
    path: str | Path,
    *,
    target_hidden_size: int,
    target_vocab_size: int,
    same_tokenizer: bool = False,
) -> EagleHead:
    """Read a head as a float32 module in eval mode, with as many token rows as the target.

    `same_tokenizer`: see `check_eagle_head`. Raises ValueError naming every missing, extra or
    misshaped key, a head of another kind, and both numbers when the head belongs to a target of
    another width or vocabulary.
    """
    directory = Path(path)
    config = _read_config(directory)
    _check_width(directory, config, target_hidden_size)
    _check_vocabulary(directory, config, target_vocab_size, same_tokenizer)
    state = _read_state(directory)
    _check_kind(directory, state)
    config = _fit_config(config, state)
    own = _EMBEDDING in state
    _check_keys(directory, state, EagleHead(config, own_embedding=own).state_dict())
    if config.draft_vocab_size is not None:
        _check_draft_ids(directory, state["d2t"], min(config.vocab_size, target_vocab_size))
    if own:
        state[_EMBEDDING] = _with_rows(state[_EMBEDDING], target_vocab_size)
    head = EagleHead(replace(config, vocab_size=target_vocab_size), own_embedding=own)
    head.load_state_dict(state)
    return head.eval()


def save_eagle_head(head: EagleHead, path: str | Path, provenance: Mapping[str, Any]) -> None:
    """Write `model.safetensors` (the head's own dtype), `config.json` and `provenance.json`.

    Each file appears whole or not at all; the weights come last.
    """
    directory = Path(path)
    directory.mkdir(parents=True, exist_ok=True)
    _write_json(directory / "config.json", head.config.to_dict())
    _write_json(directory / PROVENANCE, dict(provenance))
    state = {key: value.detach().cpu().contiguous() for key, value in head.state_dict().items()}
    unfinished = directory / f"{SAFETENSORS}.tmp"
    save_file(state, unfinished, metadata={"format": "pt"})
    unfinished.chmod(0o644)
    unfinished.replace(directory / SAFETENSORS)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
    unfinished.replace(path)


def _read_config(directory: Path) -> EagleConfig:
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{directory} has no config.json, so it is no EAGLE head") from error
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object")
    if "speculators_model_type" in config:
        raise ValueError(f"{directory} is in the speculators format; an EAGLE directory is needed")
    if any("eagle3" in str(name).lower() for name in config.get("architectures") or ()):
        _refuse_eagle_3(directory)
    if int(config.get("num_hidden_layers", 1)) != 1:
        raise ValueError(
            f"{path} has num_hidden_layers {config['num_hidden_layers']}, an EAGLE head has 1: "
            f"is this a whole model?"
        )
    return EagleConfig.from_dict(config)


def _check_kind(directory: Path, names: Iterable[str]) -> None:
    if any(name.startswith("midlayer.") for name in names):
        _refuse_eagle_3(directory)


def _refuse_eagle_3(directory: Path) -> NoReturn:
    raise ValueError(f"{directory} is an EAGLE-3 head; an EAGLE-1 or EAGLE-2 head is needed")


def _check_width(directory: Path, config: EagleConfig, target: int) -> None:
    if config.hidden_size != target:
        raise ValueError(
            f"the EAGLE head {directory} has hidden_size {config.hidden_size}, the target has "
            f"{target}: it was trained for another model; pass a head of this target as draft="
        )


def _check_vocabulary(
    directory: Path, config: EagleConfig, target: int, same_tokenizer: bool
) -> None:
    """A larger vocabulary may have tokens that the target lacks; equal tokenizers rule it out."""
    if config.vocab_size > target and not same_tokenizer:
        raise ValueError(
            f"the EAGLE head {directory} has vocab_size {config.vocab_size}, the target has "
            f"{target}: it was trained for another model; pass a head of this target as draft=, "
            f"or put the head's tokenizer files beside it if they only differ in padded rows"
        )


def _with_rows(matrix: Tensor, rows: int) -> Tensor:
    """The first `rows` rows, zeros where there are none; padded rows belong to no token."""
    missing = max(0, rows - len(matrix))
    return torch.cat([matrix[:rows], matrix.new_zeros(missing, matrix.shape[1])])


def _weight_names(directory: Path) -> list[str]:
    """Names in the header of the safetensors file; a pickle tells none before it is read."""
    safe = directory / SAFETENSORS
    if not safe.is_file():
        _require_pickle(directory)
        return []
    try:
        with safe_open(safe, "pt") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot read the weights in {directory}: {error}") from error


def _require_pickle(directory: Path) -> None:
    if not (directory / PICKLE).is_file():
        raise ValueError(f"{directory} has neither {SAFETENSORS} nor {PICKLE}")


def _read_state(directory: Path) -> dict[str, Tensor]:
    """The tensors of the file, without the rotary tables that old Llama files carry."""
    safe, pickle = directory / SAFETENSORS, directory / PICKLE
    try:
        if safe.is_file():
            state = load_file(safe)
        else:
            _require_pickle(directory)
            state = torch.load(pickle, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, OSError) as error:
        raise ValueError(f"cannot read the weights in {directory}: {error}") from error
    except UnpicklingError as error:
        raise ValueError(
            f"{pickle} is no plain tensor file and is not opened, since a pickle can run code; "
            f"convert it to {SAFETENSORS} on a machine you trust it on"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise ValueError(f"{pickle} is no dictionary of tensors")
    return {k: v for k, v in state.items() if not k.endswith("rotary_emb.inv_freq")}


def _fit_config(config: EagleConfig, state: Mapping[str, Tensor]) -> EagleConfig:
    """No `fc.bias` in the file means no bias; a draft vocabulary of full size needs no `d2t`."""
    if "fc.bias" not in state:
        config = replace(config, bias=False)
    if config.draft_vocab_size == config.vocab_size and "d2t" not in state:
        config = replace(config, draft_vocab_size=None)
    return config


def _check_keys(
    directory: Path, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    problems = []
    if missing := sorted(expected.keys() - state.keys()):
        problems.append(f"missing {', '.join(missing)}")
    if extra := sorted(state.keys() - expected.keys()):
        problems.append(f"extra {', '.join(extra)}")
    for key in sorted(expected.keys() & state.keys()):
        found, wanted = list(state[key].shape), list(expected[key].shape)
        if found != wanted:
            problems.append(f"{key} has shape {found}, config.json means {wanted}")
        elif state[key].is_floating_point() != expected[key].is_floating_point():
            problems.append(f"{key} has dtype {state[key].dtype}")
        elif not torch.isfinite(state[key]).all():
            problems.append(f"{key} holds values that are not finite")
    if problems:
        raise ValueError(f"{directory} is no EAGLE-1/2 head: {'; '.join(problems)}")


def _check_draft_ids(directory: Path, offsets: Tensor, vocab_size: int) -> None:
    ids = offsets.long() + torch.arange(len(offsets))
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(
            f"d2t of {directory} points to target ids {int(ids.min())} to {int(ids.max())}, "
            f"allowed are 0 to {vocab_size - 1}"
        )
    if len(ids.unique()) != len(ids):
        raise ValueError(f"d2t of {directory} points to the same target id twice")
