"""Tiny random models, tokenizers and drafters that the engine tests share."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests import eagle3
from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.drafters.eagle3_head import Eagle3Config, Eagle3Head
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.target import Target
from tss_bench.decoding.tree import DraftTree

# Matrices of this size do not gain from a second thread, and lose much when cores are busy.
torch.set_num_threads(1)

VOCAB = 48
LAYERS = 4
HIDDEN = 32
CONTEXT = 64
EOS = 2

_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": EOS,
    "bos_token_id": 1,
    "pad_token_id": 0,
    # Large enough that greedy answers of random weights do not collapse to one id.
    "initializer_range": 0.4,
}


def model(family: str = "llama") -> PreTrainedModel:
    """A random float32 model of `llama`, `qwen2` (biased projections) or `gemma3` (sliding)."""
    return _model(family)


def target(family: str = "llama") -> Target:
    """The engine's view of `model(family)`."""
    return _target(family)


@lru_cache
def _model(family: str) -> PreTrainedModel:
    torch.manual_seed(7)
    if family == "llama":
        return LlamaForCausalLM(LlamaConfig(**_SHAPE)).eval()
    if family == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**_SHAPE)).eval()
    if family == "gemma3":
        kinds = ["sliding_attention", "full_attention"] * (LAYERS // 2)
        config = Gemma3TextConfig(**_SHAPE, head_dim=8, sliding_window=6, layer_types=kinds)
        return Gemma3ForCausalLM(config).eval()
    raise ValueError(f"no tiny model {family!r}")


@lru_cache
def _target(family: str) -> Target:
    return Target(_model(family))


@lru_cache
def draft_model(vocab: int = VOCAB, context: int = CONTEXT) -> LlamaForCausalLM:
    """A random float32 Llama of two layers that speaks `vocab` ids."""
    torch.manual_seed(11)
    shape = {"num_hidden_layers": 2, "vocab_size": vocab, "max_position_embeddings": context}
    return LlamaForCausalLM(LlamaConfig(**{**_SHAPE, **shape})).eval()


@lru_cache
def draft(vocab: int = VOCAB, context: int = CONTEXT) -> Target:
    """The engine's view of `draft_model(vocab, context)`."""
    return Target(draft_model(vocab, context))


@lru_cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Ids as words: id 17 is `t17`; id 2 is the end of text."""
    words = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"t{i}": i for i in range(3, VOCAB)}
    backend = Tokenizer(WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )


def eagle_head(draft_vocab: int | None = None, seed: int = 3) -> EagleHead:
    """A random head for the tiny models."""
    torch.manual_seed(seed)
    config = EagleConfig(
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCAB,
        draft_vocab_size=draft_vocab,
    )
    head = EagleHead(config)
    if draft_vocab is not None:
        rows = torch.randperm(VOCAB)[:draft_vocab].sort().values
        head.d2t.copy_(rows - torch.arange(draft_vocab))
    return head.eval()


def eagle3_head(draft_vocab: int | None = None) -> Eagle3Head:
    """A random EAGLE-3 head for the tiny models: on the embedding, a layer, the last output."""
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 2, LAYERS]}
    config = eagle3.official_config(VOCAB, draft_vocab or VOCAB, **ids)
    state = eagle3.official_state(VOCAB, draft_vocab or VOCAB)
    if draft_vocab is None:
        config["draft_vocab_size"] = None
        del state["d2t"]
    del state["t2d"]
    head = Eagle3Head(Eagle3Config.from_dict(config))
    head.load_state_dict(state)
    return head.eval()


class Adversary:
    """Proposes whatever tree it is told: wrong ids, duplicates, the end of text, too deep."""

    replayable = False
    feature_layers: tuple[int, ...] = ()

    def __init__(self, trees: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self._trees = list(trees)
        self._calls = 0
        self.max_nodes = 1 + max((len(tokens) for tokens, _ in trees), default=0)

    def begin(self, prompt: Prompt) -> None:
        self._calls = 0

    def propose(self, root: int, max_depth: int) -> DraftTree:
        if not self._trees:
            return DraftTree.root(root)
        tokens, parents = self._trees[self._calls % len(self._trees)]
        self._calls += 1
        return DraftTree((root, *tokens), (-1, *parents))

    def observe(self, step: Step) -> None:
        pass

    def fork(self) -> Adversary:
        return copy.copy(self)

    def reset(self) -> None:
        self._calls = 0


class Oracle:
    """Drafts the known answer as a chain, with a wrong sibling before every right id."""

    replayable = True
    feature_layers: tuple[int, ...] = ()

    def __init__(self, answer: Sequence[int], length: int) -> None:
        self._answer = list(answer)
        self._length = length
        self._place = 1
        self.max_nodes = 1 + 2 * length

    def begin(self, prompt: Prompt) -> None:
        self._place = 1

    def propose(self, root: int, max_depth: int) -> DraftTree:
        tokens, parents, parent = [root], [-1], 0
        for token in self._answer[self._place : self._place + min(self._length, max_depth)]:
            tokens += [(token + 1) % VOCAB, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return DraftTree(tuple(tokens), tuple(parents))

    def observe(self, step: Step) -> None:
        self._place += len(step.accepted)

    def fork(self) -> Oracle:
        return copy.copy(self)

    def reset(self) -> None:
        self._place = 1
