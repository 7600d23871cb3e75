"""Tiny models on disk for the training commands. May import: pytest, tss_bench."""

from __future__ import annotations

from pathlib import Path

import pytest

from tss_bench.training.smoke import make_tiny_target


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a word tokenizer."""
    directory = tmp_path_factory.mktemp("tiny") / "target"
    make_tiny_target(directory)
    return directory


@pytest.fixture(scope="session")
def other_target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the same shape with other weights."""
    directory = tmp_path_factory.mktemp("tiny") / "other"
    make_tiny_target(directory, seed=1)
    return directory
