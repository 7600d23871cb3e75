"""The files of a draft head's directory: config and tensors, whole or in outline.

May import: torch, safetensors, tss_bench.decoding.drafters.head_block.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from tss_bench.decoding.drafters.head_block import target_ids

SAFETENSORS, PICKLE = "model.safetensors", "pytorch_model.bin"

State = dict[str, Tensor]


def read_config_file(directory: Path) -> dict[str, Any]:
    """The directory's `config.json`; raises ValueError where it is missing or no JSON object."""
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{directory} has no config.json, so it is no EAGLE head") from error
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object")
    return config


def read_state(directory: Path, *, outline: bool = False) -> State:
    """The tensors of the directory's file, without the rotary tables that old Llama files carry.

    `outline`: names and shapes alone, as tensors without memory. A pickle is read as plain
    tensors only, and not at all beside a safetensors file. Raises ValueError for no file, a torn
    one, and a pickle that would run code.
    """
    safe, pickle = directory / SAFETENSORS, directory / PICKLE
    try:
        if safe.is_file():
            state = _outline(safe) if outline else load_file(safe)
        elif pickle.is_file():
            state = torch.load(pickle, map_location="meta" if outline else "cpu", weights_only=True)
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


def _outline(path: Path) -> State:
    with safe_open(path, "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {
            name: torch.empty(one.get_shape(), dtype=_kind(one.get_dtype()), device="meta")
            for name, one in slices.items()
        }


def _kind(dtype: str) -> torch.dtype:
    """Some floating dtype for the safetensors names F32, BF16, F8_E4M3 …, else some other."""
    return torch.float32 if dtype.startswith(("F", "BF")) else torch.int64


def check_keys(
    directory: Path, kind: str, state: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> None:
    """Raises ValueError naming every key of a `kind` head that is missing, extra, misshaped, of
    another dtype or not finite."""
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
        elif not state[key].is_meta and not torch.isfinite(state[key]).all():
            problems.append(f"{key} holds values that are not finite")
    if problems:
        raise ValueError(f"{directory} is no {kind} head: {'; '.join(problems)}")


def check_draft_ids(directory: Path, offsets: Tensor, vocab_size: int) -> None:
    """Raises ValueError where `d2t` names ids outside the vocabulary, or one twice."""
    ids = target_ids(offsets)
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(
            f"d2t of {directory} points to target ids {int(ids.min())} to {int(ids.max())}, "
            f"allowed are 0 to {vocab_size - 1}"
        )
    if len(ids.unique()) != len(ids):
        raise ValueError(f"d2t of {directory} points to the same target id twice")


def with_rows(matrix: Tensor, rows: int) -> Tensor:
    """The first `rows` rows, zeros where there are none; padded rows belong to no token."""
    missing = max(0, rows - len(matrix))
    return torch.cat([matrix[:rows], matrix.new_zeros(missing, matrix.shape[1])])
