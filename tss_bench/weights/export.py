"""A model without some of its blocks, as an ordinary Hugging Face directory.

The directory needs nothing of this package: any program that reads Hugging Face checkpoints runs
it, and computes what the target does that skips those blocks under scope `all`. That is checked
before the directory appears under its name.

May import: torch, transformers (types), safetensors, huggingface_hub (inside functions, so that
bad names fail fast), tss_bench.{decoding,locks,types} and tss_bench.weights.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tss_bench.locks import only_writer
from tss_bench.types import SkipSet
from tss_bench.weights.convert import quiet_progress
from tss_bench.weights.loading import load_model
from tss_bench.weights.tensor_file import write_model
from tss_bench.weights.tokenizers import require_same_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel

PROVENANCE = "tss_bench_export.json"
"""The file in an exported directory that says what it was made from."""

_PROBE = 32
# Settings that name layers, beside lists with one entry a layer: numbers, and how many at the
# beginning.
_NUMBERS = ("mlp_only_layers", "moe_layers")
_FIRST = ("max_window_layers",)
# Lists that may be as long as the model is deep by chance.
_NOT_BY_LAYER = ("architectures", "token_id", "tokens")


def export_model(
    name: str,
    skip: SkipSet,
    out: Path,
    *,
    dtype: str = "auto",
    revision: str | None = None,
    provenance: Mapping[str, Any],
) -> None:
    """Write model `name` without the blocks of `skip` to the directory `out`.

    Config, weights (a LoRA's are merged), tokenizer with chat template, generation config, and
    `provenance` as JSON. `dtype` as in `load_model`. `out` appears whole or not at all; what a
    killed export leaves beside it is cleared by the next one.

    Raises ValueError for an `out` that is there and not empty, a set of all blocks, a family of
    which the directory would compute something else, and as `load_model` does.
    """
    check_free(out)
    if not skip.active:
        raise ValueError(f"all {skip.num_layers} layers would be removed; at least one must stay")
    with _appearing(out) as work:
        model, tokenizer, info = load_model(name, dtype=dtype, device="cpu", revision=revision)
        with _without_blocks(model, skip):
            _save(model, info.id, work)
        tokenizer.save_pretrained(work)
        text = json.dumps(dict(provenance), indent=2, ensure_ascii=False)
        (work / PROVENANCE).write_text(f"{text}\n", encoding="utf-8")
        settings = _settings(model, skip.active)
        expected = _sparse_logits(model, skip)
        # Two copies of the weights need not fit into memory.
        del model
        found, found_tokenizer, _ = load_model(str(work), dtype="auto", device="cpu")
        require_same_tokenizer(
            tokenizer, found_tokenizer, target_name=info.id, draft_name=f"{info.id} exported"
        )
        _check_equal(info.id, settings, found, expected)


def check_free(out: Path) -> None:
    """Raises ValueError unless `out` is absent or an empty directory."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise ValueError(f"{out} is there already and not empty; choose another --out")


def shortened(config: PreTrainedConfig, skip: SkipSet) -> PreTrainedConfig:
    """A copy of a model's config for the model without the blocks of `skip`."""
    short = copy.deepcopy(config)
    text = short.get_text_config(decoder=True)
    new_number = {layer: place for place, layer in enumerate(skip.active)}
    for name, value in text.to_dict().items():
        if name in _NUMBERS and value is not None:
            setattr(text, name, [new_number[layer] for layer in value if layer in new_number])
        elif name in _FIRST and value is not None:
            setattr(text, name, sum(layer < value for layer in skip.active))
        elif _is_by_layer(name, value, skip.num_layers):
            setattr(text, name, [value[layer] for layer in skip.active])
    text.num_hidden_layers = len(skip.active)
    return short


def _is_by_layer(name: str, value: object, num_layers: int) -> bool:
    by_chance = name.endswith(_NOT_BY_LAYER)
    return isinstance(value, list | tuple) and len(value) == num_layers and not by_chance


@contextlib.contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A directory to fill; it becomes `out` at the end and vanishes after an error."""
    out = out.expanduser().resolve()
    work = out.with_name(f".{out.name}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    refusal = f"another export writes {out}; wait for it or choose another --out"
    with only_writer(out.with_name(f".{out.name}.lock"), refusal):
        try:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            yield work
            check_free(out)
            work.replace(out)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _without_blocks(model: PreTrainedModel, skip: SkipSet) -> Iterator[None]:
    """`model` and its config without the blocks of `skip`; at the end it is whole again."""
    from torch.nn import ModuleList

    from tss_bench.decoding.blocks import decoder

    inner, blocks, config = decoder(model), decoder(model).layers, model.config
    try:
        inner.layers = ModuleList(blocks[layer] for layer in skip.active)
        model.config = shortened(config, skip)
        yield
    finally:
        inner.layers, model.config = blocks, config


def _save(model: PreTrainedModel, model_id: str, directory: Path) -> None:
    from huggingface_hub.errors import StrictDataclassError

    try:
        with quiet_progress():
            write_model(model, directory)
    except StrictDataclassError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{model_id} cannot be exported without these layers: {reason}") from error


def _settings(model: PreTrainedModel, layers: tuple[int, ...]) -> list[dict[str, Any]]:
    """The plain settings of all modules of these blocks, such as windows and rotary switches."""
    from tss_bench.decoding.blocks import decoder

    blocks = decoder(model).layers
    return [
        {
            f"{path}.{name}".lstrip("."): value
            for path, module in blocks[layer].named_modules()
            for name, value in vars(module).items()
            if not name.startswith("_") and name not in ("layer_idx", "training")
            if value is None or isinstance(value, bool | int | float | str)
        }
        for layer in layers
    ]


def _probe(vocab_size: int, context_length: int) -> list[int]:
    """A few ids from all over the vocabulary."""
    return [place * 7919 % vocab_size for place in range(min(_PROBE, context_length))]


def _sparse_logits(model: PreTrainedModel, skip: SkipSet) -> torch.Tensor:
    """What the target that skips `skip` says, scope `all`. Takes over the model's weights."""
    from tss_bench.decoding.target import Target

    target = Target(model)
    return target.score(_probe(target.vocab_size, target.context_length), skip)


def _check_equal(
    model_id: str,
    settings: list[dict[str, Any]],
    exported: PreTrainedModel,
    expected: torch.Tensor,
) -> None:
    """Raises ValueError unless the exported model computes what the sparse target does."""
    import torch

    from tss_bench.decoding.target import SELF_CHECK_TOLERANCE

    refusal = f"{model_id} cannot be exported: its family sets blocks by their number in a way"
    there = _settings(exported, tuple(range(len(settings))))
    for layer, (wanted, found) in enumerate(zip(settings, there, strict=True)):
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                raise ValueError(
                    f"{refusal} that is not known here ({name} of the block that becomes {layer} "
                    f"is {wanted.get(name)}, and {found.get(name)} after export)"
                )
    probe = _probe(expected.shape[-1], len(expected))
    with torch.inference_mode():
        logits = exported(input_ids=torch.tensor([probe]), use_cache=False).logits[0].float()
    gap = float((logits - expected).norm() / expected.norm().clamp_min(1e-9))
    tolerance = SELF_CHECK_TOLERANCE.get(exported.dtype, 1e-3)
    if not gap <= tolerance:
        raise ValueError(
            f"{refusal} that its config does not tell (the exported model differs from the sparse "
            f"target by {gap:.2g}, allowed: {tolerance})"
        )
