"""A guard around lm-eval's `--use_cache`: answers of one configuration in one file, no timings.

lm-eval keys a cached answer by its prompt alone. The guard stores what else the answer depends
on beside it and refuses a file that was filled by another configuration. Statistics are
never stored: a replayed answer has no speed.

May import: lm_eval, tss_bench.types, model_adapters.{arguments,prompts}.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from lm_eval.api.model import hash_args

from model_adapters.arguments import AdapterError
from model_adapters.prompts import Request
from tss_bench.types import GeneratedText, SkipSet

_FINGERPRINT = "tss_bench:fingerprint"
_CLAIM = "tss_bench:claim:"


class CacheGuard:
    """Guards one open cache; `store` is lm-eval's SqliteDict.

    Raises AdapterError for a file filled by another configuration or another kind of model.
    """

    def __init__(self, store: Any, fingerprint: Mapping[str, Any]) -> None:
        self._store: MutableMapping[str, Any] = store
        name = getattr(store, "filename", "the cache")
        known = store.get(_FINGERPRINT)
        if known is None and len(store):
            raise AdapterError(
                f"cache {name} was not filled by an adapter of tss_bench; give another --use_cache"
            )
        self._holds_answers = known is not None
        self._name = name
        wanted = json.loads(json.dumps(fingerprint, default=str))
        if known is None:
            store[_FINGERPRINT] = wanted
        elif known != wanted:
            raise AdapterError(
                f"cache {name} holds answers of another configuration "
                f"({_difference(known, wanted)}); give another --use_cache or delete the file"
            )
        pickled = store.encode
        store.encode = lambda value: pickled(_text_only(value))

    def notes(self) -> Iterator[str]:
        """What the user should be told of a cache that an earlier run filled."""
        if self._holds_answers:
            yield (
                f"answers in {self._name} are replayed: they were made by this very "
                "configuration, but have no accept length and no speed"
            )

    def claim(
        self,
        kind: str,
        arguments: Sequence[Any],
        request: Request,
        skip: SkipSet | None,
        greedy: bool,
    ) -> None:
        """Tie the cached answer of a prompt to all it depends on; `skip` None: it is routed.

        Raises AdapterError where the same prompt stands in the cache with another dependence
        (two tasks that share it), and for sampled answers, of which a cache keeps only one.
        """
        if not greedy:
            raise AdapterError(
                "--use_cache keeps one answer a prompt and replays it; leave it out when sampling"
            )
        layers = None if skip is None else list(skip)
        dependence = json.dumps([layers, request.style, list(request.turns)])
        digest = hashlib.sha256(dependence.encode()).hexdigest()
        key = _CLAIM + hash_args(kind, arguments)
        if self._store.get(key, digest) != digest:
            raise AdapterError(
                f"{request.where} has the prompt of a row that was answered with another skip set "
                f"or conversation, and --use_cache cannot tell them apart; give {request.task} "
                f"a --use_cache file of its own"
            )
        self._store[key] = digest


def _text_only(value: object) -> object:
    """An answer as it may be stored: without what was measured."""
    if isinstance(value, GeneratedText):
        return GeneratedText(str(value), turns=value.turns, config={**value.config, "cached": True})
    return value


def _difference(known: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    names = sorted(n for n in {*known, *wanted} if known.get(n) != wanted.get(n))
    return "; ".join(f"{n}: there {known.get(n)}, here {wanted.get(n)}" for n in names)
