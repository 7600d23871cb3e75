"""A stable fingerprint of a model directory's weights that reads megabytes, not gigabytes.

May import: the standard library only.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_SAMPLE = 4096
_PICKLE_SAMPLES = 64


def weights_fingerprint(directory: Path) -> str:
    """SHA-256 over the config and samples of every weight file in `directory`.

    Of a LoRA (a directory with adapter_config.json) its own two files count, its base does not.

    Safetensors: the header and the first and middle 4 KiB of each tensor, so any fine-tuning
    that touches a whole matrix shows; pickles: 64 evenly spaced samples. File names and sizes
    count too. Raises ValueError if there are no weights or a safetensors file is torn.
    """
    config, files = _files(directory)
    digest = hashlib.sha256()
    if config.is_file():
        digest.update(config.read_bytes())
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}:{size};".encode())
        ranges = _tensor_ranges(path, size) if path.suffix == ".safetensors" else _spread(size)
        with path.open("rb") as file:
            for start, length in ranges:
                file.seek(start)
                digest.update(file.read(length))
    return digest.hexdigest()


def _files(directory: Path) -> tuple[Path, list[Path]]:
    """The config and the weight files that count."""
    if (directory / ADAPTER_CONFIG).is_file():
        if not (directory / ADAPTER_WEIGHTS).is_file():
            raise ValueError(f"{directory} holds no weights ({ADAPTER_WEIGHTS})")
        return directory / ADAPTER_CONFIG, [directory / ADAPTER_WEIGHTS]
    files = sorted(directory.glob("*.safetensors")) or sorted(directory.glob("pytorch_model*.bin"))
    if not files:
        raise ValueError(f"{directory} holds no weights (*.safetensors or pytorch_model*.bin)")
    return directory / "config.json", files


def _tensor_ranges(path: Path, size: int) -> list[tuple[int, int]]:
    """(offset, length) of the header and of two samples a tensor."""
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(header_size) if header_size < size else "")
            spans = [
                item["data_offsets"] for name, item in header.items() if name != "__metadata__"
            ]
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no whole safetensors file; copy it again") from error
    data = 8 + header_size
    if any(data + end > size for _, end in spans):
        raise ValueError(f"{path} is cut short at {size} bytes; copy it again")
    ranges = [(0, data)]
    for start, end in spans:
        length = min(_SAMPLE, end - start)
        ranges += [(data + start, length), (data + (start + end - length) // 2, length)]
    return ranges


def _spread(size: int) -> list[tuple[int, int]]:
    return [(size * index // _PICKLE_SAMPLES, _SAMPLE) for index in range(_PICKLE_SAMPLES)]
