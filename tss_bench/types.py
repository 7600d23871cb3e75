"""Core value types: skip sets, per-request statistics, generated text.

May import: the standard library only (layer L0 of the design).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Scope = Literal["verify", "all"]
Protocol = Literal["strict", "paper"]
StopReason = Literal["eos", "stop_string", "length", "context"]

SCOPES: tuple[Scope, ...] = ("verify", "all")
PROTOCOLS: tuple[Protocol, ...] = ("strict", "paper")

_DENSE_WORDS = frozenset({"dense", "none", "{}", "[]"})


@dataclass(frozen=True)
class SkipSet:
    """A set of skipped Transformer blocks of one target, 0-based.

    `layers` holds the skipped indices, `num_layers` is the depth L of the target.
    Raises ValueError for an index outside 0 … L-1.
    """

    layers: frozenset[int]
    num_layers: int

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
        for layer in sorted(self.layers):
            if not 0 <= layer < self.num_layers:
                raise ValueError(
                    f"skip layer {layer} does not exist: the target has {self.num_layers} layers, "
                    f"numbered 0 to {self.num_layers - 1}"
                )

    @classmethod
    def of(cls, layers: Iterable[int], num_layers: int) -> SkipSet:
        return cls(frozenset(layers), num_layers)

    @classmethod
    def dense(cls, num_layers: int) -> SkipSet:
        return cls(frozenset(), num_layers)

    @classmethod
    def parse(cls, value: str | int | Iterable[int] | None, num_layers: int) -> SkipSet:
        """Read `[3,25]`, `{3,25}`, `3,25`, `3+25`, an int, a list, or `dense`/None.

        Raises ValueError naming the text that is no layer index.
        """
        return cls.of(parse_layers(value), num_layers)

    @property
    def active(self) -> tuple[int, ...]:
        """Indices of the blocks that run, in order."""
        return tuple(i for i in range(self.num_layers) if i not in self.layers)

    @property
    def sparsity(self) -> float:
        """R = |S| / L."""
        return len(self.layers) / self.num_layers

    def __or__(self, other: SkipSet) -> SkipSet:
        if other.num_layers != self.num_layers:
            raise ValueError(
                f"cannot join skip sets for {self.num_layers} and {other.num_layers} layers"
            )
        return SkipSet(self.layers | other.layers, self.num_layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __contains__(self, layer: object) -> bool:
        return layer in self.layers

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.layers))

    def __str__(self) -> str:
        return "{" + ",".join(map(str, self)) + "}"


def parse_layers(value: str | int | Iterable[int] | None) -> tuple[int, ...]:
    """Layer indices from any form a command line or JSON file gives; see `SkipSet.parse`."""
    if value is None:
        return ()
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, bool | float | Mapping) or not isinstance(value, Iterable):
        raise ValueError(f"{value!r} is no list of layers; write for example 3+25+30")
    if not isinstance(value, str):
        return tuple(_one_layer(item) for item in value)
    text = value.strip()
    if not text:
        raise ValueError("an empty list of layers; write dense to skip none")
    if text.lower() in _DENSE_WORDS:
        return ()
    inner = re.sub(r"^[\[{(](.*)[\]})]$", r"\1", text)
    return tuple(_one_layer(item) for item in re.split(r"[,+\s]+", inner.strip()))


def _one_layer(item: object) -> int:
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    if isinstance(item, str) and re.fullmatch(r"\s*[+-]?\d+\s*", item):
        return int(item)
    raise ValueError(
        f"{item!r} is no layer index; write skip layers as whole numbers, for example 3+25+30"
    )


@dataclass(frozen=True)
class GenerationStats:
    """What one request cost and gave; the README's "Columns" says what is made of it.

    Times are seconds. `accept_lengths` holds the emitted ids of each verification step
    (accepted drafts + bonus, after the cut at the end of text).
    """

    prompt_tokens: int
    new_tokens: int
    verify_steps: int
    drafted: int
    accepted: int
    accept_lengths: tuple[int, ...]
    prefill_s: float
    draft_s: float
    verify_s: float
    wall_s: float
    stop: StopReason
    prompt_truncated: bool = False
    limit_clamped: bool = False

    def __post_init__(self) -> None:
        if len(self.accept_lengths) != self.verify_steps:
            raise ValueError(
                f"{len(self.accept_lengths)} accept lengths for {self.verify_steps} verify steps"
            )

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> GenerationStats:
        """From the fields as JSON gives them back. Raises TypeError for missing and other ones,
        ValueError where there is not one accept length a step."""
        found = dict(record)
        if "accept_lengths" in found:
            found["accept_lengths"] = tuple(found["accept_lengths"])
        return cls(**found)


class GeneratedText(str):
    """An answer that carries its statistics through lm-eval, which only knows `str`.

    `stats` has one record a turn; `turns` the answer of each turn (the string itself is
    the last one); `ids` what was emitted in each turn, end-of-text included. `config` says which
    skip set, scope, protocol and domain were used.
    """

    stats: tuple[GenerationStats, ...]
    turns: tuple[str, ...]
    config: dict[str, Any]
    ids: tuple[tuple[int, ...], ...]

    def __new__(
        cls,
        text: str,
        stats: tuple[GenerationStats, ...] = (),
        turns: tuple[str, ...] = (),
        config: dict[str, Any] | None = None,
        ids: tuple[tuple[int, ...], ...] = (),
    ) -> GeneratedText:
        self = super().__new__(cls, text)
        self.stats = stats
        self.turns = turns or (text,)
        self.config = dict(config or {})
        self.ids = ids
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (str(self), self.stats, self.turns, self.config, self.ids)
