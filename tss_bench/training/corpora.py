"""Directories of self-generated text as one training set.

May import: torch, tss_bench.{data, decoding, weights} and tss_bench.training.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tss_bench.training.eagle_data import AnsweredPrompt, Corpus, split
from tss_bench.training.self_generation import (
    RECIPE,
    generate_from_arguments,
    read_excluded,
    read_recipe,
    shard_paths,
)
from tss_bench.weights import ModelInfo


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """The argument that `text_directories` reads."""
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="directories of self-generated shards (default: OUT/data, made if absent)",
    )


def text_directories(args: argparse.Namespace) -> list[Path]:
    """The directories that --data names; without it OUT/data, made or completed.

    Raises ValueError for a directory that is named twice: its answers would be held out and
    trained on.
    """
    if args.data is not None:
        for place, directory in enumerate(args.data):
            if directory.resolve() in [other.resolve() for other in args.data[:place]]:
                raise ValueError(f"--data names {directory} twice; name each directory once")
        return list(args.data)
    generate_from_arguments(args, args.out / "data", keep_features=True)
    return [args.out / "data"]


def own_shards(directories: Sequence[Path], info: ModelInfo) -> list[Path]:
    """The shards of all directories, in order.

    Raises ValueError for a directory without any and for text of another model than `info`.
    """
    shards = []
    for directory in directories:
        recipe = read_recipe(directory)
        if recipe["revision"] != info.revision:
            raise ValueError(
                f"the data in {directory} were made by {recipe['pretrained']!r}, revision "
                f"{recipe['revision']}, the model is {info.id!r}, revision {info.revision}; "
                "train on text that the model wrote itself"
            )
        found = shard_paths(directory)
        if not found:
            raise ValueError(f"{directory} has a {RECIPE} but no complete shard yet")
        shards += found
    return shards


def text_digest(*parts: Sequence[AnsweredPrompt]) -> str:
    """SHA-256 of the ids of all sequences and of how they are parted."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)};".encode())
        for sequence in part:
            digest.update(f"{sequence.prompt_length},{len(sequence.ids)};".encode())
            digest.update(sequence.ids.int().numpy().tobytes())
    return digest.hexdigest()


def data_record(directories: Sequence[Path]) -> dict[str, Any]:
    """What the text was made from and which evaluation rows it keeps away from, a list each."""
    excluded: list[dict[str, Any]] = []
    for directory in directories:
        excluded += [entry for entry in read_excluded(directory) if entry not in excluded]
    return {
        "data_recipes": [read_recipe(directory) for directory in directories],
        "excluded_evaluation_rows": excluded,
    }


def split_by_directory(
    corpus: Corpus, shards: Sequence[Path], share: float, seed: int
) -> tuple[list[AnsweredPrompt], list[AnsweredPrompt]]:
    """Training and held-out sequences; each directory holds out the same ones as if it was alone.

    Training answers to a prompt whose answer is held out, here or in another directory, are left
    out of both. Raises ValueError when no sequence is left to train on or to evaluate on.
    """
    train: list[AnsweredPrompt] = []
    held_out: list[AnsweredPrompt] = []
    for directory in dict.fromkeys(path.parent for path in shards):
        own = [s for s in corpus.sequences if shards[s.shard].parent == directory]
        more, kept = split(own, share, seed)
        train += more
        held_out += kept
    if not held_out:
        raise ValueError(
            "no answer is left to evaluate on: no directory of text has two answers of two or more "
            "tokens; make text from more prompts, or name a directory that has more with --data"
        )
    unseen = {_prompt(sequence) for sequence in held_out}
    train = [sequence for sequence in train if _prompt(sequence) not in unseen]
    if not train:
        raise ValueError(
            "no answer is left to train on: each answers a prompt that is held out too; make text "
            "from more prompts, or name a directory of other ones with --data"
        )
    return train, held_out


def _prompt(sequence: AnsweredPrompt) -> tuple[int, ...]:
    return tuple(sequence.ids[: sequence.prompt_length].tolist())
