"""The whole of `tss-bench train eagle` on a tiny random target, in well under a minute.

May import: torch, transformers, tokenizers, tss_bench.training.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tss_bench.training.prompts import make_prompts

_SPECIAL = ("<unk>", "<s>", "</s>")
_SETTINGS = {
    "prompts": 24,
    "max_new_tokens": 8,
    "generation_batch": 8,
    "workers": 1,
    "epochs": 2,
    "batch_slots": 512,
    "warmup": 2,
    "eval_every": 5,
    "checkpoint_every": 5,
    "draft_vocab": 64,
    "held_out": 0.2,
}


def run_smoke(args: argparse.Namespace) -> None:
    """Train with small settings in --out (default: a directory that is removed again)."""
    from tss_bench.training import eagle

    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        tiny = place / "tiny-target"
        make_tiny_target(tiny)
        out = args.out or place / "run"
        small = {**vars(args), **_SETTINGS, "pretrained": str(tiny), "out": out}
        eagle.run(argparse.Namespace(**{**small, "data": None, "smoke": False}))


def make_tiny_target(directory: Path, seed: int = 0) -> None:
    """Write a random Llama of two blocks and a word tokenizer that knows the recipe's words."""
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
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
