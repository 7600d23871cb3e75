"""Generation keyword arguments of one request: read, checked, completed from the adapter.

May import: model_adapters.arguments.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_adapters.arguments import AdapterError, Arguments

_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_KNOWN = ("until", "do_sample", "temperature", *_LIMITS)
_SHAPING = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "typical_p": 1.0}
"""Arguments that reshape the sampled distribution, with the value that leaves it as it is."""
_NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0, "num_return_sequences": 1}
"""Arguments with one value that we can honour."""


@dataclass(frozen=True)
class GenOptions:
    """What one request asks for; temperature 0 is greedy."""

    max_gen_toks: int
    stop_strings: tuple[str, ...]
    temperature: float


def read_options(given: Mapping[str, Any], arguments: Arguments) -> GenOptions:
    """Options of a request; what the request (or `--gen_kwargs`) says wins over the adapter.

    Raises AdapterError for an argument we would have to ignore.
    """
    temperature = _temperature(given, arguments.temperature)
    for name, value in given.items():
        if name not in _KNOWN and value is not None:
            _check_other(name, value, temperature)
    return GenOptions(_limit(given, arguments.max_gen_toks), _stops(given), temperature)


def _temperature(given: Mapping[str, Any], default: float) -> float:
    """`do_sample` decides where it is given; else the temperature does, as in lm-eval."""
    do_sample = given.get("do_sample")
    if do_sample is False:
        return 0.0
    value = given.get("temperature")
    try:
        temperature = default if value is None else float(value)
    except (TypeError, ValueError):
        temperature = -1.0
    if not 0.0 <= temperature < float("inf"):
        raise AdapterError(f"temperature must be 0 or a number above it, got {value!r}")
    if do_sample is True and temperature == 0.0:
        if value is None:
            return 1.0
        raise AdapterError("do_sample=True needs a temperature above 0, got 0")
    return temperature


def _limit(given: Mapping[str, Any], default: int) -> int:
    for name in _LIMITS:
        value = given.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise AdapterError(f"{name} must be a whole number of at least 0, got {value!r}")
        text = str(value).strip()
        if not text.isdecimal():
            raise AdapterError(f"{name} must be a whole number of at least 0, got {value!r}")
        return int(text)
    return default


def _stops(given: Mapping[str, Any]) -> tuple[str, ...]:
    until = given.get("until")
    if until is None:
        return ()
    stops = [until] if isinstance(until, str) else until
    if not isinstance(stops, list | tuple) or not all(isinstance(item, str) for item in stops):
        raise AdapterError(f"until must be a text or a list of texts, got {until!r}")
    return tuple(item for item in stops if item)


def _check_other(name: str, value: object, temperature: float) -> None:
    if name in _SHAPING:
        if temperature > 0.0 and value != _SHAPING[name]:
            raise AdapterError(
                f"{name}={value} is not supported: sampling here keeps the whole distribution; "
                f"leave {name} out"
            )
    elif name in _NEUTRAL:
        if value != _NEUTRAL[name]:
            raise AdapterError(
                f"{name}={value} is not supported: decoding here is greedy or plain sampling; "
                f"leave {name} out"
            )
    else:
        near = difflib.get_close_matches(name, _KNOWN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_KNOWN)}"
        raise AdapterError(f"unknown generation argument {name!r}; {hint}")
