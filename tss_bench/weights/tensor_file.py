"""A safetensors file that is written whole or not at all, readable as any other file is.

May import: torch, safetensors, tss_bench.files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tss_bench.files import replace


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` in one step. Raises OSError naming `path`, such as for a full disk."""

    def write(part: Path) -> None:
        save_file(dict(tensors), part, None if metadata is None else dict(metadata))
        # The library makes the file for its owner alone.
        part.chmod(0o644)

    try:
        replace(path, write)
    except SafetensorError as error:
        raise OSError(f"cannot write {path}: {error}") from error
