"""EAGLE-3 heads as files have them, and what they compute: written from the published formats.

Nothing here uses the code under test, so that equality means something.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

H, INNER, HEADS, KV_HEADS, DIM = 32, 48, 4, 2, 8
Config = dict[str, Any]
State = dict[str, Tensor]


def official_config(vocab: int, draft_vocab: int, **more: Any) -> Config:
    """The `config.json` that comes with the authors' heads."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_act": "silu",
        "hidden_size": H,
        "intermediate_size": INNER,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab,
        **more,
    }


def official_state(vocab: int, draft_vocab: int, seed: int = 3) -> State:
    """The authors' names and shapes; the draft vocabulary is a random choice of ids."""
    shapes = {
        "fc.weight": (H, 3 * H),
        "midlayer.hidden_norm.weight": (H,),
        "midlayer.input_layernorm.weight": (H,),
        "midlayer.post_attention_layernorm.weight": (H,),
        "midlayer.self_attn.q_proj.weight": (HEADS * DIM, 2 * H),
        "midlayer.self_attn.k_proj.weight": (KV_HEADS * DIM, 2 * H),
        "midlayer.self_attn.v_proj.weight": (KV_HEADS * DIM, 2 * H),
        "midlayer.self_attn.o_proj.weight": (H, HEADS * DIM),
        "midlayer.mlp.gate_proj.weight": (INNER, H),
        "midlayer.mlp.up_proj.weight": (INNER, H),
        "midlayer.mlp.down_proj.weight": (H, INNER),
        "norm.weight": (H,),
        "lm_head.weight": (draft_vocab, H),
    }
    generator = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn(shape, generator=generator) * 0.3 + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    rows = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[rows] = True
    return {**state, "d2t": rows - torch.arange(draft_vocab), "t2d": mask}


def as_speculators(config: Config, state: State, **more: Any) -> tuple[Config, State]:
    """The same head as the speculators library writes it."""
    own = ("draft_vocab_size", "architectures")
    block = {name: value for name, value in config.items() if name not in own}
    nested = {
        "architectures": ["Eagle3Speculator"],
        "draft_vocab_size": config["draft_vocab_size"],
        "norm_before_residual": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": "owner/tiny-chat", "architectures": ["LlamaForCausalLM"]},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.1.0",
        "transformer_layer_config": block,
        **more,
    }
    return nested, {name.replace("midlayer.", "layers.0."): t for name, t in state.items()}


def write(directory: Path, config: Config, state: State, *, as_pickle: bool = False) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if as_pickle:
        torch.save(state, directory / "pytorch_model.bin")
    else:
        save_file(state, directory / "model.safetensors")
    return directory


def draft_logits(
    config: Config, state: State, table: Tensor, ids: Sequence[int], features: Tensor
) -> Tensor:
    """Scores [draft_vocab] of the id that follows `ids`, recomputed from the start.

    `features` [n, 3H] are the target's, feature i goes with `ids[i]`; the ids behind the n-th are
    drafts, whose features are the head's own output. `table` [V, H] embeds.
    """
    rows = features @ state["fc.weight"].T
    while True:
        output = _block(config, state, table[torch.tensor(ids[: len(rows)])], rows)
        if len(rows) == len(ids):
            return _rms(config, output[-1], state["norm.weight"]) @ state["lm_head.weight"].T
        rows = torch.cat((rows, output[-1:]))


def _block(config: Config, state: State, embedded: Tensor, rows: Tensor) -> Tensor:
    def weight(name: str) -> Tensor:
        return state[f"midlayer.{name}.weight"]

    normed = _rms(config, rows, weight("hidden_norm"))
    inputs = torch.cat((_rms(config, embedded, weight("input_layernorm")), normed), dim=1)
    query, key, value = (
        (inputs @ weight(f"self_attn.{name}_proj").T).view(len(rows), -1, DIM) for name in "qkv"
    )
    query, key = _turned(config, query), _turned(config, key)
    mixed = []
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        scores = query[:, head] @ key[:, group].T / math.sqrt(DIM)
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        mixed.append(scores.masked_fill(later, -math.inf).softmax(dim=1) @ value[:, group])
    residual = normed if config.get("norm_before_residual") else rows
    hidden = residual + torch.cat(mixed, dim=1) @ weight("self_attn.o_proj").T
    normed = _rms(config, hidden, weight("post_attention_layernorm"))
    gate, up = normed @ weight("mlp.gate_proj").T, normed @ weight("mlp.up_proj").T
    return hidden + (F.silu(gate) * up) @ weight("mlp.down_proj").T


def _turned(config: Config, states: Tensor) -> Tensor:
    """[n, heads, D]: dimensions j and j + D/2 are a complex number, turned by its position."""
    theta = config.get("rope_theta", 10000.0)
    angles = torch.outer(torch.arange(len(states)), theta ** -(torch.arange(0, DIM, 2) / DIM))
    pairs = torch.complex(states[..., : DIM // 2], states[..., DIM // 2 :])
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((pairs.real, pairs.imag), dim=-1)


def _rms(config: Config, x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(dim=-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight
