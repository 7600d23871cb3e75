"""Several directories as one training set. May import: pytest, torch, tss_bench.training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tss_bench.training.batch_answers import Answers
from tss_bench.training.corpora import split_by_directory
from tss_bench.training.eagle_data import AnsweredPrompt, Corpus, split
from tss_bench.training.self_generation import shard_path, write_answers

Row = tuple[list[int], list[int]]


def shard(directory: Path, rows: Sequence[Row]) -> Path:
    """One shard of the prompts and answers, with features of zeros."""
    directory.mkdir()
    ids = [torch.tensor(prompt + answer) for prompt, answer in rows]
    features = [torch.zeros(len(row) - 1, 2) for row in ids]
    lengths = [len(prompt) for prompt, _ in rows]
    write_answers(shard_path(directory, 0), Answers(ids, lengths, [False] * len(rows), features))
    return shard_path(directory, 0)


def prompts(sequences: Sequence[AnsweredPrompt]) -> list[list[int]]:
    return [s.ids[: s.prompt_length].tolist() for s in sequences]


def rows(answer: int) -> list[Row]:
    """Twelve prompts, the same for each answer."""
    return [([10 + i, 5], [answer, 4, 2]) for i in range(12)]


def test_what_one_directory_holds_out_no_other_trains_on(tmp_path: Path) -> None:
    # The same prompts in another order, so that other ones are held out.
    shards = [shard(tmp_path / "a", rows(6)), shard(tmp_path / "b", rows(7)[::-1])]
    corpus = Corpus(shards)
    train, held_out = split_by_directory(corpus, shards, 0.25, 0)
    own = [split(corpus.sequences[:12], 0.25, 0), split(corpus.sequences[12:], 0.25, 0)]
    assert held_out == own[0][1] + own[1][1]
    unseen = prompts(held_out)
    assert any(prompt in unseen for prompt in prompts(own[0][0] + own[1][0]))
    assert train == [s for s in own[0][0] + own[1][0] if prompts([s])[0] not in unseen]
    assert len(train) > 6


def test_a_directory_of_different_prompts_keeps_all_its_answers(tmp_path: Path) -> None:
    shards = [shard(tmp_path / "a", rows(6))]
    corpus = Corpus(shards)
    assert split_by_directory(corpus, shards, 0.25, 0) == split(corpus.sequences, 0.25, 0)


def test_an_answer_to_evaluate_on_is_needed(tmp_path: Path) -> None:
    shards = [shard(tmp_path / "a", rows(6)[:1]), shard(tmp_path / "b", rows(7)[1:2])]
    with pytest.raises(ValueError, match="no answer is left to evaluate on: no directory of text"):
        split_by_directory(Corpus(shards), shards, 0.25, 0)


def test_an_answer_to_train_on_is_needed(tmp_path: Path) -> None:
    shards = [shard(tmp_path / "a", [*rows(6)[:1], *rows(7)[:1]])]
    with pytest.raises(ValueError, match="no answer is left to train on"):
        split_by_directory(Corpus(shards), shards, 0.25, 0)
