"""`tss-bench domains list` and `show`: what a map says of each domain, its figures, and why.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tss_bench.domains import DomainConfig, DomainMap, packaged_maps

_NARROWEST = 20


def list_maps(args: argparse.Namespace) -> None:
    """Print the packaged domain maps, one a line."""
    for name in packaged_maps():
        found = DomainMap.load(name)
        print(f"{name:<48}{found.model}, {found.drafter}, {found.num_layers} layers")


def show_map(args: argparse.Namespace) -> None:
    """Print what a domain map says, or with `--json` the map itself."""
    found = DomainMap.load(args.map)
    if args.json:
        print(json.dumps(found.to_dict(), indent=2, ensure_ascii=False))
    else:
        print(*map_lines(found), sep="\n")


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench domains show`."""
    parser.add_argument("map", help="a packaged map's name (tss-bench domains list) or a file")
    parser.add_argument("--json", action="store_true", help="the map itself, to start one from")


def map_lines(found: DomainMap) -> Iterator[str]:
    """What the map is for, then a line a domain."""
    yield f"model     {found.model} ({found.num_layers} layers)"
    yield f"drafter   {found.drafter}"
    yield f"scope     {found.scope}"
    yield f"protocol  {found.protocol}"
    records = search_records(found)
    width = max([_NARROWEST, *(len(name) + 1 for name in found.domains)])
    for name, config in found.domains.items():
        line = f"{name:<{width}}skip {config.skip!s:<24}{config.sparsity:6.1%} of the layers"
        told = "; ".join(_told(config, records.get(name), searched=bool(records)))
        yield f"{line}  {told}".rstrip()


def search_records(found: DomainMap) -> dict[str, Mapping[str, Any]]:
    """What `tss-bench search` left about each of the map's domains; none for maps of others."""
    records = found.provenance.get("search")
    if not isinstance(records, Mapping):
        return {}
    return {name: one for name, one in records.items() if isinstance(one, Mapping)}


def _told(
    config: DomainConfig, record: Mapping[str, Any] | None, *, searched: bool
) -> Iterator[str]:
    record = record or {}
    figures = [
        _figure("A", config.accept, _before(config, record, "accept"), 2),
        _figure(
            str(record.get("metric_name") or "M"),
            config.metric,
            _before(config, record, "metric"),
            3,
        ),
    ]
    if any(figures):
        yield ", ".join(filter(None, figures))
    if not record:
        if searched:
            yield "not searched"
        return
    yield str(record.get("strategy"))
    if not config.skip:
        yield str(record.get("reason") or "dense kept")
    elif record.get("metric_floor"):
        yield f"chosen on A alone: {record['metric_floor']}"


def _before(config: DomainConfig, record: Mapping[str, Any], name: str) -> object:
    """The dense figure that a set is held against; None for the dense set itself."""
    dense = record.get("dense")
    return dense.get(name) if config.skip and isinstance(dense, Mapping) else None


def _figure(name: str, value: float | None, before: object, digits: int) -> str:
    if value is None:
        return ""
    text = f"{name} {value:.{digits}f}"
    return f"{text} (dense {before:.{digits}f})" if isinstance(before, float | int) else text
