"""Models and draft heads: find them, check them, load them.

May import: tss_bench.weights.
"""

from tss_bench.weights.cache import WeightsUnavailable, cache_dir
from tss_bench.weights.default_models import DEFAULT_MODEL, PACKAGED_MODELS
from tss_bench.weights.eagle import load_eagle_head, resolve_eagle, save_eagle_head
from tss_bench.weights.loading import ModelInfo, describe, load_model
from tss_bench.weights.tokenizers import require_same_tokenizer, same_tokenizer

__all__ = [
    "DEFAULT_MODEL",
    "PACKAGED_MODELS",
    "ModelInfo",
    "WeightsUnavailable",
    "cache_dir",
    "describe",
    "load_eagle_head",
    "load_model",
    "require_same_tokenizer",
    "resolve_eagle",
    "same_tokenizer",
    "save_eagle_head",
]
