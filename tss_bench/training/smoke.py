"""The whole of a training command on a tiny random target, in well under a minute.

May import: torch, transformers, tokenizers, tss_bench.training.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tss_bench.training.prompts import make_prompts

_SPECIAL = ("<unk>", "<s>", "</s>")
_TEXT = {"prompts": 24, "max_new_tokens": 8, "generation_batch": 8, "workers": 1}
_SHORT = {"batch_slots": 512, "warmup": 2, "eval_every": 5, "checkpoint_every": 5, "held_out": 0.2}
_EAGLE = {**_TEXT, **_SHORT, "epochs": 2, "draft_vocab": 64}
_LAYERSKIP = {**_TEXT, **_SHORT, "epochs": 2.0, "rank": 4, "max_drop": 2, "exit_every": 2}
_LAYERS = 6


def smoke_eagle(args: argparse.Namespace) -> None:
    """Train a head with small settings in --out (default: a directory that is removed again)."""
    from tss_bench.training import eagle

    with _tiny_run(args, _EAGLE) as small:
        eagle.run(small)


def smoke_layerskip(args: argparse.Namespace) -> None:
    """Train a model with small settings in --out (default: a directory that is removed again)."""
    from tss_bench.training import layerskip

    with _tiny_run(args, {**_LAYERSKIP, "pool": ""}) as small:
        layerskip.run(small)


@contextlib.contextmanager
def _tiny_run(
    args: argparse.Namespace, settings: Mapping[str, object]
) -> Iterator[argparse.Namespace]:
    """The arguments with a tiny target and small settings in place of the real ones.

    The target lies in the run's directory, so that what names it can be used afterwards.
    """
    with tempfile.TemporaryDirectory() as temporary:
        out = args.out or Path(temporary) / "run"
        tiny = out / "target"
        if not tiny.is_dir():
            out.mkdir(parents=True, exist_ok=True)
            unfinished = Path(tempfile.mkdtemp(dir=out, prefix=".target-"))
            make_tiny_target(unfinished)
            # Another process of the same run may have been first; both wrote the same.
            with contextlib.suppress(OSError):
                unfinished.rename(tiny)
            shutil.rmtree(unfinished, ignore_errors=True)
        changed = {"pretrained": str(tiny), "out": out, "data": None}
        yield argparse.Namespace(**{**vars(args), **settings, **changed, "smoke": False})


def make_tiny_target(directory: Path, seed: int = 0) -> None:
    """Write a random Llama of six blocks and a word tokenizer that knows the recipe's words."""
    words = {w for prompt in make_prompts(200, seed) for w in prompt.text.split()}
    vocabulary = {word: i for i, word in enumerate([*_SPECIAL, *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(directory)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
