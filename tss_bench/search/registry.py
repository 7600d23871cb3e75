"""Which strategies there are: ours and those of other packages, found in one way.

A strategy is an entry point of the group `tss_bench.strategies` that names a generator function
`f(space, rules, *, option=default)`. Ours are listed here too, so that a checkout works without
being installed.

May import: the standard library and tss_bench.search (layer L1 of the design).
"""

from __future__ import annotations

import difflib
import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from tss_bench.search.types import StrategyFunction

GROUP = "tss_bench.strategies"
_HERE = "tss_bench.search.strategies"

BUILT_IN: Mapping[str, str] = {
    "tss_bfs": f"{_HERE}.tss_bfs:tss_bfs",
    "tss_beam": f"{_HERE}.tss_beam:tss_beam",
    "tss_race": f"{_HERE}.tss_race:tss_race",
    "gm_skip": f"{_HERE}.gm_skip:gm_skip",
    "sleb": f"{_HERE}.sleb:sleb",
    "random": f"{_HERE}.random:random_sets",
    "accept_only": f"{_HERE}.accept_only:accept_only",
    "metric_only": f"{_HERE}.metric_only:metric_only",
}


class StrategyError(ValueError):
    """A strategy or option that does not exist or cannot be used; one line, with the mend."""


@dataclass(frozen=True)
class Option:
    """One option of a strategy: name, default, and what its value may be, in words."""

    name: str
    default: Any
    annotation: Any

    @property
    def kind(self) -> str:
        return _describe(self.annotation)

    def parse(self, text: str) -> Any:
        """The value that a text stands for; KeyError or ValueError where it stands for none."""
        return _parse(text.strip(), self.annotation)


@dataclass(frozen=True)
class Strategy:
    """A loaded strategy. `origin` is the package it comes from, `summary` its first doc line.

    `preset` holds the barriers and depth it runs with where the user gives none.
    """

    name: str
    function: StrategyFunction
    origin: str
    summary: str
    options: tuple[Option, ...]
    preset: Mapping[str, int]

    def parse_options(self, texts: Iterable[str]) -> dict[str, Any]:
        """Values by option name, from texts `name=value`.

        Raises StrategyError: no `=`, an unknown or repeated name, a value of another kind.
        """
        known = {option.name: option for option in self.options}
        values: dict[str, Any] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            name = name.strip()
            if not equals:
                raise StrategyError(f"option {text!r} of {self.name}: write it as name=value")
            if name not in known:
                raise StrategyError(
                    f"{self.name} has no option {name!r}; {_hint(name, known, 'its options')}"
                )
            if name in values:
                raise StrategyError(f"option {name} of {self.name} is given twice")
            try:
                values[name] = known[name].parse(value)
            except (KeyError, ValueError):
                raise StrategyError(
                    f"option {name} of {self.name} must be {known[name].kind}, got {value!r}"
                ) from None
        return values


def available() -> dict[str, EntryPoint]:
    """Every strategy by name, ours first, not loaded yet.

    Raises StrategyError for one name that two packages claim.
    """
    found = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        first = found.setdefault(point.name, point)
        if first.value != point.value:
            raise StrategyError(
                f"strategy {point.name} is claimed by {_origin(first)} ({first.value}) and by "
                f"{_origin(point)} ({point.value}); uninstall one of them"
            )
    return found


def get(name: str) -> Strategy:
    """One strategy by its name. Raises StrategyError: unknown, not importable, or no strategy."""
    points = available()
    if name not in points:
        raise StrategyError(f"no strategy {name!r}; {_hint(name, points, 'there is')}")
    return _load(points[name])


def all_strategies() -> tuple[Strategy, ...]:
    """Every strategy, loaded. Raises StrategyError for the first that cannot be."""
    return tuple(_load(point) for point in available().values())


def _load(point: EntryPoint) -> Strategy:
    where = f"strategy {point.name} of {_origin(point)} ({point.value})"
    try:
        function = point.load()
    except (ImportError, AttributeError) as error:
        raise StrategyError(f"{where} cannot be loaded: {error}") from error
    if not inspect.isgeneratorfunction(function):
        raise StrategyError(f"{where} is no generator function; it must yield Query objects")
    document = inspect.getdoc(function) or ""
    return Strategy(
        point.name,
        function,
        _origin(point),
        document.partition("\n")[0],
        _options(function, where),
        dict(getattr(function, "preset", {})),
    )


def _options(function: StrategyFunction, where: str) -> tuple[Option, ...]:
    parameters = [*inspect.signature(function).parameters.values()]
    if [parameter.name for parameter in parameters[:2]] != ["space", "rules"]:
        raise StrategyError(f"{where} must take (space, rules, *, option=default)")
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        raise StrategyError(f"{where}: an annotation cannot be read: {error}") from None
    options = []
    for parameter in parameters[2:]:
        annotation = hints.get(parameter.name)
        if (
            parameter.kind is not parameter.KEYWORD_ONLY
            or parameter.default is parameter.empty
            or not _is_supported(annotation)
        ):
            raise StrategyError(
                f"{where}: option {parameter.name} must be keyword-only, have a default, and be "
                f"annotated int, float, bool, str, a Literal, a tuple of these, or one of them "
                f"or None"
            )
        options.append(Option(parameter.name, parameter.default, annotation))
    return tuple(options)


def _is_supported(annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return all(isinstance(value, str | int) for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return all(one is type(None) or _is_supported(one) for one in arguments)
    if origin is tuple:
        return len(arguments) == 2 and arguments[1] is ... and arguments[0] in _WORDS
    return annotation in _WORDS


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_TRUTH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _describe(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (types.UnionType, typing.Union):
        return " or ".join("none" if one is type(None) else _describe(one) for one in arguments)
    if origin is tuple:
        return f"a list like 1+2, each {_WORDS[arguments[0]]}"
    return _WORDS[annotation]


def _parse(text: str, annotation: Any) -> Any:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return {str(value): value for value in arguments}[text]
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and text.lower() == "none":
            return None
        return _first(text, [one for one in arguments if one is not type(None)])
    if origin is tuple:
        return tuple(_parse(part.strip(), arguments[0]) for part in text.split("+"))
    if annotation is bool:
        return _TRUTH[text.lower()]
    return annotation(text)


def _first(text: str, annotations: Iterable[Any]) -> Any:
    for annotation in annotations:
        try:
            return _parse(text, annotation)
        except (KeyError, ValueError):
            continue
    raise ValueError(text)


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "tss-bench"


def _hint(name: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    if near:
        return f"did you mean {near[0]}?"
    return f"{otherwise}: {', '.join(known) or 'none'}"
