"""Safetensors files that are readable as any other file is.

May import: torch, safetensors, transformers, tss_bench.files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from tss_bench.files import replace

# The library makes its files for their owner alone.
_MODE = 0o644


def write_model(model: PreTrainedModel, directory: Path) -> None:
    """`save_pretrained`, with files for all to read.

    Raises OSError naming `directory`, such as for a full disk.
    """
    try:
        model.save_pretrained(directory)
    except SafetensorError as error:
        raise OSError(f"cannot write {directory}: {error}") from error
    for path in directory.glob("*.safetensors"):
        path.chmod(_MODE)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` in one step. Raises OSError naming `path`, such as for a full disk."""

    def write(part: Path) -> None:
        save_file(dict(tensors), part, None if metadata is None else dict(metadata))
        part.chmod(_MODE)

    try:
        replace(path, write)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
