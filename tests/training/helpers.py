"""A small corpus that the training tests share. May import: torch, tss_bench, tests.tiny."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch

from tests import tiny
from tss_bench.training.batch_answers import Answers, answer_prompts
from tss_bench.training.self_generation import shard_path, write_answers


def answers(
    seed: int = 0, rows: int = 8, max_new_tokens: int = 9, rows_at_once: int = 4
) -> Answers:
    """Answers of the tiny Llama to random prompts of 3 … 10 ids, every third one sampled."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [
        torch.randint(3, tiny.VOCAB, (3 + i % 8,), generator=generator).tolist()
        for i in range(rows)
    ]
    return answer_prompts(
        tiny.target(),
        prompts,
        sampled=[i % 3 == 2 for i in range(rows)],
        max_new_tokens=max_new_tokens,
        eos=frozenset({tiny.EOS}),
        seed=seed,
        rows=rows_at_once,
    )


def kill_own_process(*_: object) -> int:
    """A task of a worker process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def write_corpus(directory: Path, shards: int = 3) -> list[Path]:
    paths = [shard_path(directory, i) for i in range(shards)]
    for i, path in enumerate(paths):
        write_answers(path, answers(seed=i))
    return paths
