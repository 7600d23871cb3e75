"""The Ray executor: what it gives, spreads, does again and refuses.

Most of it runs on actors of this process; the last tests on two real ones.

May import: pytest, lm_eval, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lm_eval.tasks import TaskManager

from model_adapters.base import SpeculativeLM
from tests.maps import without_seconds
from tests.model_adapters.conftest import LAYERS, TEMPLATE, make_request, make_row, save_model
from tss_bench import executors, harness, ray_executor, ray_worker, search_command, search_plan
from tss_bench.calibration import SequentialEvaluator
from tss_bench.domains import DomainMap
from tss_bench.harness import TaskRequests, load_adapters, prepare_adapters
from tss_bench.ray_executor import (
    RayExecutor,
    RayExecutorError,
    RayPool,
    RaySettings,
    _ActorLostError,
    cut,
)
from tss_bench.ray_worker import Recipe, Worker
from tss_bench.search import Evaluation, Fingerprint, Job, Limits
from tss_bench.search_plan import fingerprint
from tss_bench.types import SkipSet

TASK = "specbench_qa"
BOTH = frozenset({"accept", "metric"})
COST = frozenset({"cost"})
DENSE = SkipSet.dense(LAYERS)
SINGLES = [SkipSet.of([layer], LAYERS) for layer in range(LAYERS)]
SETTING = "dtype=float32,device=cpu,max_length=128"

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason='Ray is not installed: pip install ".[ray]"'
)


# A task of three rows, made anew wherever it is needed.


def claimed(fault: Path) -> str | None:
    """What the file holds, for the first of several processes that ask; None for the others."""
    own = fault.with_name(f"{fault.name}-{os.getpid()}")
    try:
        fault.rename(own)
    except FileNotFoundError:
        return None
    return own.read_text("utf-8")


def rows(fault: Path | None = None) -> TaskRequests:
    """Rows a, b and c. A file at `fault` holds what scoring row b does next: `die` or `raise`."""

    def process_results(doc: dict[str, Any], found: list[str]) -> dict[str, float]:
        what = claimed(fault) if doc["id"] == "b" and fault is not None else None
        if what == "die":
            os._exit(1)
        if what is not None:
            raise ValueError(f"row b cannot be scored: {what}")
        return {"f1": 0.1 + len(found[0]) % 10 / 20}

    docs = [
        {**make_row(name, *turns, domain="qa"), "references": ["Yes"], "content_hash": name}
        for name, *turns in (("a", "Who?"), ("b", "First?", "And then?"), ("c", "When?"))
    ]
    metadata = {"data": {}, "split": "calibration"}
    task = SimpleNamespace(
        process_results=process_results,
        aggregation=lambda: {"accept_len": sum, "f1": sum},
        config=SimpleNamespace(metadata=metadata, task_alias=None),
        VERSION=1,
    )
    requests = [make_request(doc, task=TASK, doc_id=place) for place, doc in enumerate(docs)]
    return TaskRequests(TASK, cast(Any, task), requests)


@dataclass(frozen=True)
class RowsRecipe(Recipe):
    """The adapter of a recipe with the rows of this file: scanning lm-eval's takes seconds."""

    fault: Path | None = None

    def prepare(self) -> tuple[SpeculativeLM, list[TaskRequests]]:
        adapter = prepare_adapters([self.model], self.arguments)[self.model]
        return adapter, [rows(self.fault)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATE)


@pytest.fixture(scope="module")
def fault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fault") / "fault"


@pytest.fixture(scope="module")
def recipe(model: Path, fault: Path) -> RowsRecipe:
    arguments = {"pretrained": str(model), "dtype": "float32", "device": "cpu", "max_length": 128}
    return RowsRecipe(
        "tss_token_recycling", {**arguments, "skip_layers": "dense"}, (TASK,), None, fault=fault
    )


@pytest.fixture(scope="module")
def serial(recipe: RowsRecipe) -> SequentialEvaluator:
    adapter, (task,) = recipe.prepare()
    load_adapters({recipe.model: adapter})
    return SequentialEvaluator(adapter, task)


@pytest.fixture(scope="module")
def prints(recipe: RowsRecipe) -> dict[str, Fingerprint]:
    adapter, (task,) = recipe.prepare()
    return {TASK: fingerprint(adapter, task, "batched")}


# Actors that live in this process.


@dataclass
class Actor:
    """Gives accept pairs or costs at once; dies where `dies` says so, before that evaluation."""

    name: str
    dies: list[tuple[SkipSet, int]]
    asked: list[list[Job]] = field(default_factory=list)
    stream: Iterator[Evaluation] = field(default_factory=lambda: iter(()))

    @property
    def begin(self) -> Any:
        return SimpleNamespace(remote=self._begin)

    @property
    def take(self) -> Any:
        return SimpleNamespace(remote=self._take)

    @property
    def limits(self) -> Any:
        return SimpleNamespace(remote=self._limits)

    def _begin(self, task: str, jobs: Sequence[Job]) -> Any:
        assert task == TASK
        self.asked.append(list(jobs))
        self.stream = self._work(jobs)
        return self._take()

    def _take(self) -> Any:
        try:
            value = next(self.stream, None)
        except _ActorLostError as error:
            return Answer(error)
        return Answer(value)

    def _limits(self, task: str) -> Any:
        if (DENSE, -1) in self.dies:
            self.dies.remove((DENSE, -1))
            return Answer(_ActorLostError("gone"))
        return Answer(Limits(9, 99))

    def _work(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            for prompt in job.prompts or (0,):
                if (job.skip, prompt) in self.dies:
                    self.dies.remove((job.skip, prompt))
                    raise _ActorLostError("out of memory")
                if job.want == COST:
                    yield Evaluation(job.skip, cost=float(self.name[-1]))
                else:
                    yield Evaluation(job.skip, (prompt,), accept=((3, 2),))


class Answer:
    """What an actor has answered; compared and kept by identity, as Ray's references are."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Pool:
    """The part of a pool that an executor uses; `dies` is shared by all actors ever made."""

    def __init__(self, size: int, dies: Sequence[tuple[SkipSet, int]] = ()) -> None:
        self.dies = list(dies)
        self.made: list[Actor] = []
        self.actors = [self._new() for _ in range(size)]

    def _new(self) -> Actor:
        self.made.append(Actor(f"actor {len(self.made)}", self.dies))
        return self.made[-1]

    def first_ready(self, refs: Sequence[Answer]) -> Answer:
        return refs[0]

    def fetch(self, ref: Answer) -> Any:
        if isinstance(ref.value, Exception):
            raise ref.value
        return ref.value

    def replace(self, actor: Actor) -> Actor:
        new = self._new()
        self.actors[self.actors.index(actor)] = new
        return new


def executor_on(pool: Pool) -> RayExecutor:
    return RayExecutor(cast(RayPool, pool), TASK)


def jobs_of(*sets: SkipSet, prompts: tuple[int, ...] = (0, 1)) -> list[Job]:
    return [Job(skip, frozenset({"accept"}), prompts) for skip in sets]


def pairs(found: Sequence[Evaluation]) -> list[tuple[tuple[int, ...], int]]:
    return sorted((tuple(one.skip), prompt) for one in found for prompt in one.prompts)


@pytest.mark.parametrize(
    ("jobs", "actors", "sizes"),
    [
        (0, 2, []),
        (1, 2, [1]),
        (3, 2, [1, 1, 1]),
        (4, 2, [1, 1, 1, 1]),
        (5, 2, [2, 2, 1]),
        (31, 2, [8, 8, 8, 7]),
        (8, 1, [4, 4]),
    ],
)
def test_jobs_are_cut_into_two_chunks_an_actor(jobs: int, actors: int, sizes: list[int]) -> None:
    listed = [Job(SINGLES[0], BOTH, (place,)) for place in range(jobs)]
    chunks = cut(listed, actors)
    assert [len(chunk) for chunk in chunks] == sizes
    assert [job for chunk in chunks for job in chunk] == listed


def test_every_actor_gets_work_and_every_evaluation_comes_once() -> None:
    pool = Pool(2)
    executor = executor_on(pool)
    found = list(executor(jobs_of(DENSE, *SINGLES)))
    sets: list[tuple[int, ...]] = [(), (0,), (1,), (2,), (3,)]
    assert pairs(found) == [(layers, prompt) for layers in sets for prompt in (0, 1)]
    # Five jobs in chunks of two: the actor that is ready first takes the third.
    assert [[len(jobs) for jobs in actor.asked] for actor in pool.actors] == [[2, 1], [2]]
    assert executor.answered == 10


def test_what_is_there_is_given_before_the_rest_is_done() -> None:
    pool = Pool(1, dies=[(DENSE, 1)])
    stream = executor_on(pool)(jobs_of(DENSE))
    assert next(stream).prompts == (0,)
    assert pool.dies == []
    with pytest.warns(RuntimeWarning, match="an actor died and a new one takes over"):
        assert next(stream).prompts == (1,)


@pytest.mark.filterwarnings("ignore:.*an actor died:RuntimeWarning")
def test_a_dead_actors_rest_goes_to_a_new_one_and_nothing_is_asked_twice() -> None:
    pool = Pool(2, dies=[(SINGLES[0], 1)])
    executor = executor_on(pool)
    found = list(executor(jobs_of(DENSE, *SINGLES)))
    sets: list[tuple[int, ...]] = [(), (0,), (1,), (2,), (3,)]
    assert pairs(found) == [(layers, prompt) for layers in sets for prompt in (0, 1)]
    assert executor.answered == 10
    assert [actor.name for actor in pool.actors] == ["actor 2", "actor 1"]
    asked = [job for jobs in pool.actors[0].asked for job in jobs]
    assert Job(SINGLES[0], frozenset({"accept"}), (1,)) in asked
    assert all(job.skip != DENSE for job in asked)


@pytest.mark.filterwarnings("ignore:.*an actor died:RuntimeWarning")
def test_evaluations_that_kill_every_actor_end_the_search() -> None:
    pool = Pool(2, dies=[(DENSE, 1)] * 3)
    stream = executor_on(pool)(jobs_of(DENSE))
    assert next(stream).prompts == (0,)
    with pytest.raises(RayExecutorError, match="3 actors died, one after the other, on the same"):
        next(stream)
    # Two deaths are survived, and so are deaths on different chunks.
    pool = Pool(1, dies=[(DENSE, 0)] * 2 + [(SINGLES[0], 0)] * 2)
    assert len(list(executor_on(pool)(jobs_of(DENSE, SINGLES[0])))) == 4


@pytest.mark.filterwarnings("ignore:.*an actor died:RuntimeWarning")
def test_costs_are_timed_by_one_actor_while_the_others_rest() -> None:
    sets = [DENSE, *SINGLES]
    timed = [Job(skip, COST, ()) for skip in sets]
    pool = Pool(2)
    found = list(executor_on(pool)([*timed, *jobs_of(SINGLES[0])]))
    assert [one.cost for one in found] == [None, None, 0, 0, 0, 0, 0]
    assert pool.actors[0].asked[-1] == timed
    assert pool.actors[1].asked == []
    # All sets are timed in one process, so a death repeats those that were there.
    pool = Pool(2, dies=[(SINGLES[2], 0)])
    found = list(executor_on(pool)(timed))
    assert [one.skip for one in found] == sets
    assert {one.cost for one in found} == {1}


@pytest.mark.filterwarnings("ignore:.*an actor died:RuntimeWarning")
def test_limits_are_those_of_an_actor_that_lives() -> None:
    assert executor_on(Pool(2, dies=[(DENSE, -1)] * 2)).limits() == Limits(9, 99)
    with pytest.raises(RayExecutorError, match=f"{TASK}: 3 actors died"):
        executor_on(Pool(2, dies=[(DENSE, -1)] * 3)).limits()


# A worker, in this process.


def place(evaluation: Evaluation | None) -> tuple[list[int], tuple[int, ...]]:
    assert evaluation is not None
    return list(evaluation.skip), evaluation.prompts


def test_a_worker_gives_what_the_serial_executor_gives(
    recipe: RowsRecipe, serial: SequentialEvaluator, prints: dict[str, Fingerprint]
) -> None:
    worker = Worker(recipe, prints, 1, str(Path.cwd()))
    assert str(worker.load()) == "float32 on cpu"
    assert worker.limits(TASK) == serial.limits()
    jobs = [Job(SINGLES[1], BOTH, (0, 2)), Job(DENSE, BOTH | {"loss"}, (1,))]
    found = [worker.begin(TASK, jobs), worker.take(), worker.take()]
    expected = list(serial(jobs))
    assert sorted(found, key=place) == sorted(expected, key=place)
    assert worker.take() is None
    # What was begun and left is not gone on with.
    worker.begin(TASK, jobs)
    assert worker.begin(TASK, jobs[1:]) == expected[2]
    assert worker.take() is None
    assert worker.begin(TASK, []) is None


def test_a_worker_keeps_the_evaluator_of_one_task(
    recipe: RowsRecipe, prints: dict[str, Fingerprint], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def make(adapter: SpeculativeLM, task: TaskRequests, name: str) -> Any:
        assert name == "batched"
        made.append(task.name)
        return SimpleNamespace(limits=lambda: Limits())

    monkeypatch.setattr(ray_worker, "make_evaluator", make)
    worker = Worker(recipe, prints, 1, str(Path.cwd()))
    _, tasks = worker._open()
    tasks["other"] = replace(tasks[TASK], name="other")
    for task in (TASK, TASK, "other", TASK):
        worker.limits(task)
    assert made == [TASK, "other", TASK]


def test_other_rows_and_versions_are_refused_by_name_before_loading(
    recipe: RowsRecipe, prints: dict[str, Fingerprint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tss_bench.weights.load_model", lambda *_, **__: pytest.fail("loaded"))
    mine = prints[TASK]
    other = replace(mine, data={**mine.data, "rows": 4}, versions={**mine.versions, "torch": "9"})
    with pytest.raises(ValueError, match="would measure something else of specbench_qa") as refused:
        Worker(recipe, {TASK: other}, 1, str(Path.cwd())).load()
    assert "data.rows is 4 in the search and 3 in the actor" in str(refused.value)
    assert 'versions.torch is "9" in the search and ' in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_recipe_makes_the_rows_of_the_plan(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")
    scanned: list[TaskManager] = []
    folders: list[list[str]] = []

    def manager(**given: Any) -> TaskManager:
        """One for both: to scan all of lm-eval's tasks takes seconds."""
        folders.append(given["include_path"])
        scanned[:] = scanned or [TaskManager(**given)]
        return scanned[0]

    monkeypatch.setattr(harness, "TaskManager", manager)
    plan = search_plan.prepare(arguments(model, tmp_path, "--limit", "2"))
    tasks = str(tmp_path)
    recipe = Recipe(plan.adapter.name, plan.arguments, (TASK,), plan.limit, include_path=tasks)
    adapter, (task,) = recipe.prepare()
    (domain,) = plan.domains
    assert [more for _, *more in folders] == [[], [tasks]]
    assert fingerprint(adapter, task, "batched") == domain.fingerprint
    assert len(task.requests) == 2


# Flags, and joining a Ray that is a stand-in.


def arguments(model: Path, out: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    search_command.add_arguments(parser)
    base = ["--model", "tss_token_recycling", "--model_args", f"pretrained={model},{SETTING}"]
    base += ["--tasks", TASK, "--strategy", "tss_bfs", "--out", str(out / "map.json")]
    return parser.parse_args([*base, *words])


def test_a_worker_reads_relative_paths_as_the_search_does(
    recipe: RowsRecipe,
    prints: dict[str, Fingerprint],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = {**recipe.arguments, "pretrained": model.name}
    worker = Worker(replace(recipe, arguments=arguments), prints, 1, str(model.parent))
    assert worker.load().dtype == "float32"
    monkeypatch.chdir(tmp_path)
    Worker(recipe, prints, 1, str(tmp_path / "not there")).load()
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--actors", "2"), "--actors has a meaning with --executor ray only"),
        (("--ray-address", "auto"), "--ray-address has a meaning with --executor ray only"),
        (("--gpus-per-actor", "0"), "--gpus-per-actor has a meaning with --executor ray only"),
        (("--executor", "ray", "--actors", "0"), "--actors must be at least 1, got 0"),
        (("--executor", "ray", "--cpus-per-actor", "-1"), "--cpus-per-actor must be at least 1"),
        (("--executor", "ray", "--gpus-per-actor", "1.5"), "a share from 0 to 1 or a whole number"),
        (("--executor", "ray", "--gpus-per-actor", "nan"), "a share from 0 to 1 or a whole number"),
        (("--executor", "ray"), 'which is not installed: pip install "tss-bench[ray]"'),
    ],
)
def test_bad_flags_and_a_missing_ray_are_refused_before_anything_is_read(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(search_command, "prepare", lambda args: pytest.fail("a plan was made"))
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        search_command.run(arguments(model, tmp_path, *words))
    assert "\n" not in str(refused.value)


def test_actors_without_a_share_of_a_gpu_are_refused_for_a_gpu() -> None:
    with pytest.raises(ValueError, match=r"give --gpus-per-actor 0\.5"):
        executors._require_gpus("cuda:0", RaySettings())
    executors._require_gpus("cuda", RaySettings(gpus_per_actor=0.5))
    executors._require_gpus("cpu", RaySettings())


class StandIn:
    """A module `ray` that notes how it is started and has the given resources."""

    def __init__(self, fails: Exception | None = None, **resources: float) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.exceptions = SimpleNamespace(RayError=LookupError, RayTaskError=KeyError)
        self.is_initialized: Callable[[], bool] = lambda: False
        self.cluster_resources = lambda: resources
        self.available_resources = lambda: {**resources, "CPU": 1.0}
        self._fails = fails

    def init(self, **given: Any) -> None:
        self.calls.append(("init", given))
        if self._fails is not None:
            raise self._fails

    def shutdown(self) -> None:
        self.calls.append(("shutdown", {}))


def refusal(
    stand_in: StandIn, recipe: Recipe, settings: RaySettings, patch: pytest.MonkeyPatch
) -> str:
    """The one-line message with which entering a pool on this Ray fails."""
    patch.setattr(ray_executor, "require_ray", lambda: stand_in)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    with pytest.raises(ValueError, match=r".") as refused, RayPool(recipe, {}, settings):
        pytest.fail("the pool was entered")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_local_ray_is_small_quiet_and_shut_down(
    recipe: RowsRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = StandIn(CPU=6, GPU=1)
    settings = RaySettings(actors=3, cpus_per_actor=2, gpus_per_actor=0.4)
    with pytest.warns(RuntimeWarning, match="is busy: 1 of 6 CPU are free, and the search waits"):
        told = refusal(ray, recipe, settings, monkeypatch)
    # 0.4 + 0.4 of one GPU leave no place for a third.
    assert told == (
        "3 actors of 0.4 GPU each do not fit: the Ray cluster has 1 GPU; give fewer --actors, or "
        "less --gpus-per-actor"
    )
    (_, given), ended = ray.calls
    assert ended[0] == "shutdown"
    assert (given["address"], given["num_cpus"]) == ("local", 6)
    assert given["include_dashboard"] is False
    assert given["object_store_memory"] <= 2**27


def test_a_cluster_that_is_not_there_or_too_small_is_refused(
    recipe: RowsRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = StandIn(ConnectionError("nobody\nthere"))
    settings = RaySettings(address="auto", actors=4)
    told = refusal(nobody, recipe, settings, monkeypatch)
    assert told.startswith("--ray-address auto: no Ray cluster that this process can join (nobody")
    # Ray would try for minutes to reach a port where nothing listens: it is not asked.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        silent = replace(settings, address=f"127.0.0.1:{free.getsockname()[1]}")
        unasked = StandIn()
        assert "no Ray cluster that this process can join" in refusal(
            unasked, recipe, silent, monkeypatch
        )
        assert unasked.calls == []
        free.listen()
        small = StandIn(CPU=3)
        told = refusal(small, recipe, silent, monkeypatch)
    assert told.startswith("4 actors of 1 CPU each do not fit: the Ray cluster has 3 CPU")
    assert small.calls[0][1]["address"] == silent.address
    assert "num_cpus" not in small.calls[0][1]
    assert small.calls[-1][0] == "shutdown"
    # A Ray that somebody else has joined is left running.
    theirs = StandIn(CPU=3)
    theirs.is_initialized = lambda: True
    refusal(theirs, recipe, settings, monkeypatch)
    assert theirs.calls == []


def test_folders_travel_to_the_actors_by_their_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini").mkdir()
    monkeypatch.setenv("TSS_BENCH_DATA", "data")
    monkeypatch.setenv("TSS_BENCH_CACHE", "~/cache")
    environment = {"TSS_BENCH_DATA": str(tmp_path / "data"), "TSS_BENCH_CACHE": "~/cache"}
    assert ray_worker.environment() == environment
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")
    monkeypatch.delenv("TSS_BENCH_CACHE")
    assert ray_worker.environment() == {"TSS_BENCH_DATA": "mini"}


# Two real actors.


@pytest.fixture(scope="module")
def pool(recipe: RowsRecipe, prints: dict[str, Fingerprint]) -> Iterator[RayPool]:
    with RayPool(recipe, prints, RaySettings(actors=2)) as pool:
        yield pool


def in_order(found: Sequence[Evaluation]) -> list[Evaluation]:
    return sorted(found, key=lambda one: (tuple(one.skip), one.prompts))


@needs_ray
@pytest.mark.slow
def test_two_actors_give_what_serial_gives_though_one_dies(
    pool: RayPool, serial: SequentialEvaluator, fault: Path
) -> None:
    executor = pool.executor(TASK)
    assert str(pool.place) == "float32 on cpu"
    assert executor.limits() == serial.limits()
    jobs = [Job(skip, BOTH | {"loss"}, (0, 1, 2)) for skip in [DENSE, *SINGLES]]
    expected = in_order(list(serial(jobs)))
    assert in_order(list(executor(jobs))) == expected
    assert executor.answered == 2 * 15
    before = list(pool.actors)
    fault.write_text("die", "utf-8")
    with pytest.warns(RuntimeWarning, match="an actor died and a new one takes over"):
        found = list(executor(jobs))
    assert in_order(found) == expected
    assert len([actor for actor in pool.actors if actor not in before]) == 1


@needs_ray
@pytest.mark.slow
def test_a_value_error_in_an_actor_is_that_value_error_here(pool: RayPool, fault: Path) -> None:
    executor = pool.executor(TASK)
    fault.write_text("raise", "utf-8")
    with pytest.raises(ValueError, match=r"^row b cannot be scored: raise$") as raised:
        list(executor([Job(DENSE, BOTH, (0, 1, 2))]))
    assert type(raised.value) is ValueError
    # The actor lives on.
    assert len(list(executor([Job(DENSE, BOTH, (0, 1, 2))]))) == 3


def evaluations(ledger: Path) -> list[str]:
    """The evaluations in the lines of a ledger, sorted, without what they took."""
    records = [json.loads(line) for line in ledger.read_text("utf-8").splitlines()]
    took = ("seconds", "batch")
    return sorted(
        json.dumps({key: value for key, value in record.items() if key not in took})
        for record in records
        if "skip" in record
    )


@needs_ray
@pytest.mark.slow
def test_a_search_over_actors_writes_what_a_serial_one_writes(
    pool: RayPool,
    prints: dict[str, Fingerprint],
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[Any] = []

    def same_pool(*given: Any) -> Any:
        asked.extend(given)
        return nullcontext(pool)

    monkeypatch.setattr(search_plan, "load_tasks", lambda *_: [rows()])
    monkeypatch.setattr(executors, "RayPool", same_pool)
    words = ("--depth", "2", "--tolerance", "1", "--tau", "1")
    search_command.run(arguments(model, tmp_path / "serial", *words))
    with monkeypatch.context() as patch:
        patch.setattr("tss_bench.weights.load_model", lambda *_, **__: pytest.fail("loaded here"))
        ray_words = ("--executor", "ray", "--actors", "3", "--gpus-per-actor", "0.5")
        ray_words += ("--include_path", str(tmp_path))
        search_command.run(arguments(model, tmp_path / "ray", *words, *ray_words))
    assert "; float32 on cpu, 3 Ray actors; scope verify" in capsys.readouterr().out
    asked_recipe, asked_prints, settings = asked
    assert asked_recipe.tasks == (TASK,)
    assert asked_recipe.include_path == str(tmp_path)
    assert asked_recipe.arguments["pretrained"] == str(model)
    assert (asked_prints, settings) == (prints, RaySettings(actors=3, gpus_per_actor=0.5))
    found = [DomainMap.load(tmp_path / name / "map.json") for name in ("serial", "ray")]
    assert without_seconds(found[0]) == without_seconds(found[1])
    machine = found[1].provenance["search"]["qa"]["machine"]
    assert re.fullmatch(r"3 Ray actors, each on .+, 1 threads", machine)
    assert len(found[1].domains["qa"].skip) == 2
    ledgers = [tmp_path / name / "map.ledger" / f"{TASK}.jsonl" for name in ("serial", "ray")]
    assert [evaluations(path) for path in ledgers] == [evaluations(ledgers[0])] * 2
    assert len(evaluations(ledgers[1])) == 11 * 3
