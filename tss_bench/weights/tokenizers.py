"""What tokenizers say: do two models speak the same ids, and which ids end a text?

May import: transformers (types only).
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def require_same_tokenizer(
    target: PreTrainedTokenizerBase,
    draft: PreTrainedTokenizerBase,
    *,
    target_name: str,
    draft_name: str,
) -> None:
    """Raise ValueError unless every token has the same id in both vocabularies.

    Rows that pad an embedding matrix beyond the vocabulary do not count.
    """
    own, other = target.get_vocab(), draft.get_vocab()
    if own == other:
        return
    different = sorted(
        token for token in own.keys() | other.keys() if own.get(token) != other.get(token)
    )
    example = different[0]
    raise ValueError(
        f"draft model {draft_name!r} has another tokenizer than target {target_name!r}: "
        f"{len(different)} tokens differ of {len(own)} and {len(other)} ({example!r} is "
        f"{_id_text(own.get(example))} in the target, {_id_text(other.get(example))} in the "
        f"draft); use a draft model of the same family"
    )


def same_tokenizer(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> bool:
    """Whether every token has the same id in both vocabularies."""
    return bool(target.get_vocab() == draft.get_vocab())


def vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of all tokens and their ids: equal where `same_tokenizer` is true."""
    return hashlib.sha256(json.dumps(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()


def _id_text(token_id: int | None) -> str:
    return "absent" if token_id is None else f"id {token_id}"


def end_of_text_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that the model's or the tokenizer's settings call end of text."""
    found: set[int] = set()
    for holder in (getattr(model, "generation_config", None), model.config, tokenizer):
        value = getattr(holder, "eos_token_id", None)
        if isinstance(value, int):
            found.add(value)
        elif value is not None:
            found.update(value)
    return frozenset(found)
