"""Arguments of the adapters: read, checked and turned into one frozen record.

Everything that can be known to be wrong without looking at a model is refused here.

May import: tss_bench.{types,decoding,routing,weights}.
"""

from __future__ import annotations

import ast
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal, get_args

from tss_bench.decoding.drafters.token_recycling import State
from tss_bench.routing import POOLINGS, Pooling
from tss_bench.types import PROTOCOLS, SCOPES, Protocol, Scope
from tss_bench.weights import DEFAULT_MODEL, DTYPES

OVERFLOWS = ("flag", "error")
STATES: tuple[str, ...] = get_args(State)
FALLBACKS = ("token_recycling", "eagle")
ROUTERS = ("none", "knn")

ROUTER_SHAPE = ("router_pooling", "router_k", "router_threshold")
"""What shapes a router."""

SPARSE = frozenset({"skip_layers", "domain_map", "router", *ROUTER_SHAPE})
"""Arguments of the `tss_*` adapters alone."""


class AdapterError(ValueError):
    """A request this adapter refuses. The message is one line: lm-eval prints it last."""

    def __init__(self, message: object) -> None:
        super().__init__(" ".join(str(message).split()))


class IncompleteError(AdapterError):
    """Nothing given is wrong, but the adapter needs what was not given or the model lacks."""


@contextmanager
def one_error() -> Iterator[None]:
    """What the layers below refuse becomes one AdapterError."""
    try:
        yield
    except AdapterError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        raise AdapterError(error) from error


def refuse_several_processes(adapter: str) -> None:
    """Raises AdapterError where a launcher started more than one process."""
    started = os.environ.get("WORLD_SIZE", "1")
    if started not in ("", "1"):
        raise AdapterError(
            f"{adapter} runs in one process, but {started} were started "
            f"(WORLD_SIZE={started}); use accelerate launch --num_processes 1 or plain lm_eval"
        )


@dataclass(frozen=True)
class Arguments:
    """What `--model_args` says. None means: decided by the model, the map or the device."""

    pretrained: str = DEFAULT_MODEL
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: str = "bfloat16"
    device: str = "auto"
    max_length: int | None = None
    max_gen_toks: int = 256
    chat_template: bool | None = None
    batch_size: int = 1
    on_overflow: str = "flag"
    skip_layers: Any = None
    domain_map: str | None = None
    router: str = "none"
    router_pooling: Pooling | None = None
    router_k: int | None = None
    router_threshold: float | None = None
    scope: Scope | None = None
    protocol: Protocol = "strict"
    temperature: float = 0.0
    seed: int = 0
    draft: str = "auto"
    draft_revision: str | None = None
    total_token: int | None = None
    depth: int | None = None
    top_k: int | None = None
    tree: str | None = None
    state: State = "request"
    max_ngram_size: int = 3
    num_pred_tokens: int = 10
    num_draft_tokens: int = 5
    exit_layer: int | None = None
    num_speculations: int | Literal["auto"] | None = None
    draft_confidence: float | None = None
    n_predicts: int = 40
    len_threshold: int = 5
    len_bias: int = 5
    sam: str | None = None
    fallback: str = "token_recycling"


EAGLE = frozenset({"draft", "draft_revision", "total_token", "depth", "top_k", "tree"})
TOKEN_RECYCLING = frozenset({"tree", "state"})
PROMPT_LOOKUP = frozenset({"max_ngram_size", "num_pred_tokens"})
DRAFT_MODEL = frozenset({"draft", "draft_revision", "num_draft_tokens"})
EXIT_LAYER = frozenset({"exit_layer"})
LAYERSKIP = EXIT_LAYER | {"num_speculations", "draft_confidence"}
SAMD = EAGLE | {"n_predicts", "len_threshold", "len_bias", "sam", "fallback"}
COMMON = frozenset(f.name for f in fields(Arguments)).difference(
    SPARSE, EAGLE, TOKEN_RECYCLING, PROMPT_LOOKUP, DRAFT_MODEL, LAYERSKIP, SAMD
)


def read_arguments(adapter: str, given: Mapping[str, Any], allowed: Iterable[str]) -> Arguments:
    """The record of what was given to the adapter of that name.

    `allowed` names what this adapter takes. Raises AdapterError for an unknown argument, one
    that belongs to another adapter, and a value outside its range.
    """
    allowed = set(allowed)
    for name in given:
        if name not in allowed and name != "max_batch_size":
            raise AdapterError(_unknown(adapter, name, allowed))
    values = {
        name: _READERS[name](name, value)
        for name, value in given.items()
        if value is not None and name != "max_batch_size"
    }
    return Arguments(**values)


def share_out(
    given: Mapping[str, Any], allowed: Mapping[str, Iterable[str]]
) -> dict[str, dict[str, Any]]:
    """What each adapter gets of arguments that are for several: those that it takes.

    `allowed` names each adapter's arguments. `ADAPTER.name` is for that adapter alone and wins
    there. One that nobody takes goes to the first adapter, whose `read_arguments` refuses it.
    """
    takes = {adapter: set(names) for adapter, names in allowed.items()}
    own: dict[str, dict[str, Any]] = {adapter: {} for adapter in takes}
    common = dict(given)
    for name in given:
        adapter, _, rest = name.partition(".")
        if rest and adapter in own:
            own[adapter][rest] = common.pop(name)
    orphans = set(common) - set().union(*takes.values())
    first = next(iter(takes))
    shares = {}
    for adapter, names in takes.items():
        wanted = names | (orphans if adapter == first else set())
        shares[adapter] = {name: value for name, value in common.items() if name in wanted}
        shares[adapter] |= own[adapter]
    return shares


def _unknown(adapter: str, name: str, allowed: set[str]) -> str:
    if name in SPARSE:
        return no_skipping(adapter, name)
    known = {field.name for field in fields(Arguments)}
    if name in known:
        return f"argument {name!r} has no meaning for {adapter}; it takes {_listed(allowed)}"
    near = get_close_matches(name, sorted(allowed), 1) or get_close_matches(name, sorted(known), 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{adapter} has no argument {name!r}; {hint}it takes {_listed(allowed)}"


def no_skipping(adapter: str, name: str) -> str:
    """Why an adapter that is not sparse takes no `name`, and which one does."""
    sparse = adapter.replace("native_", "tss_", 1)
    if sparse == adapter:
        return (
            f"{adapter} runs the first exit_layer layers alone and takes no {name}; use tss_ar "
            f"with {name}"
        )
    return f"{adapter} always runs every layer and takes no {name}; use {sparse}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _one_of(allowed: Sequence[str]) -> Any:
    def read(name: str, value: object) -> str:
        if str(value) in allowed:
            return str(value)
        raise AdapterError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")

    return read


def _text(name: str, value: object) -> str:
    text = str(value).strip()
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not text:
        raise AdapterError(f"{name} must be a name or a path, got {value!r}")
    return text


def _dtype(name: str, value: object) -> str:
    return str(_one_of(DTYPES)(name, str(value).removeprefix("torch.")))


def _flag(name: str, value: object) -> bool:
    word = str(value).strip().lower()
    if word in ("true", "1", "yes"):
        return True
    if word in ("false", "0", "no"):
        return False
    raise AdapterError(f"{name} must be true or false, got {value!r}")


def _count(low: int) -> Any:
    def read(name: str, value: object) -> int:
        number = _whole(value)
        if number is None or number < low:
            raise AdapterError(f"{name} must be a whole number of at least {low}, got {value!r}")
        return number

    return read


def _count_or_auto(low: int) -> Any:
    def read(name: str, value: object) -> int | str:
        if str(value).strip().lower() == "auto":
            return "auto"
        number = _whole(value)
        if number is None or number < low:
            raise AdapterError(
                f"{name} must be auto or a whole number of at least {low}, got {value!r}"
            )
        return number

    return read


def _probability(name: str, value: object) -> float:
    number = _number(value)
    if not 0.0 <= number <= 1.0:
        raise AdapterError(f"{name} must be a probability, 0 to 1, got {value!r}")
    return number


def _number(value: object) -> float:
    """NaN for what is no number."""
    try:
        return math.nan if isinstance(value, bool) else float(str(value))
    except ValueError:
        return math.nan


def _whole(value: object) -> int | None:
    number = _number(value)
    return int(number) if number.is_integer() else None


def _temperature(name: str, value: object) -> float:
    number = _number(value)
    if not 0.0 <= number < float("inf"):
        raise AdapterError(f"{name} must be 0 (greedy) or a number above it, got {value!r}")
    return number


def _distance(name: str, value: object) -> float:
    number = _number(value)
    if not 0.0 <= number <= 2.0:
        raise AdapterError(f"{name} must be a cosine distance, 0 to 2, got {value!r}")
    return number


def _batch_size(name: str, value: object) -> int:
    if str(value).strip() in ("1", "auto"):
        return 1
    raise AdapterError(
        f"batch_size must be 1 or auto, got {value!r}: speculative decoding is measured one "
        f"request at a time"
    )


def _as_given(name: str, value: object) -> object:
    return value


_READERS: dict[str, Any] = {
    "pretrained": _text,
    "revision": _text,
    "trust_remote_code": _flag,
    "dtype": _dtype,
    "device": _text,
    "max_length": _count(2),
    "max_gen_toks": _count(0),
    "chat_template": _flag,
    "batch_size": _batch_size,
    "on_overflow": _one_of(OVERFLOWS),
    "skip_layers": _as_given,
    "domain_map": _text,
    "router": _one_of(ROUTERS),
    "router_pooling": _one_of(POOLINGS),
    "router_k": _count(1),
    "router_threshold": _distance,
    "scope": _one_of(SCOPES),
    "protocol": _one_of(PROTOCOLS),
    "temperature": _temperature,
    "seed": _count(0),
    "draft": _text,
    "draft_revision": _text,
    "total_token": _count(2),
    "depth": _count(0),
    "top_k": _count(1),
    "tree": _text,
    "state": _one_of(STATES),
    "max_ngram_size": _count(1),
    "num_pred_tokens": _count(1),
    "num_draft_tokens": _count(1),
    "exit_layer": _count(1),
    "num_speculations": _count_or_auto(1),
    "draft_confidence": _probability,
    "n_predicts": _count(1),
    "len_threshold": _count(1),
    "len_bias": _count(0),
    "sam": _text,
    "fallback": _one_of(FALLBACKS),
}


def split_arguments(text: str | None) -> dict[str, Any]:
    """`"a=1,skip_layers=[3,25],b=x"` as a dict; commas inside brackets do not split.

    Raises AdapterError for a piece that is no `name=value`, a name given twice and a bracket
    that is not closed.
    """
    values: dict[str, Any] = {}
    if any((text or "").count(a) != (text or "").count(b) for a, b in ("[]", "()", "{}")):
        raise AdapterError(f"a bracket is not closed in the model arguments {text!r}")
    for piece in _pieces(text or ""):
        name, equals, value = piece.partition("=")
        if not equals:
            raise AdapterError(
                f"model argument {piece!r} is no name=value pair; write a list of layers as "
                "3+25+30 or [3,25,30]"
            )
        if name.strip() in values:
            raise AdapterError(f"model argument {name.strip()!r} is given twice")
        values[name.strip()] = _value(value.strip())
    return values


def _pieces(text: str) -> list[str]:
    pieces, start, open_brackets = [], 0, 0
    for position, letter in enumerate(text):
        if letter in "[({":
            open_brackets += 1
        elif letter in "])}":
            open_brackets -= 1
        elif letter == "," and open_brackets <= 0:
            pieces.append(text[start:position])
            start = position + 1
    pieces.append(text[start:])
    return [piece.strip() for piece in pieces if piece.strip()]


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
