"""`tss-bench search --executor`: in this process, or over Ray actors.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tss_bench.evaluators import NAMES, Evaluator, make_evaluator
from tss_bench.harness import TaskRequests, load_adapters
from tss_bench.ray_executor import RayPool, RaySettings, require_ray
from tss_bench.ray_worker import Recipe, place_of
from tss_bench.search_plan import SearchPlan
from tss_bench.weights.loading import resolve_device

_OF_RAY = {
    "actors": "actors",
    "ray_address": "address",
    "cpus_per_actor": "cpus_per_actor",
    "gpus_per_actor": "gpus_per_actor",
}
"""Flags that only Ray understands, and their fields of RaySettings."""


@dataclass(frozen=True)
class Evaluators:
    """What evaluates: `make` gives the executor of a task, `place` says what it decodes with.

    `machine` is what its seconds depend on.
    """

    make: Callable[[TaskRequests], Evaluator]
    place: str
    machine: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say where evaluations are made; None where a default is meant."""
    default = RaySettings()
    parser.add_argument(
        "--executor",
        default="serial",
        choices=("serial", "ray"),
        help="serial: in this process; ray: spread over Ray actors, each with its own model",
    )
    parser.add_argument(
        "--evaluator",
        default="batched",
        choices=NAMES,
        help="batched (default): many answers a pass of the target; sequential: one after the "
        "other, several times slower, to compare with",
    )
    parser.add_argument("--actors", type=int, help=f"with ray: how many ({default.actors})")
    parser.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="with ray: a running cluster (default: a local Ray is started and shut down)",
    )
    parser.add_argument(
        "--cpus-per-actor",
        type=int,
        help=f"with ray: cores, and threads, of an actor ({default.cpus_per_actor})",
    )
    parser.add_argument(
        "--gpus-per-actor",
        type=float,
        metavar="SHARE",
        help=f"with ray: 0.5 lets two actors share a GPU ({default.gpus_per_actor:g})",
    )


def settings(args: argparse.Namespace) -> RaySettings | None:
    """What is asked of Ray, None for serial. Raises ValueError; needs no plan, loads nothing."""
    given = {flag: getattr(args, flag) for flag in _OF_RAY if getattr(args, flag) is not None}
    if args.executor == "ray":
        found = RaySettings(**{_OF_RAY[flag]: value for flag, value in given.items()})
        require_ray()
        return found
    for flag in given:
        raise ValueError(
            f"--{flag.replace('_', '-')} has a meaning with --executor ray only; add that, or "
            f"leave it out"
        )
    return None


@contextmanager
def evaluators(plan: SearchPlan, ray: RaySettings | None) -> Iterator[Evaluators]:
    """Load the adapter of a plan, here or in Ray actors, for as long as the context lasts.

    Raises ValueError as `load_adapters` and `RayPool` do.
    """
    adapter = plan.adapter
    if ray is None:
        load_adapters({adapter.name: adapter})
        here = place_of(adapter)
        yield Evaluators(
            lambda task: make_evaluator(adapter, task, plan.evaluator), str(here), here.machine
        )
        return
    _require_gpus(resolve_device(adapter.arguments.device), ray)
    tasks = tuple(domain.task.name for domain in plan.domains)
    recipe = Recipe(
        adapter.name, plan.arguments, tasks, plan.limit, plan.evaluator, plan.include_path
    )
    fingerprints = {domain.task.name: domain.fingerprint for domain in plan.domains}
    with RayPool(recipe, fingerprints, ray) as pool:
        actors = f"{ray.actors} Ray actor{'s' if ray.actors > 1 else ''}"
        machine = f"{actors}, each on {' or '.join(pool.machines)}"
        yield Evaluators(lambda task: pool.executor(task.name), f"{pool.place}, {actors}", machine)


def _require_gpus(device: str, ray: RaySettings) -> None:
    """Raises ValueError where actors would use GPUs that Ray keeps no account of."""
    if device.startswith("cuda") and not ray.gpus_per_actor:
        raise ValueError(
            "this search is for a GPU, and actors without a share of one get none; give "
            "--gpus-per-actor 0.5 for two on a GPU, or device=cpu in --model_args"
        )
