"""The machine that a figure comes from, in words.

May import: torch inside functions (layer L3 of the design).
"""

from __future__ import annotations

import platform
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")


def processor() -> str:
    """The processor's name, as far as the platform tells it."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def device_line(device: str) -> str:
    """The device of that name, with what a figure depends on there."""
    import torch

    if torch.device(device).type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return f"{processor()}, {torch.get_num_threads()} threads"
