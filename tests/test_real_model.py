"""The default target and its packaged head, as a user gets them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tss_bench import bench

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def all_cores() -> Iterator[None]:
    """The tests of tiny models run on one thread; a real one wants them all."""
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)


def arguments(limit: int, tasks: str, model: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    words = ["--limit", str(limit), "--tasks", tasks, "--model", model]
    return parser.parse_args([*words, "--model_args", "dtype=float32"])


@pytest.mark.parametrize("adapter", ["native_eagle", "native_token_recycling"])
def test_speculative_answers_equal_plain_ones(adapter: str, data_dir: Path) -> None:
    """`tss-bench bench lossless --limit 8 --model_args dtype=float32` is the long form."""
    tasks = "specbench_translation,specbench_qa"
    bench.run_lossless(arguments(2, tasks, f"native_ar,{adapter}"))


@pytest.mark.parametrize(
    ("native", "sparse"),
    [("tss_ar", "tss_eagle"), ("tss_ar", "tss_token_recycling")],
)
def test_sparse_answers_do_not_depend_on_the_drafter(
    native: str, sparse: str, data_dir: Path
) -> None:
    args = arguments(2, "specbench_translation", f"{native},{sparse}")
    args.model_args += ",skip_layers=3+10+25"
    bench.run_lossless(args)
