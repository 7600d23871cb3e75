"""Tiny random models on disk, and requests for them.

May import: pytest, torch, tokenizers, transformers, lm_eval, tss_bench, model_adapters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from model_adapters.base import SpeculativeLM
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.weights import save_eagle_head

LAYERS = 4
CONTEXT = 256
SPECIAL = ("<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if not (loop.last and m['role'] == 'assistant') %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """One id a byte, after six special ids; writes begin-of-text by itself."""
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    vocab = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template
    return fast


def save_model(directory: Path, template: str | None, layers: int = LAYERS, **sizes: int) -> Path:
    """A random Llama whose argmax varies from position to position; `sizes` go to its config."""
    torch.manual_seed(7)
    tokenizer = make_tokenizer(template)
    shape = {"vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT, **sizes}
    config = LlamaConfig(
        **shape,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).eval().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """More threads only get in each other's way on models this small."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-chat", TEMPLATE)


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-base", None)


@pytest.fixture(scope="session")
def draft_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of one layer for either model."""
    return save_model(tmp_path_factory.mktemp("models") / "tiny-draft", None, layers=1)


@pytest.fixture(scope="session")
def eagle_head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random head for either model."""
    torch.manual_seed(8)
    config = EagleConfig(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=len(make_tokenizer()),
    )
    directory = tmp_path_factory.mktemp("heads") / "tiny-head"
    save_eagle_head(EagleHead(config, own_embedding=False), directory, {"source": "random"})
    return directory


def make_row(
    identity: str, *turns: str, style: str = "chat", domain: str = "translation"
) -> dict[str, Any]:
    """A document as our own tasks make them."""
    return {
        "id": identity,
        "domain": domain,
        "prompt_style": style,
        "turns": list(turns),
        "references": [],
    }


def make_request(
    doc: dict[str, Any],
    context: str | None = None,
    task: str = "specbench_translation",
    doc_id: int = 0,
    **gen_kwargs: Any,
) -> Instance:
    """A generation request as lm-eval makes it from a document; 8 new tokens by default."""
    text = doc["turns"][0] if context is None else context
    options = {"until": [], "max_gen_toks": 8, **gen_kwargs}
    return Instance("generate_until", doc, (text, options), 0, (task, doc_id, 1))


@pytest.fixture(scope="session")
def small_tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a tree of four drafts."""
    path = tmp_path_factory.mktemp("trees") / "small.json"
    path.write_text(json.dumps({"paths": [[0], [1], [0, 0], [0, 0, 0]]}), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def row() -> Callable[..., dict[str, Any]]:
    return make_row


@pytest.fixture(scope="session")
def request_for() -> Callable[..., Instance]:
    return make_request


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def base_tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(None)


@pytest.fixture(scope="session")
def build(chat_model: Path) -> Callable[..., SpeculativeLM]:
    """An adapter on the tiny chat model in float32, or on another `pretrained`."""

    def make(adapter: type[SpeculativeLM], **arguments: Any) -> SpeculativeLM:
        defaults = {"pretrained": str(chat_model), "dtype": "float32", "device": "cpu"}
        return adapter(**{**defaults, **arguments})

    return make


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to load weights fails the test."""

    def load(*args: Any, **kwargs: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("tss_bench.weights.load_model", load)
    monkeypatch.setattr("tss_bench.weights.load_eagle_head", load)
