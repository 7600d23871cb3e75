"""Fixtures that every test may ask for.

May import: pytest and the standard library.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores; several threads each would wait for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of the official data files, from TSS_BENCH_DATA; skips where there is none."""
    setting = os.environ.get("TSS_BENCH_DATA", "")
    folder = Path(setting)
    if not setting or not (folder / "specbench" / "question.jsonl").is_file():
        pytest.skip("TSS_BENCH_DATA names no folder with specbench/question.jsonl")
    return folder
