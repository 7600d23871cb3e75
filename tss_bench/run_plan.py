"""What `tss-bench run` is going to do: adapters, tasks and settings, all checked.

Nothing is loaded here but the rows of the tasks.

May import: torch, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from model_adapters.adapters import ADAPTERS, find_adapter
from model_adapters.arguments import split_arguments
from model_adapters.base import SpeculativeLM
from tss_bench import __version__
from tss_bench.answer_records import digest
from tss_bench.harness import (
    OpenTasks,
    TaskRequests,
    add_include_path,
    members,
    open_tasks,
    prepare_each,
    shares,
    split_names,
)
from tss_bench.machine import device_line
from tss_bench.run_records import RunError
from tss_bench.training.records import source_state
from tss_bench.weights.loading import resolve_device

FORMATS = ("lm-eval", "spec-bench", "both")
SPARSE_PREFIX, NATIVE_PREFIX = "tss_", "native_"
FOREIGN = "foreign"

# Arguments that an answer does not depend on, or that the settings hold in another form.
_NOT_SETTINGS = frozenset(
    {
        "batch_size",
        "device",
        "domain_map",
        "draft",
        "draft_revision",
        "pretrained",
        "revision",
        "scope",
        "skip_layers",
        "trust_remote_code",
    }
)


@dataclass(frozen=True)
class RunPlan:
    """A checked run. `given` are the arguments of each adapter as they were written, `left_out`
    says of an adapter of a group why it cannot run.

    `settings` is all that an answer or its time depends on, beside its request.
    """

    adapters: Mapping[str, SpeculativeLM]
    given: Mapping[str, Mapping[str, Any]]
    left_out: Mapping[str, str]
    opened: OpenTasks
    tasks: Sequence[TaskRequests]
    settings: Mapping[str, Any]
    gen_kwargs: Mapping[str, Any]
    split: str
    limit: int | None
    repeats: int
    out: Path
    format: str
    no_docs: bool

    @property
    def keeps_state(self) -> bool:
        """Whether answers depend on the requests before them."""
        return any(adapter.arguments.state == "run" for adapter in self.adapters.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench run`."""
    parser.epilog = (
        "Every request is answered by all adapters, one after the other in changing order. OUT "
        "gets a folder for each adapter with the files of `lm_eval --output_path --log_samples`. "
        "After a kill the same command goes on where it was; failed requests are asked again. "
        "Exit code 2: a request failed. Peak memory is measured with all adapters of the run "
        "loaded; run one adapter with --alone for its own."
    )
    parser.add_argument(
        "--model",
        required=True,
        help="comma-separated adapters; native, tss and all are those that can run; native_X is "
        "added for tss_X (see --alone); X@LABEL is one more of a kind, with arguments of its own",
    )
    parser.add_argument("--tasks", required=True, help="comma-separated tasks or groups")
    add_include_path(parser)
    parser.add_argument("--out", type=Path, required=True, help="directory of this run alone")
    parser.add_argument(
        "--model_args",
        default="",
        help="arguments as in lm_eval, protocol=paper too; each adapter gets those it takes; "
        "ADAPTER.name=value goes to that one alone, of tss_X to the native_X added for it, too",
    )
    parser.add_argument("--gen_kwargs", default="", help="as in lm_eval; they win over the tasks'")
    parser.add_argument("--alone", action="store_true", help="add no native adapter")
    parser.add_argument("--split", default="test", help="test (default), calibration or all")
    parser.add_argument("--limit", type=int, help="rows a task (default: all)")
    parser.add_argument(
        "--repeats", type=int, default=1, help="measure all this often, with the same seeds"
    )
    parser.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="files to write (default lm-eval)"
    )
    parser.add_argument(
        "--no-docs", action="store_true", help="write no text of the data set, only its hashes"
    )
    parser.add_argument("--threads", type=int, help="torch CPU threads (default: torch's own)")


def make_plan(args: argparse.Namespace) -> RunPlan:
    """Raises ValueError for whatever in `args` cannot be run; no weights are loaded."""
    for name in ("limit", "threads", "repeats"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise RunError(f"--{name} must be at least 1, got {value}")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    adapters, given, left_out = prepare_run(
        split_names(args.model), args.model_args, alone=args.alone
    )
    gen_kwargs = split_arguments(args.gen_kwargs)
    opened = open_tasks(split_names(args.tasks), {"split": args.split}, args.include_path)
    tasks = opened.requests(args.limit, gen_kwargs)
    for task in tasks:
        _check_task(task, adapters, args.split)
    return RunPlan(
        adapters=adapters,
        given=given,
        left_out=left_out,
        opened=opened,
        tasks=tasks,
        settings={
            "adapters": {name: _settings(adapter) for name, adapter in adapters.items()},
            "tasks": [task.name for task in tasks],
            "split": args.split,
            "commit": source_state(),
            "versions": versions(),
            "machine": device_line(resolve_device(next(iter(adapters.values())).arguments.device)),
        },
        gen_kwargs=gen_kwargs,
        split=args.split,
        limit=args.limit,
        repeats=args.repeats,
        out=args.out,
        format=args.format,
        no_docs=args.no_docs,
    )


Prepared = tuple[dict[str, SpeculativeLM], dict[str, dict[str, Any]], dict[str, str]]


def prepare_run(names: Sequence[str], model_args: str, *, alone: bool) -> Prepared:
    """The adapters of a run, the arguments of each, and why an adapter of a group is left out.

    `ADAPTER.name=value` of a `tss_X` goes to the `native_X` that is added for it, too, where
    that takes it. Raises AdapterError as `harness.prepare_runnable` does.
    """
    wanted = members(names)
    all_names = adapter_names(wanted, alone=alone)
    arguments = split_arguments(model_args)
    for native in all_names:
        if native not in wanted:
            sparse = [name for name in wanted if native_of(name) == native]
            arguments = _native_arguments(native, sparse, arguments) | arguments
    required = [name for name in wanted if name in (*names, wanted[0])]
    adapters, left_out = prepare_each(all_names, arguments, adapter_names(required, alone=alone))
    # A native adapter that was added goes with its sparse one.
    natives = {native_of(name) for name in adapters if name in wanted}
    adapters = {n: adapter for n, adapter in adapters.items() if n in wanted or n in natives}
    given = shares(all_names, arguments)
    return adapters, {name: given[name] for name in adapters}, left_out


def _native_arguments(
    native: str, sparse: Sequence[str], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """What the `sparse` adapters were given for themselves and their common native takes, too.

    Raises RunError where it would have to be two natives at once.
    """
    takes = find_adapter(native).allowed_arguments()
    own = [
        {part: arguments[key] for part in sorted(takes) if (key := f"{name}.{part}") in arguments}
        for name in sparse
    ]
    for name, given in zip(sparse, own, strict=True):
        for part in sorted(given.keys() | own[0].keys()):
            if given.get(part) != own[0].get(part) and f"{native}.{part}" not in arguments:
                raise RunError(
                    f"{sparse[0]} and {name} differ in {part}, and one {native} goes beside both; "
                    f"say {native}.{part}=…, or run them apart"
                )
    return {f"{native}.{part}": value for part, value in own[0].items()}


def adapter_names(names: Sequence[str], *, alone: bool) -> list[str]:
    """The adapters of a run, each `tss_X` behind its `native_X` unless it is to be `alone`."""
    found: list[str] = []
    for name in names:
        found += [name] if alone else [native_of(name), name]
    return list(dict.fromkeys(found))


def native_of(name: str) -> str:
    """The adapter of the same drafter on the dense target; `name` itself where there is none.

    One goes beside all `tss_X@LABEL` of a run.
    """
    kind = name.partition("@")[0]
    native = kind.replace(SPARSE_PREFIX, NATIVE_PREFIX, 1)
    return native if kind.startswith(SPARSE_PREFIX) and native in ADAPTERS else name


def row_digests(task: TaskRequests) -> list[str]:
    """A digest of each request: its place, prompt, limits and row."""
    return [digest([request.doc_id, request.args, request.doc]) for request in task.requests]


def versions() -> dict[str, str]:
    """Of all that answers and their times depend on."""
    packages = ("torch", "transformers", "lm_eval")
    found = {name: version(name) for name in packages}
    return {"tss_bench": __version__, **found, "python": platform.python_version()}


def data_source(task: TaskRequests) -> dict[str, Any]:
    """Where the rows of a task are from, as the task tells; kind `foreign` for others' tasks."""
    found: dict[str, Any] = (task.task.config.metadata or {}).get("data", {})
    return found or {"kind": FOREIGN, "sha256": None, "revision": None, "rows": None}


def _check_task(task: TaskRequests, adapters: Mapping[str, SpeculativeLM], split: str) -> None:
    for adapter in adapters.values():
        task.options(adapter.arguments)
    if split != "test" and data_source(task)["kind"] == FOREIGN:
        raise RunError(f"{task.name} is no task of ours and knows no --split {split}")
    repeats = task.task.config.repeats
    if repeats > 1:
        raise RunError(
            f"{task.name} asks for {repeats} answers to a request; tss-bench run gives one (use "
            f"lm_eval for it, or --repeats to measure again)"
        )


def _settings(adapter: SpeculativeLM) -> dict[str, Any]:
    """All that an answer of one adapter depends on, beside its request; known before loading."""
    told = sorted(adapter.allowed_arguments() - _NOT_SETTINGS)
    compared = adapter.chooser.prompts
    return {
        **{name: getattr(adapter.arguments, name) for name in told},
        "model": adapter.info.id,
        "revision": adapter.info.revision,
        "num_layers": adapter.info.num_layers,
        "drafter": adapter.drafter_id,
        "scope": adapter.scope,
        "skip_sets": {name: list(skip) for name, skip in adapter.controller.sets.items()},
        "device": resolve_device(adapter.arguments.device),
        **adapter.drafter_record(),
        **({"router_data": dict(compared.sources)} if compared else {}),
    }
