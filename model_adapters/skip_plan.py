"""Which skip sets a run uses: from `skip_layers`, a domain map, or the packaged map of the pair.

May import: tss_bench.{types,domains}, tss_bench.weights, model_adapters.arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from model_adapters.arguments import ROUTER_SHAPE, AdapterError, Arguments, IncompleteError
from tss_bench.domains import DomainMap, MapError, SkipController, find_packaged
from tss_bench.types import Scope, SkipSet
from tss_bench.weights import ModelInfo


@dataclass(frozen=True)
class SkipPlan:
    """The controller of a run, the scope of its sets, and what the user should be told.

    `routed` holds the sets among which a router chooses, by domain; without a router none.
    """

    controller: SkipController
    scope: Scope
    source: str
    notes: tuple[str, ...] = ()
    routed: Mapping[str, SkipSet] = field(default_factory=dict)


def native_plan(arguments: Arguments, info: ModelInfo) -> SkipPlan:
    """The empty set for every task."""
    source = "native adapter"
    dense = SkipController.fixed(SkipSet.dense(info.num_layers), source)
    return SkipPlan(dense, arguments.scope or "verify", source)


def sparse_plan(arguments: Arguments, info: ModelInfo, drafter: str) -> SkipPlan:
    """`skip_layers` wins over `domain_map`, which wins over the packaged map of the pair.

    Raises AdapterError for a layer the model lacks, for a map that cannot be read or is of
    another model, and for a router without a map.
    """
    shapes = [name for name in ROUTER_SHAPE if getattr(arguments, name) is not None]
    if shapes and arguments.router == "none":
        raise AdapterError(f"{', '.join(shapes)}: there is no router to shape; add router=knn")
    if arguments.skip_layers is not None:
        return _layers_plan(arguments, info)
    if arguments.domain_map is not None:
        try:
            domain_map = DomainMap.load(arguments.domain_map)
            domain_map.require(info.id, info.num_layers)
        except MapError as error:
            raise AdapterError(error) from None
        return _map_plan(arguments, domain_map, drafter, f"map {arguments.domain_map}")
    found = find_packaged(info.id, drafter)
    if found is None or found[1].num_layers != info.num_layers:
        source = f"no packaged map for {info.id} with drafter {drafter}: dense"
        if arguments.router != "none":
            raise IncompleteError(
                f"router={arguments.router} chooses among the domains of a map, and there is no "
                f"packaged map for {info.id} with drafter {drafter}: give domain_map=FILE"
            )
        dense = SkipController.fixed(SkipSet.dense(info.num_layers), source)
        note = f"{source}. Give skip_layers=3+25+30 or domain_map=FILE to skip layers"
        return SkipPlan(dense, arguments.scope or "verify", source, (note,))
    name, domain_map = found
    return _map_plan(arguments, domain_map, drafter, f"packaged map {name}")


def _layers_plan(arguments: Arguments, info: ModelInfo) -> SkipPlan:
    try:
        skip = SkipSet.parse(arguments.skip_layers, info.num_layers)
    except (ValueError, TypeError) as error:
        raise AdapterError(f"skip_layers={arguments.skip_layers}: {error}") from None
    source = f"skip_layers={'+'.join(map(str, skip)) or 'dense'}"
    notes = []
    if arguments.domain_map is not None:
        notes.append(f"{source} wins over domain_map={arguments.domain_map}, which is not read")
    if arguments.router != "none":
        notes.append(f"{source} is for every request, so router={arguments.router} routes none")
    controller = SkipController.fixed(skip, source)
    return SkipPlan(controller, arguments.scope or "verify", source, tuple(notes))


def _map_plan(arguments: Arguments, domain_map: DomainMap, drafter: str, source: str) -> SkipPlan:
    notes = []
    if domain_map.drafter != drafter:
        notes.append(
            f"{source} was found with drafter {domain_map.drafter}, this run uses {drafter}: "
            f"its skip sets may not be the best ones here"
        )
    scope = arguments.scope or domain_map.scope
    if scope != domain_map.scope:
        notes.append(f"{source} was found with scope {domain_map.scope}, this run uses {scope}")
    if arguments.protocol != domain_map.protocol:
        notes.append(
            f"the figures in {source} were counted with protocol {domain_map.protocol}, "
            f"this run counts with {arguments.protocol}"
        )
    controller = SkipController.of_map(domain_map, source)
    routed: dict[str, SkipSet] = {}
    if arguments.router != "none":
        routed = {name: config.skip for name, config in domain_map.domains.items()}
        if not any(routed.values()):
            notes.append(f"{source} skips nothing, so router={arguments.router} changes no answer")
    return SkipPlan(controller, scope, source, tuple(notes), routed)
