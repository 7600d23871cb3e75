"""`tss-bench train layerskip`: a model that tolerates skipped blocks, from its own text.

Two recipes in one command. LayerSkip's: layer dropout that grows with depth, early-exit losses
through the shared norm and head. The one that suits verifiers: a uniform number of blocks
dropped from a pool, distilled to what the untouched model says at full depth. Trained are LoRA
matrices (OUT/adapter, in PEFT's form) or all weights (OUT/model); either is a `pretrained=` of
the adapters. A killed run continues where it was when the command is given again.

May import: torch, accelerate, peft, transformers, tss_bench.{decoding, weights} and
tss_bench.training.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tss_bench.decoding.blocks import decoder
from tss_bench.decoding.target import Target
from tss_bench.training.checkpoint import only_run
from tss_bench.training.corpora import (
    add_data_argument,
    data_record,
    own_shards,
    split_by_directory,
    text_directories,
)
from tss_bench.training.curves import draw_curves
from tss_bench.training.eagle_data import AnsweredPrompt, Corpus, make_features
from tss_bench.training.layerskip_settings import LayerSkipSettings
from tss_bench.training.layerskip_trainer import LayerSkipReport, LayerSkipTrainer
from tss_bench.training.records import (
    add_settings,
    command_line,
    library_versions,
    read_settings,
    source_state,
)
from tss_bench.training.self_generation import add_recipe_arguments, features_path
from tss_bench.weights import DEFAULT_MODEL, PACKAGED_MODELS, ModelInfo, describe, load_model
from tss_bench.weights.loading import resolve_device
from tss_bench.weights.tensor_file import write_model, write_tensors

ADAPTER, MODEL, PROVENANCE, CURVES = "adapter", "model", "provenance.json", "curves.svg"
_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_HELP = {
    "seed": "seed of order, draws and held-out split",
    "epochs": "passes over the data (fractions allowed); they set the learning-rate schedule",
    "batch_slots": "tokens in a batch, padding included",
    "learning_rate": "peak learning rate",
    "warmup": "steps of warm-up",
    "weight_decay": "AdamW's weight decay",
    "clip": "limit of the gradient's norm",
    "drop": "layerskip: rates that grow with depth; uniform: a number from --pool; none",
    "p_max": "layerskip: drop rate of the last layer",
    "depth_profile": "layerskip: D(l), linear or exp",
    "time_curriculum": "layerskip: S(t), constant or exp",
    "pool": "uniform: layers that may be dropped, such as 3,4,6 (default: all but the outermost)",
    "max_drop": "uniform: most blocks dropped at once",
    "dense_share": "uniform: share of the samples that drop none",
    "drop_scope": "sparse prompt (all), dense prompt (verify), or either by chance (mixed)",
    "exits": "early-exit losses: none, all, rotational or gradual",
    "exit_scale": "weight of early exits; 0 is the last layer alone",
    "exit_every": "rotational: every how many layers there is an exit",
    "objective": "distill: KL to the untouched model; cross-entropy: the text itself",
    "prompt_share": "share of the prompt's positions that count in the loss",
    "train": "lora (OUT/adapter) or full (OUT/model)",
    "rank": "rank of the LoRA matrices",
    "eval_every": "steps between evaluations on held-out answers",
    "eval_answers": "most held-out answers in an evaluation while training",
    "precision": "of matrix products: bfloat16 or float32",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench train layerskip`."""
    parser.add_argument("--pretrained", default=DEFAULT_MODEL, help="the model to start from")
    parser.add_argument("--out", type=Path, help="directory of the run")
    add_data_argument(parser)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--max-minutes", type=float, default=math.inf, help="stop training after this time"
    )
    parser.add_argument(
        "--checkpoint-every", type=int, default=50, help="steps between checkpoints"
    )
    parser.add_argument(
        "--held-out", type=float, default=0.03, help="share of the answers kept for evaluation"
    )
    parser.add_argument(
        "--smoke", action="store_true", help="a tiny random model: does it run? (under a minute)"
    )
    add_settings(parser.add_argument_group("training"), LayerSkipSettings, _HELP)
    add_recipe_arguments(parser)


def run(args: argparse.Namespace) -> None:
    """Train, resume or finish a model: OUT/adapter or OUT/model.

    Raises ValueError for values out of range and for a directory of another run.
    """
    if args.smoke:
        from tss_bench.training.smoke import smoke_layerskip

        smoke_layerskip(args)
        return
    if args.out is None:
        raise ValueError("train layerskip needs --out DIR, where checkpoints and the result go")
    settings = read_settings(args, LayerSkipSettings)
    _check(args, settings)
    accelerator = Accelerator(
        cpu=resolve_device(args.device) == "cpu",
        kwargs_handlers=[
            DistributedDataParallelKwargs(broadcast_buffers=False, find_unused_parameters=True)
        ],
    )
    with only_run(args.out) if accelerator.is_main_process else nullcontext():
        _train(args, settings, accelerator)


def _train(args: argparse.Namespace, settings: LayerSkipSettings, accelerator: Accelerator) -> None:
    with accelerator.main_process_first():
        directories, shards = prepare_data(args, describe(args.pretrained))
    # What is trained is float32; frozen weights may be what the matrix products take.
    frozen = settings.train == "lora" and settings.precision == "bfloat16"
    model, tokenizer, info = load_model(
        args.pretrained,
        dtype="bfloat16" if frozen else "float32",
        # Accelerate numbers CPU processes too ("cpu:1").
        device="cpu" if accelerator.device.type == "cpu" else str(accelerator.device),
    )
    peft_model = prepare_model(model, settings, *_base(args.pretrained, info))
    corpus = Corpus(shards, info.hidden_size)
    train, held_out = split_by_directory(corpus, shards, args.held_out, settings.seed)
    trainer = LayerSkipTrainer(
        model, corpus, train, held_out, settings, args.out, accelerator, info.revision
    )
    counts = _counts(corpus, train, held_out)
    if accelerator.is_main_process:
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in counts.items()))
    trainer.run(args.max_minutes, args.checkpoint_every)
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        return
    provenance = _provenance(args, settings, trainer, counts, directories, info)
    place = _write(args.out, model, tokenizer, peft_model, provenance)
    draw_curves(place / CURVES, _panels(trainer.reports, trainer.probes), "step")
    print(f"wrote {place}; use it as pretrained={place}")


def prepare_model(
    model: PreTrainedModel, settings: LayerSkipSettings, base: str, revision: str | None = None
) -> Any:
    """Make the right weights trainable, in place; the PEFT model for LoRA, else None.

    LoRA matrices go on all projections of the blocks; embedding, norms and head are frozen.
    """
    if model.device.type == "cpu":
        # The backward pass of the CPU's flash attention is several times slower than products
        # and a softmax.
        model.set_attn_implementation("eager")
    if settings.train == "full":
        model.requires_grad_(True)
        return None
    from peft import LoraConfig, get_peft_model

    names = {name.rpartition(".")[2] for name, _ in decoder(model).layers.named_modules()}
    targets = [name for name in _PROJECTIONS if name in names]
    if not targets:
        raise ValueError(
            f"{type(model).__name__} has none of the projections {', '.join(_PROJECTIONS)}; "
            f"use --train full"
        )
    # The matrices of a run depend on its seed alone.
    torch.manual_seed(settings.seed)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.rank,
        target_modules=targets,
        task_type="CAUSAL_LM",
        revision=revision,
    )
    peft_model: Any = get_peft_model(model, config)
    # PEFT has put in where the files lie on this machine.
    peft_model.peft_config["default"].base_model_name_or_path = base
    return peft_model


def prepare_data(args: argparse.Namespace, info: ModelInfo) -> tuple[list[Path], list[Path]]:
    """The directories of the text and all their shards, with hidden states beside each."""
    directories = text_directories(args)
    shards = own_shards(directories, info)
    if not all(features_path(path).is_file() for path in shards):
        make_features(Target(load_model(args.pretrained, device=args.device)[0]), shards)
    return directories, shards


def _check(args: argparse.Namespace, settings: LayerSkipSettings) -> None:
    if not 0 < args.held_out < 1:
        raise ValueError(f"--held-out must lie between 0 and 1, got {args.held_out}")
    if not args.max_minutes >= 0:
        raise ValueError(f"--max-minutes must not be negative, got {args.max_minutes}")
    if args.checkpoint_every < 1:
        raise ValueError(f"--checkpoint-every must be at least 1, got {args.checkpoint_every}")
    info = describe(args.pretrained)
    settings.layers(info.num_layers)
    if settings.train == "lora" and info.base is not None:
        raise ValueError(
            f"{info.id} is a LoRA itself, and one on top of it could not be loaded; start from its "
            f"base, --pretrained {info.base}, or train all weights with --train full"
        )


def _base(pretrained: str, info: ModelInfo) -> tuple[str, str | None]:
    """How a LoRA names its base: a directory by its full path, a hub id with its commit."""
    path = Path(pretrained).expanduser()
    if path.is_dir():
        return str(path.resolve()), None
    return info.id, None if info.id in PACKAGED_MODELS else info.revision


def _counts(
    corpus: Corpus, train: list[AnsweredPrompt], held_out: list[AnsweredPrompt]
) -> dict[str, int]:
    return {
        "answers": len(corpus.sequences),
        "held_out_answers": len(held_out),
        "training_answers_dropped": len(corpus.sequences) - len(train) - len(held_out),
        "prompt_tokens": sum(s.prompt_length for s in corpus.sequences),
        "answer_tokens": sum(len(s.ids) - s.prompt_length for s in corpus.sequences),
        "training_tokens": sum(len(s.ids) for s in train),
    }


def _provenance(
    args: argparse.Namespace,
    settings: LayerSkipSettings,
    trainer: LayerSkipTrainer,
    counts: dict[str, int],
    directories: Sequence[Path],
    info: ModelInfo,
) -> dict[str, Any]:
    return {
        "command": command_line("train layerskip", add_arguments, args),
        "base": info.id,
        "base_revision": info.revision,
        "settings": asdict(settings),
        **data_record(directories),
        "data": counts,
        "processes": trainer.processes,
        "device": trainer.device,
        "steps": trainer.step,
        "planned_steps": trainer.total_steps,
        "minutes": round(trainer.minutes, 1),
        "probes": [list(layers) for layers in trainer.probes],
        "evaluations": [report.to_dict() for report in trainer.reports],
        "versions": library_versions("peft"),
        "commit": source_state(),
    }


def _write(
    out: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    peft_model: Any,
    provenance: dict[str, Any],
) -> Path:
    """OUT/adapter or OUT/model; the weights come last."""
    place = out / (MODEL if peft_model is None else ADAPTER)
    place.mkdir(parents=True, exist_ok=True)
    (place / PROVENANCE).write_text(json.dumps(provenance, indent=2) + "\n", "utf-8")
    if peft_model is None:
        tokenizer.save_pretrained(place)
        write_model(model, place)
        return place
    from peft import get_peft_model_state_dict

    peft_model.peft_config["default"].save_pretrained(place)
    _put_in_order(place / "adapter_config.json")
    state = {
        name: value.detach().to("cpu", torch.bfloat16).contiguous()
        for name, value in get_peft_model_state_dict(peft_model).items()
    }
    write_tensors(place / "adapter_model.safetensors", state, {"format": "pt"})
    return place


def _put_in_order(config: Path) -> None:
    """PEFT writes sets in any order; the same LoRA shall give the same file and revision."""
    settings = json.loads(config.read_text("utf-8"))
    settings["target_modules"] = sorted(settings["target_modules"])
    config.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", "utf-8")


def _panels(
    reports: Sequence[LayerSkipReport], probes: Sequence[Sequence[int]]
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    names = ["full depth", *("{" + ",".join(map(str, layers)) + "}" for layers in probes)]
    rows = [(report.step, (report.dense, *report.skipped)) for report in reports]
    return {
        "KL to the untouched model (nats)": {
            name: [(step, found[i].kl) for step, found in rows] for i, name in enumerate(names)
        },
        "top-1 agreement": {
            name: [(step, found[i].top1) for step, found in rows] for i, name in enumerate(names)
        },
        "training loss (mean since the last evaluation)": {
            "loss": [(report.step, report.train_loss) for report in reports[1:]]
        },
    }
