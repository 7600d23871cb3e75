"""Small made-up models, GGUF files and wheels for the weights tests."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 32, 64, 4, 2, 2


def _llama(vocab_size: int = 20) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def _tokenizer(words: tuple[str, ...] = ("a", "b", "c")) -> PreTrainedTokenizerFast:
    vocab = {word: index for index, word in enumerate(("<unk>", "<s>", "</s>", *words))}
    inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="</s>")


@pytest.fixture
def make_tokenizer() -> Callable[..., PreTrainedTokenizerFast]:
    return _tokenizer


@pytest.fixture
def llama_dir(tmp_path: Path) -> Path:
    """A random tied Llama of two layers with a word tokenizer."""
    directory = tmp_path / "tiny-llama"
    _llama().save_pretrained(directory)
    _tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache."""
    directory = tmp_path / "cache"
    monkeypatch.setenv("TSS_BENCH_CACHE", str(directory))
    return directory


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip without its configuration and with an index that refuses connections."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")


@pytest.fixture
def make_wheel(
    tmp_path: Path, no_index: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, bytes], Path]:
    """make_wheel(package, member, data): version 1.0 of it, where pip finds it."""
    shelf = tmp_path / "wheels"
    shelf.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_NO_INDEX", "1")

    def make(package: str, member: str, data: bytes) -> Path:
        name = package.replace("-", "_")
        info = f"{name}-1.0.dist-info"
        path = shelf / f"{name}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(member, data)
            archive.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")
        return path

    return make


@pytest.fixture
def tiny_gguf(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A Llama as llama.cpp stores it (q and k rows interleaved), and its weights in our layout.

    Block 0's down projection is Q8_0: 34 bytes hold a float16 scale, here 0.5, and 32 int8.
    """
    import gguf

    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    _write_metadata(writer)
    tokens = _byte_tokens()
    _write_tokenizer(writer, tokens)
    weights = {k: v for k, v in _llama(len(tokens)).state_dict().items() if k != "lm_head.weight"}
    quantised = torch.arange(HIDDEN * INNER).reshape(HIDDEN, INNER) % 255 - 127
    weights["model.layers.0.mlp.down_proj.weight"] = quantised * 0.5
    for key, value in weights.items():
        if key == "model.layers.0.mlp.down_proj.weight":
            blocks = quantised.numpy().astype(np.int8).reshape(HIDDEN, -1, 32)
            scale = np.full((*blocks.shape[:2], 1), 0.5, np.float16).view(np.int8)
            raw = np.concatenate([scale, blocks], axis=-1).view(np.uint8).reshape(HIDDEN, -1)
            writer.add_tensor(_gguf_name(key), raw, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(_gguf_name(key), _interleaved(key, value).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, weights


def _write_metadata(writer) -> None:  # type: ignore[no-untyped-def]
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)


def _write_tokenizer(writer, tokens: list[str]) -> None:  # type: ignore[no-untyped-def]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}")


def _byte_tokens() -> list[str]:
    """Three special tokens, GPT-2's 256 byte letters, and two spaces as one token."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = [chr(byte) for byte in visible] + [chr(256 + n) for n in range(len(hidden))]
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ĠĠ"]


def _gguf_name(key: str) -> str:
    parts = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    if key == "model.embed_tokens.weight":
        return "token_embd.weight"
    if key == "model.norm.weight":
        return "output_norm.weight"
    _, _, layer, part = key.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{parts[part]}.weight"


def _interleaved(key: str, value: torch.Tensor) -> torch.Tensor:
    """llama.cpp pairs row i with row i + D/2 of each head; others keep the halves apart."""
    heads = HEADS if "q_proj" in key else KV_HEADS if "k_proj" in key else 0
    if not heads:
        return value.contiguous()
    half = value.shape[0] // heads // 2
    rows = []
    for head in range(heads):
        for i in range(half):
            rows += [value[head * 2 * half + i], value[head * 2 * half + half + i]]
    return torch.stack(rows)


@pytest.fixture
def make_lora(tmp_path: Path, llama_dir: Path) -> Callable[..., Path]:
    """make_lora(**LoraConfig fields): a random bfloat16 LoRA of `llama_dir`, as PEFT saves it.

    Rank 4 and alpha 8, so its scale is 2; none of its matrices is zero.
    """
    from peft import LoraConfig, get_peft_model

    def make(name: str = "tiny-lora", base: str | None = None, **fields: Any) -> Path:
        model = LlamaForCausalLM.from_pretrained(llama_dir)
        settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], **fields}
        torch.manual_seed(5)
        adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
        for key, value in adapted.named_parameters():
            if "lora_" in key:
                value.data = (torch.randn_like(value) / 4).bfloat16()
        adapted.peft_config["default"].base_model_name_or_path = base or str(llama_dir)
        directory = tmp_path / name
        adapted.save_pretrained(directory, save_embedding_layers=False)
        return directory

    return make
