"""Run lm-eval tasks on several adapters, interleaved request by request in one process.

May import: lm_eval, tqdm, model_adapters, tss_bench (layer L3 of the design). Tasks, metrics and
aggregations are lm-eval's own, so a figure here means what it means in lm-eval's table.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from model_adapters.adapters import ADAPTERS, find_adapter
from model_adapters.answering import Job
from model_adapters.arguments import (
    AdapterError,
    Arguments,
    IncompleteError,
    share_out,
    split_arguments,
)
from model_adapters.base import SpeculativeLM
from model_adapters.gen_options import GenOptions, read_options
from model_adapters.loaded import LoadedModel
from tss_bench.task_paths import task_directory
from tss_bench.types import GeneratedText

GENERATION = "generate_until"
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class TaskRequests:
    """A task with the requests of one run, in its order."""

    name: str
    task: Task
    requests: list[Instance]

    @property
    def label(self) -> str:
        """The task's name as lm-eval's table shows it, the data source included."""
        return str(self.task.config.task_alias or self.name)

    def options(self, arguments: Arguments) -> list[GenOptions]:
        """What each request asks for. Raises AdapterError for what we would have to ignore."""
        return [read_options(request.args[1], arguments) for request in self.requests]

    def score(self, answers: Sequence[GeneratedText]) -> Outcome:
        """The metrics of one answer a request."""
        outcome = Outcome()
        for request, answer in zip(self.requests, answers, strict=True):
            outcome.add(self.task.process_results(request.doc, [answer]))
        return outcome


@dataclass
class Outcome:
    """Metric values of one adapter on one task, one list entry a scored request."""

    samples: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    requests: int = 0

    def add(self, metrics: Mapping[str, Any]) -> None:
        self.requests += 1
        for name, value in metrics.items():
            self.samples[name].append(value)

    def aggregate(self, task: Task) -> dict[str, float]:
        """The task's own aggregation of each metric that was emitted."""
        aggregations = task.aggregation()
        return {name: aggregations[name](values) for name, values in self.samples.items()}


def split_names(text: str | None) -> list[str]:
    """The words of a comma-separated list."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def prepare_adapters(
    names: Sequence[str], arguments: str | Mapping[str, Any]
) -> dict[str, SpeculativeLM]:
    """Adapters by their lm-eval names, all checked and none loaded; see `load_adapters`.

    Each gets its share of `arguments`, see `shares`. Raises AdapterError as `shares` does and for
    bad arguments.
    """
    return {
        name: find_adapter(name).prepare(given, name)
        for name, given in shares(names, arguments).items()
    }


def prepare_runnable(
    names: Sequence[str], arguments: str | Mapping[str, Any]
) -> tuple[dict[str, SpeculativeLM], dict[str, str]]:
    """As `prepare_adapters`, but names may be groups: `native`, `tss` or `all` adapters.

    The second part says by name what an adapter of a group lacks, such as one that needs a draft
    model. Raises AdapterError where an adapter that was named itself, that was given an argument
    of its own (`ADAPTER.name=value`) or that is the first of all cannot run, and for any bad
    argument.
    """
    wanted = members(names)
    return prepare_each(wanted, arguments, {*names, *wanted[:1]})


def prepare_each(
    names: Sequence[str], arguments: str | Mapping[str, Any], required: Collection[str]
) -> tuple[dict[str, SpeculativeLM], dict[str, str]]:
    """As `prepare_adapters`, without those that lack something; the second part says what, by name.

    Raises AdapterError where one of `required` lacks something or one that was given an argument
    of its own (`ADAPTER.name=value`), and for any bad argument.
    """
    prepared: dict[str, SpeculativeLM] = {}
    left_out: dict[str, str] = {}
    named = split_arguments(arguments) if isinstance(arguments, str) else arguments
    meant = {*required, *(name.partition(".")[0] for name in named)}
    for name, given in shares(names, named).items():
        try:
            prepared[name] = find_adapter(name).prepare(given, name)
        except IncompleteError as error:
            if name in meant:
                raise
            left_out[name] = str(error)
    return prepared, left_out


def members(names: Sequence[str]) -> list[str]:
    """The names with groups (`native`, `tss`, `all`) opened, each adapter once."""
    return list(dict.fromkeys(each for name in names for each in _members(name)))


def _members(name: str) -> list[str]:
    """The adapters of a group; a name that is no group stands for itself."""
    if name == "all":
        return list(ADAPTERS)
    if name in ("native", "tss"):
        return [key for key, adapter in ADAPTERS.items() if adapter.sparse == (name == "tss")]
    return [name]


def shares(names: Sequence[str], arguments: str | Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Those of `arguments` (as text or by name) that each adapter takes.

    `ADAPTER.name=value` goes to that adapter alone; one that no adapter takes goes to the first,
    which refuses it. Raises AdapterError for a name that is none of our adapters and for text
    that is no list of arguments.
    """
    if not names:
        raise AdapterError(f"no adapter was named; there is {', '.join(ADAPTERS)}")
    allowed = {name: find_adapter(name).allowed_arguments() for name in names}
    named = split_arguments(arguments) if isinstance(arguments, str) else arguments
    return share_out(named, allowed)


def load_adapters(adapters: Mapping[str, SpeculativeLM]) -> None:
    """Load prepared adapters; they share one copy of the target."""
    shared: LoadedModel | None = None
    for adapter in adapters.values():
        adapter.load(shared)
        shared = adapter.loaded


@dataclass(frozen=True)
class OpenTasks:
    """Generation tasks with their groups, as lm-eval loaded them from `names`.

    Stands in for a TaskManager where one is asked for: `load` gives what is loaded already.
    """

    names: tuple[str, ...]
    manager: TaskManager
    loaded: Any

    def load(self, names: Sequence[str]) -> Any:
        """Tasks and groups. Raises ValueError unless `names` are those that were loaded."""
        if tuple(names) != self.names:
            raise ValueError(f"{', '.join(self.names)} are loaded, not {', '.join(names)}")
        return self.loaded

    @property
    def task_index(self) -> Any:
        """What lm-eval knows of each task's file."""
        return self.manager.task_index

    def requests(
        self, limit: int | None, gen_kwargs: Mapping[str, Any] | None = None
    ) -> list[TaskRequests]:
        """Each task with its first `limit` requests; `gen_kwargs` win over the task's own."""
        found = []
        for name, task in self.loaded["tasks"].items():
            if gen_kwargs:
                task.set_config(key="generation_kwargs", value=dict(gen_kwargs), update=True)
            task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)
            task.build_all_requests(limit=limit)
            found.append(TaskRequests(name, task, list(task.instances)))
        return found


def open_tasks(
    names: Sequence[str],
    metadata: Mapping[str, Any] | None = None,
    include_path: str | None = None,
) -> OpenTasks:
    """Generation tasks by name; groups are opened. `include_path` is a folder of more tasks.

    Raises ValueError for any other task and for a folder that does not exist.
    """
    if not names:
        raise ValueError("no task was named; `lm_eval ls tasks` lists them")
    if include_path is not None and not Path(include_path).is_dir():
        raise ValueError(f"--include_path {include_path} is no folder; name one with task files")
    folders = [str(task_directory()), *([] if include_path is None else [include_path])]
    manager = TaskManager(include_path=folders, metadata=dict(metadata or {}))
    unknown = sorted(set(names) - set(manager.all_tasks))
    if unknown:
        raise ValueError(f"no task {', '.join(unknown)}; `lm_eval ls tasks` lists them")
    loaded = manager.load(list(names))
    for name, task in loaded["tasks"].items():
        if task.OUTPUT_TYPE != GENERATION:
            raise ValueError(f"{name} asks for no generated answer; it has nothing to time")
    return OpenTasks(tuple(names), manager, loaded)


def load_tasks(
    names: Sequence[str],
    limit: int | None,
    metadata: Mapping[str, Any] | None = None,
    include_path: str | None = None,
) -> list[TaskRequests]:
    """The tasks of `open_tasks`, each with its first `limit` requests."""
    return open_tasks(names, metadata, include_path).requests(limit)


def add_include_path(parser: argparse.ArgumentParser) -> None:
    """The argument of lm-eval for tasks of one's own."""
    parser.add_argument("--include_path", metavar="DIR", help="folder of more task YAML files")


def run_interleaved(
    adapters: Mapping[str, SpeculativeLM],
    requests: Sequence[Instance],
    label: str,
    beside: Mapping[str, Callable[[Job], GeneratedText]] | None = None,
) -> dict[str, list[GeneratedText]]:
    """The answers of every adapter, one run each, interleaved as in `interleave`.

    `beside` are other methods to measure; they get the jobs of the first adapter.
    """
    jobs = {name: adapter.jobs(requests) for name, adapter in adapters.items()}
    return _by_method(answer_rounds(adapters, jobs, label, beside))


def answer_rounds(
    adapters: Mapping[str, SpeculativeLM],
    jobs: Mapping[str, Sequence[Job]],
    label: str,
    beside: Mapping[str, Callable[[Job], Any]] | None = None,
    turns: Sequence[int] | None = None,
) -> Iterator[dict[str, Any]]:
    """One run of every adapter over its own `jobs`, request by request as in `rounds`.

    `beside` are other methods; they get the jobs of the first adapter. One that has an
    adapter's name answers in its place.
    """
    first = next(iter(jobs.values()))
    others = dict(beside or {})
    methods = {name: _by_place(method, jobs.get(name, first)) for name, method in others.items()}
    for name, adapter in adapters.items():
        methods.setdefault(name, _by_place(adapter.answer, jobs[name]))

    def begin() -> None:
        for name, adapter in adapters.items():
            adapter.begin_run(jobs[name])

    yield from rounds(methods, range(len(first)), label, begin, turns)
    for adapter in adapters.values():
        adapter.end_run()


def interleave(
    methods: Mapping[str, Callable[[T], R]],
    requests: Sequence[T],
    label: str,
    begin: Callable[[], None] = lambda: None,
) -> dict[str, list[R]]:
    """Every request by every method, see `rounds`."""
    return _by_method(rounds(methods, requests, label, begin))


def rounds(
    methods: Mapping[str, Callable[[T], R]],
    requests: Sequence[T],
    label: str,
    begin: Callable[[], None] = lambda: None,
    turns: Sequence[int] | None = None,
) -> Iterator[dict[str, R]]:
    """Each request's answers by method, the order rotating by request.

    Slow drifts of the machine hit all methods alike. Before, each method answers the first
    request as a warm-up that nobody records; then `begin` clears what the warm-up left behind.
    `turns` numbers the requests for the rotation, 0, 1, 2 … where it is not given.
    """
    order = list(methods)
    for name in order:
        methods[name](requests[0])
    begin()
    with tqdm(total=len(requests) * len(order), desc=label) as bar:
        for turn, request in zip(turns or range(len(requests)), requests, strict=True):
            start = turn % len(order)
            answers = {}
            for name in (*order[start:], *order[:start]):
                answers[name] = methods[name](request)
                bar.update()
            yield {name: answers[name] for name in order}


def _by_method(answers: Iterator[dict[str, R]]) -> dict[str, list[R]]:
    """One list a method from one dict a request."""
    found: dict[str, list[R]] = defaultdict(list)
    for each in answers:
        for name, answer in each.items():
            found[name].append(answer)
    return dict(found)


def _by_place(method: Callable[[Job], R], jobs: Sequence[Job]) -> Callable[[int], R]:
    return lambda place: method(jobs[place])
