"""`tss-bench bench fidelity`: how close a target stays to another one on self-generated text.

Teacher-forced: at full depth, with layers skipped, and with an exit after each layer. The last
line printed is JSON.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tss_bench import __version__, weights
from tss_bench.decoding.target import Target
from tss_bench.fidelity_measure import Answer, Role, measure, variants
from tss_bench.fidelity_report import (
    ablation_panels,
    exit_panels,
    fidelity_rows,
    full_depth_table,
    layers_table,
    mean_of_singles,
    sets_table,
)
from tss_bench.skip_plots import check_plot, draw
from tss_bench.tolerance import add_targets
from tss_bench.tolerance_plan import require_same_tokenizer
from tss_bench.tolerance_report import parse_sets
from tss_bench.training.eagle_data import AnsweredPrompt, split
from tss_bench.training.self_generation import read_answers, read_recipe, shard_paths
from tss_bench.types import SkipSet

DTYPES = ("bfloat16", "float32")

Infos = dict[Role, weights.ModelInfo]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench bench fidelity`."""
    parser.epilog = (
        "Both targets are in memory at once. The text is what training held out, as long as share "
        "and seed are those of the training and the directory has the same shards."
    )
    add_targets(parser, reference_required=True)
    parser.add_argument(
        "--data", type=Path, required=True, help="directory that `tss-bench data generate` filled"
    )
    parser.add_argument(
        "--answers", type=int, default=128, help="held-out answers to read (default 128)"
    )
    parser.add_argument(
        "--held-out", type=float, default=0.03, help="share that training kept (default 0.03)"
    )
    parser.add_argument("--held-out-seed", type=int, default=0, help="its seed (default 0)")
    parser.add_argument("--sets", default="", help="skip sets beside each single layer: 3+10,3+25")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--plot", type=Path, help="prefix of pictures: PREFIX-ablation.png, PREFIX-exits.png"
    )


def run(args: argparse.Namespace) -> None:
    """Measure both targets and print the tables.

    Raises ValueError for bad input before any weight is loaded.
    """
    infos: Infos = {
        "reference": weights.describe(args.reference),
        "target": weights.describe(args.pretrained),
    }
    sets = _check(args, infos)
    answers, held_out = read_held_out(args.data, args.held_out, args.held_out_seed, args.answers)
    _check_answers(answers, infos)
    wanted = [v for role in infos for v in variants(role, sets, infos[role].num_layers)]
    targets = {
        role: Target(weights.load_model(name, dtype=args.dtype, device=args.device)[0])
        for role, name in _names(args).items()
    }
    readings = measure(targets, answers, wanted)
    rows, means = fidelity_rows(readings), mean_of_singles(readings)
    setting = {**_setting(args, infos), "held_out_answers": held_out, "answers": len(answers)}
    setting["positions"] = int(readings.answer_positions.sum())
    names = {role: info.id for role, info in infos.items()}
    print(_headline(setting))
    print(f"\n{full_depth_table(rows, names)}\n\n{layers_table(rows, means)}")
    if sets:
        print(f"\n{sets_table(rows, sets)}")
    if args.plot is not None:
        draw(ablation_panels(rows, names), 2, _picture(args.plot, "ablation"))
        draw(exit_panels(rows, names), 1, _picture(args.plot, "exits"))
    print(json.dumps({"bench": "fidelity", **setting, "results": rows, "single_mean": means}))


def read_held_out(directory: Path, share: float, seed: int, count: int) -> tuple[list[Answer], int]:
    """The first `count` answers that training holds out, and how many it holds out in all.

    Those of `eagle_data.split` over `eagle_data.Corpus`; no hidden states are needed. Raises
    ValueError for a directory without data.
    """
    read_recipe(directory)
    sequences = []
    for number, path in enumerate(shard_paths(directory)):
        answers = read_answers(path)
        for row in zip(answers.ids, answers.prompt_lengths, answers.sampled, strict=True):
            sequence = AnsweredPrompt(*row, shard=number, first=0)
            if sequence.answer_slots > 0 and sequence.prompt_length > 1:
                sequences.append(sequence)
    if len(sequences) < 2:
        raise ValueError(f"{directory} holds fewer than two answers of two or more tokens")
    _, held_out = split(sequences, share, seed)
    return [Answer(s.ids, s.prompt_length) for s in held_out[:count]], len(held_out)


def _check(args: argparse.Namespace, infos: Infos) -> list[SkipSet]:
    """The sets of `--sets` without the dense one and single layers. Raises ValueError."""
    if args.answers < 2:
        raise ValueError(f"--answers must be at least 2, got {args.answers}")
    if not 0 < args.held_out < 1:
        raise ValueError(f"--held-out must lie between 0 and 1, got {args.held_out}")
    if args.plot is not None:
        check_plot(_picture(args.plot, "exits"))
    for name in ("num_layers", "vocab_size"):
        first, second = (getattr(info, name) for info in infos.values())
        if first != second:
            raise ValueError(
                f"--reference {args.reference} has {name} {first}, --pretrained "
                f"{args.pretrained} has {second}; compare a model with its adapted form"
            )
    sets = parse_sets(args.sets, infos["target"].num_layers)
    if args.reference != args.pretrained:
        names = args.reference, args.pretrained
        first, second = map(weights.load_tokenizer, names)
        require_same_tokenizer(names[0], first, names[1], second)
    return [skip for skip in sets if len(skip) > 1]


def _check_answers(answers: list[Answer], infos: Mapping[Role, weights.ModelInfo]) -> None:
    """The text may be that of another model."""
    longest = max(len(answer.ids) for answer in answers)
    highest = max(int(answer.ids.max()) for answer in answers)
    for info in infos.values():
        if longest > info.context_length:
            raise ValueError(
                f"--data has a text of {longest} tokens, the context of {info.id} is "
                f"{info.context_length}; make data with this target"
            )
        if highest >= info.vocab_size:
            raise ValueError(
                f"--data has id {highest}, {info.id} has ids 0 to {info.vocab_size - 1}: it is "
                f"text of another tokenizer; make data with this target"
            )


def _names(args: argparse.Namespace) -> dict[Role, str]:
    return {"reference": args.reference, "target": args.pretrained}


def _picture(prefix: Path, what: str) -> Path:
    return prefix.with_name(f"{prefix.name}-{what}.png")


def _setting(args: argparse.Namespace, infos: Infos) -> dict[str, Any]:
    return {
        "version": __version__,
        "targets": {role: {"id": i.id, "revision": i.revision} for role, i in infos.items()},
        "data": read_recipe(args.data),
        "held_out": args.held_out,
        "held_out_seed": args.held_out_seed,
        "dtype": args.dtype,
        "scope": "all",
    }


def _headline(setting: Mapping[str, Any]) -> str:
    names = ", ".join(
        f"{role} {target['id']} {target['revision'][:12]}"
        for role, target in setting["targets"].items()
    )
    return (
        f"tss_bench {__version__}: {names}; {setting['dtype']}, scope all; "
        f"{setting['positions']} positions of {setting['answers']} answers (of "
        f"{setting['held_out_answers']} held out), text of {setting['data']['pretrained']}"
    )
