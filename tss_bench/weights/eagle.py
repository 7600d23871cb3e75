"""EAGLE-1/2 draft heads on disk: find, read with strict checks, write with provenance.

May import: torch, safetensors, tss_bench.decoding.drafters.eagle_head and tss_bench.weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.weights.hub import hub_directory
from tss_bench.weights.loading import ModelInfo

SAFETENSORS, PICKLE, PROVENANCE = "model.safetensors", "pytorch_model.bin", "provenance.json"


def resolve_eagle(draft: str, info: ModelInfo) -> Path:
    """The directory of the head `draft`: `auto` (the packaged one), a directory or a hub id.

    Raises ValueError when there is none, saying how to get one.
    """
    if draft == "auto":
        packaged = packaged_heads() / info.id
        if (packaged / "config.json").is_file():
            return packaged
        raise ValueError(
            f"no EAGLE head is packaged for {info.id!r}; train one with `tss-bench train eagle` "
            f"or pass draft=<directory or hub id of a head> (the authors' heads are named "
            f"yuhuili/EAGLE-… on the hub)"
        )
    path = Path(draft).expanduser()
    if draft and path.is_dir():
        return path
    if path.exists() or draft.startswith((".", "/", "~")) or draft.count("/") != 1:
        raise ValueError(
            f"draft={draft!r} is no directory of an EAGLE head; pass draft=auto, a directory "
            f"with config.json and {SAFETENSORS}, or a hub id such as owner/name"
        )
    return hub_directory(draft, None, _head_files)[0]


def packaged_heads() -> Path:
    """Where the heads that come with the package lie, one directory a model id."""
    return Path(str(files("tss_bench"))) / "assets" / "eagle"


def _head_files(names: list[str]) -> list[str]:
    weights = SAFETENSORS if SAFETENSORS in names else PICKLE
    return [name for name in names if name in ("config.json", weights)]


def load_eagle_head(
    path: str | Path, *, target_hidden_size: int, target_vocab_size: int
) -> EagleHead:
    """Read a head as a float32 module in eval mode.

    Raises ValueError naming every missing, extra or misshaped key, a head of another kind, and
    both numbers when the head belongs to a target of another width or vocabulary.
    """
    directory = Path(path)
    config = _read_config(directory)
    _check_target(directory, "hidden_size", config.hidden_size, target_hidden_size)
    _check_target(directory, "vocab_size", config.vocab_size, target_vocab_size)
    state = _read_state(directory)
    if any(key.startswith("midlayer.") for key in state):
        raise ValueError(f"{directory} is an EAGLE-3 head; an EAGLE-1 or EAGLE-2 head is needed")
    config = _fit_config(config, state)
    head = EagleHead(config, own_embedding="embed_tokens.weight" in state)
    _check_keys(directory, state, head.state_dict())
    if config.draft_vocab_size is not None:
        _check_draft_ids(directory, state["d2t"], config.vocab_size)
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
    if int(config.get("num_hidden_layers", 1)) != 1:
        raise ValueError(
            f"{path} has num_hidden_layers {config['num_hidden_layers']}, an EAGLE head has 1: "
            f"is this a whole model?"
        )
    return EagleConfig.from_dict(config)


def _check_target(directory: Path, field: str, own: int, target: int) -> None:
    if own != target:
        raise ValueError(
            f"the EAGLE head {directory} has {field} {own}, the target has {target}: it was "
            f"trained for another model; pass a head of this target as draft="
        )


def _read_state(directory: Path) -> dict[str, Tensor]:
    """The tensors of the file, without the rotary tables that old Llama files carry."""
    safe, pickle = directory / SAFETENSORS, directory / PICKLE
    try:
        if safe.is_file():
            state = load_file(safe)
        elif pickle.is_file():
            state = torch.load(pickle, map_location="cpu", weights_only=True)
        else:
            raise ValueError(f"{directory} has neither {SAFETENSORS} nor {PICKLE}")
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
