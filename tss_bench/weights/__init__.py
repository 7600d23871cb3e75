"""Models and draft heads: find them, check them, load them.

May import: tss_bench.weights.
"""

from tss_bench.weights.cache import WeightsUnavailable
from tss_bench.weights.default_models import DEFAULT_MODEL, PACKAGED_MODELS
from tss_bench.weights.eagle import (
    NoPackagedHeadError,
    check_eagle_head,
    eagle_notes,
    load_eagle_head,
    resolve_eagle,
    save_eagle_head,
)
from tss_bench.weights.fingerprint import weights_fingerprint
from tss_bench.weights.loading import (
    DTYPES,
    ModelInfo,
    describe,
    load_config,
    load_model,
    load_tokenizer,
)
from tss_bench.weights.tokenizers import (
    end_of_text_ids,
    require_same_tokenizer,
    same_tokenizer,
    vocabulary_digest,
)

__all__ = [
    "DEFAULT_MODEL",
    "DTYPES",
    "PACKAGED_MODELS",
    "ModelInfo",
    "NoPackagedHeadError",
    "WeightsUnavailable",
    "check_eagle_head",
    "describe",
    "eagle_notes",
    "end_of_text_ids",
    "load_config",
    "load_eagle_head",
    "load_model",
    "load_tokenizer",
    "require_same_tokenizer",
    "resolve_eagle",
    "same_tokenizer",
    "save_eagle_head",
    "vocabulary_digest",
    "weights_fingerprint",
]
