"""`tss-bench train eagle`: an EAGLE head for any target, from text that the target wrote itself.

Steps: self-generated answers (made here unless --data names them), hidden states beside them,
draft vocabulary by frequency, multi-step training, and the head with its provenance in --out.
A killed run continues where it was when the command is given again.

May import: torch, transformers, tss_bench.{types, data, decoding, weights} and
tss_bench.training.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from tss_bench.decoding.drafters.eagle_head import EagleConfig
from tss_bench.decoding.target import Target
from tss_bench.training.checkpoint import only_run
from tss_bench.training.corpora import (
    add_data_argument,
    data_record,
    own_shards,
    split_by_directory,
    text_directories,
)
from tss_bench.training.curves import Curve, draw_curves
from tss_bench.training.eagle_data import (
    AnsweredPrompt,
    Corpus,
    coverage,
    draft_vocabulary,
    first_tokens,
    make_features,
    size_for_coverage,
)
from tss_bench.training.eagle_objective import Frozen
from tss_bench.training.eagle_scaling import Scales, fold
from tss_bench.training.eagle_settings import Settings
from tss_bench.training.eagle_trainer import Report, Trainer
from tss_bench.training.records import (
    add_settings,
    command_line,
    library_versions,
    read_settings,
    source_state,
)
from tss_bench.training.self_generation import add_recipe_arguments
from tss_bench.weights import (
    DEFAULT_MODEL,
    ModelInfo,
    describe,
    load_config,
    load_model,
    save_eagle_head,
)

HEAD, CURVES = "head", "curves.svg"
_DRAFT_VOCABULARY = 8192
_RMS_NORM_EPS = 1e-6
_HELP = {
    "seed": "seed of initial weights, order and held-out split",
    "epochs": "passes over the data; they set the learning-rate schedule",
    "batch_slots": "token slots in a batch, padding included",
    "optimizer": "muon (matrices; torch 2.9 or later) or adamw",
    "learning_rate": "peak learning rate",
    "warmup": "steps of warm-up",
    "weight_decay": "decoupled weight decay",
    "clip": "limit of the gradient's norm",
    "multi_steps": "depths that the head is rolled out on its own features (1: plain EAGLE)",
    "noise": "uniform noise on true features, in units of their standard deviation",
    "feature_weight": "weight of the feature regression",
    "token_weight": "weight of the cross-entropy against the target",
    "step_decay": "weight of each depth relative to the one before",
    "eval_every": "steps between evaluations on held-out text",
    "patience": "evaluations without a lower loss before training stops",
    "precision": "of matrix products: bfloat16 or float32",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench train eagle`."""
    parser.add_argument("--pretrained", default=DEFAULT_MODEL, help="the target")
    parser.add_argument("--out", type=Path, help="directory of the run; the head is OUT/head")
    add_data_argument(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--max-minutes", type=float, default=math.inf, help="stop training after this time"
    )
    parser.add_argument(
        "--checkpoint-every", type=int, default=100, help="steps between checkpoints"
    )
    vocabulary = parser.add_mutually_exclusive_group()
    vocabulary.add_argument(
        "--draft-vocab", type=int, default=_DRAFT_VOCABULARY, help="ids that can be drafted"
    )
    vocabulary.add_argument(
        "--draft-coverage",
        type=float,
        help="as many ids as hold this share of the training answers, such as 0.98",
    )
    parser.add_argument(
        "--train-tokens",
        type=int,
        help="answer tokens to train on, those of the first --data directory first (default: all); "
        "fewer are a part of more",
    )
    parser.add_argument(
        "--held-out", type=float, default=0.03, help="share of the answers kept for evaluation"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="a tiny random target: does it run? (under a minute)"
    )
    group = parser.add_argument_group("training")
    add_settings(group, Settings, _HELP)
    add_recipe_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Train, resume or finish a head: OUT/head.

    Raises ValueError for values out of range and for a directory of another run.
    """
    if args.smoke:
        from tss_bench.training.smoke import smoke_eagle

        smoke_eagle(args)
        return
    if args.out is None:
        raise ValueError("train eagle needs --out DIR, where checkpoints and the head go")
    settings = read_settings(args, Settings)
    _check(args)
    with only_run(args.out, HEAD):
        _train(args, settings)


def _train(args: argparse.Namespace, settings: Settings) -> None:
    # First, so that a target no head fits is refused before hours of text are made.
    config = head_config(load_config(args.pretrained))
    directories = text_directories(args)
    shards = own_shards(directories, describe(args.pretrained))
    model, _, info = load_model(args.pretrained, device=args.device)
    target = Target(model)
    make_features(target, shards)
    corpus = Corpus(shards, target.hidden_size)
    train, held_out = split_by_directory(corpus, shards, args.held_out, settings.seed)
    dropped = len(corpus.sequences) - len(train) - len(held_out)
    if args.train_tokens is not None:
        train = first_tokens(train, args.train_tokens)
    rows = draft_vocabulary(train, target.vocab_size, _vocabulary_size(args, train, target))
    embeddings = target.embed(torch.arange(target.vocab_size, device=target.device))
    scales = Scales(corpus.feature_scale(), float(embeddings.detach().float().std()))
    config = replace(config, draft_vocab_size=None if rows is None else len(rows))
    frozen = Frozen.of(target, rows)
    counts = {**_counts(corpus, train, held_out, rows), "training_answers_dropped": dropped}
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items()))
    trainer = Trainer(corpus, train, held_out, frozen, scales, config, settings, args.out)
    trainer.run(args.max_minutes, args.checkpoint_every)
    head = fold(trainer.best_head().cpu(), config, trainer.scales).to(torch.bfloat16)
    provenance = _provenance(args, settings, trainer, counts, directories, info)
    save_eagle_head(head, args.out / HEAD, provenance)
    draw_curves(args.out / CURVES, _panels(trainer.reports), "step")
    print(f"{trainer.best_report}\nwrote {args.out / HEAD}")


def _vocabulary_size(
    args: argparse.Namespace, train: Sequence[AnsweredPrompt], target: Target
) -> int:
    if args.draft_coverage is None:
        return int(args.draft_vocab)
    return size_for_coverage(train, target.vocab_size, args.draft_coverage)


def _panels(reports: Sequence[Report]) -> dict[str, dict[str, Curve]]:
    """What the evaluations on held-out text found, by step."""
    depths = range(len(reports[0].hits.acceptance))
    losses: dict[str, dict[str, Curve]] = {
        "held-out loss": {
            "all depths": [(r.step, r.loss) for r in reports],
            "token, depth 1": [(r.step, r.token_loss) for r in reports],
            "feature, depth 1": [(r.step, r.feature_loss) for r in reports],
        }
    }
    lengths = _known((r.step, r.hits.chain_length) for r in reports)
    if not lengths:
        return losses
    return {
        **losses,
        "accepted": {
            f"depth {depth + 1}": _known((r.step, r.hits.acceptance[depth]) for r in reports)
            for depth in depths
        },
        "accept length of a chain": {"": lengths},
    }


def _known(points: Iterable[tuple[int, float | None]]) -> Curve:
    """The points that were measured."""
    return [(step, value) for step, value in points if value is not None]


def head_config(config: PretrainedConfig) -> EagleConfig:
    """A head of the shape of one block of the target that `config` describes.

    A family without `rms_norm_eps` has other norms; the head has its own and takes the usual
    value. Raises ValueError for a config that lacks a size and for sizes that a head cannot have.
    """
    text = config.get_text_config(decoder=True)

    def size(name: str, default: int | None = None) -> int:
        value = getattr(text, name, None) or default
        if not isinstance(value, int):
            raise ValueError(
                f"the config of {text.model_type!r} has no {name} that is one number; a head has "
                f"the shape of one of the target's blocks: choose another --pretrained"
            )
        return value

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    return EagleConfig(
        hidden_size=hidden,
        intermediate_size=size("intermediate_size"),
        num_attention_heads=heads,
        num_key_value_heads=size("num_key_value_heads", heads),
        head_dim=size("head_dim", hidden // heads),
        vocab_size=size("vocab_size"),
        rms_norm_eps=getattr(text, "rms_norm_eps", None) or _RMS_NORM_EPS,
    )


def _check(args: argparse.Namespace) -> None:
    if args.draft_vocab < 1:
        raise ValueError(f"--draft-vocab must be at least 1, got {args.draft_vocab}")
    if args.draft_coverage is not None and not 0 < args.draft_coverage <= 1:
        raise ValueError(f"--draft-coverage must lie in 0 … 1, got {args.draft_coverage}")
    if args.train_tokens is not None and args.train_tokens < 1:
        raise ValueError(f"--train-tokens must be at least 1, got {args.train_tokens}")
    if not 0 < args.held_out < 1:
        raise ValueError(f"--held-out must lie between 0 and 1, got {args.held_out}")
    if not args.max_minutes >= 0:
        raise ValueError(f"--max-minutes must not be negative, got {args.max_minutes}")
    if args.checkpoint_every < 1:
        raise ValueError(f"--checkpoint-every must be at least 1, got {args.checkpoint_every}")


def _counts(
    corpus: Corpus,
    train: list[AnsweredPrompt],
    held_out: list[AnsweredPrompt],
    rows: torch.Tensor | None,
) -> dict[str, Any]:
    return {
        "answers": len(corpus.sequences),
        "held_out_answers": len(held_out),
        "prompt_tokens": sum(s.prompt_length for s in corpus.sequences),
        "answer_tokens": sum(len(s.ids) - s.prompt_length for s in corpus.sequences),
        "training_answer_tokens": sum(len(s.ids) - s.prompt_length for s in train),
        "sampled_answers": sum(s.sampled for s in corpus.sequences),
        "held_out_coverage": round(coverage(held_out, rows), 5),
    }


def _provenance(
    args: argparse.Namespace,
    settings: Settings,
    trainer: Trainer,
    counts: dict[str, Any],
    directories: Sequence[Path],
    info: ModelInfo,
) -> dict[str, Any]:
    return {
        "command": command_line("train eagle", add_arguments, args),
        "target": info.id,
        "target_revision": info.revision,
        "settings": asdict(settings),
        "draft_vocab": trainer.draft_vocab,
        **data_record(directories),
        "data": counts,
        "scales": asdict(trainer.scales),
        "steps": trainer.step,
        "planned_steps": trainer.total_steps,
        "minutes": round(trainer.minutes, 1),
        "best": trainer.best_report.to_dict(),
        "evaluations": [report.to_dict() for report in trainer.reports],
        "versions": library_versions(),
        "commit": source_state(),
    }
