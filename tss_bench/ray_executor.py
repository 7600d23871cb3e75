"""Spreads the evaluations of a search over Ray actors, each with a model of its own.

The process of the search loads no weights. Ray is imported when a pool is made, never before.

May import: ray, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import logging
import math
import os
import socket
import textwrap
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tss_bench.ray_worker import Place, Recipe, Worker, environment
from tss_bench.search import Evaluation, EvaluationTable, Fingerprint, Job, Limits

MAX_DEATHS = 3
"""So many actors may die on the same evaluations."""

OBJECT_STORE_BYTES = 100 * 2**20
"""Shared memory of a local Ray: evaluations are a few numbers each."""

_CHUNKS_PER_ACTOR = 2


class RayExecutorError(RuntimeError):
    """Actors died where new ones did not help; one line, with the mend."""


class _ActorLostError(Exception):
    """The actor, its machine or the way to it is gone; what it gave before is valid."""


@dataclass(frozen=True)
class RaySettings:
    """How many actors, and what each of them reserves; `address` None: a Ray of our own.

    Raises ValueError for an impossible number.
    """

    actors: int = 2
    address: str | None = None
    cpus_per_actor: int = 1
    gpus_per_actor: float = 0.0

    def __post_init__(self) -> None:
        for flag in ("actors", "cpus_per_actor"):
            value = getattr(self, flag)
            if value < 1:
                raise ValueError(f"--{flag.replace('_', '-')} must be at least 1, got {value}")
        if self.address is not None and not self.address.strip():
            raise ValueError("--ray-address is empty; give HOST:PORT, or leave it out")
        gpus = self.gpus_per_actor
        if not 0 <= gpus < math.inf or (gpus > 1 and gpus != int(gpus)):
            raise ValueError(
                f"--gpus-per-actor must be a share from 0 to 1 or a whole number, got {gpus}"
            )


def require_ray() -> Any:
    """The module `ray`. Raises ValueError where it is not installed."""
    try:
        import ray
    except ImportError:
        raise ValueError(
            '--executor ray needs Ray, which is not installed: pip install "tss-bench[ray]"'
        ) from None
    return ray


class RayPool:
    """The actors of one search; use it in a `with`, which starts them and stops them.

    A Ray that this process is connected to already is used and left as it is; else the one at
    `settings.address` is joined, or a local one started and shut down at the end. `place` says what
    the actors decode with, `machines` on which devices. Entering raises ValueError: no Ray, no
    cluster there, a cluster too small, an actor whose adapter or rows are not those of
    `fingerprints` (by task name), or whatever loading raises.
    """

    place: Place
    machines: tuple[str, ...]

    def __init__(
        self, recipe: Recipe, fingerprints: Mapping[str, Fingerprint], settings: RaySettings
    ) -> None:
        self._recipe, self._fingerprints, self._settings = recipe, fingerprints, settings
        self._ray = require_ray()
        self._connected = False
        self.actors: list[Any] = []

    def __enter__(self) -> Self:
        try:
            if not self._ray.is_initialized():
                self._connect()
                self._connected = True
            self._require_room()
            self.actors = [self._new_actor() for _ in range(self._settings.actors)]
            # All load at once; the first one that cannot ends the start.
            places = [self.fetch(ref) for ref in [actor.load.remote() for actor in self.actors]]
            self.place = places[0]
            self.machines = tuple(sorted({place.machine for place in places}))
        except _ActorLostError as error:
            self.close()
            raise RayExecutorError(
                f"an actor died while it was loading ({error}); take fewer --actors, or more memory"
            ) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the actors, and Ray where this pool has started or joined it."""
        for actor in self.actors:
            self._stop(actor)
        self.actors = []
        if self._connected:
            self._connected = False
            self._ray.shutdown()

    def executor(self, task: str) -> RayExecutor:
        """The executor of one task of the recipe."""
        return RayExecutor(self, task)

    def first_ready(self, refs: Sequence[Any]) -> Any:
        """The first of these answers that is there."""
        (ready, *_), _ = self._ray.wait(refs, num_returns=1)
        return ready

    def fetch(self, ref: Any) -> Any:
        """An answer. Raises what the actor raised, _ActorLostError if it is no longer there."""
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise _ActorLostError(textwrap.shorten(last[0], 200, placeholder=" …")) from error

    def replace(self, actor: Any) -> Any:
        """A new actor in the place of a lost one; it loads when it is first asked."""
        self._stop(actor)
        new = self._new_actor()
        self.actors[self.actors.index(actor)] = new
        return new

    def _stop(self, actor: Any) -> None:
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor, no_restart=True)

    def _new_actor(self) -> Any:
        settings = self._settings
        remote = self._ray.remote(Worker).options(
            num_cpus=settings.cpus_per_actor,
            num_gpus=settings.gpus_per_actor,
            max_restarts=0,
            runtime_env={"env_vars": environment()},
        )
        threads, folder = settings.cpus_per_actor, str(Path.cwd())
        return remote.remote(self._recipe, self._fingerprints, threads, folder)

    def _connect(self) -> None:
        settings = self._settings
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        if settings.address is None:
            self._ray.init(
                address="local",
                num_cpus=settings.actors * settings.cpus_per_actor,
                include_dashboard=False,
                object_store_memory=OBJECT_STORE_BYTES,
                **quiet,
            )
            return
        try:
            _require_listener(settings.address)
            self._ray.init(address=settings.address, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            raise ValueError(
                f"--ray-address {settings.address}: no Ray cluster that this process can join "
                f"({textwrap.shorten(str(error), 200, placeholder=' …')}); give the address that "
                f"`ray start --head` printed, from a machine with the same Python, Ray and, where "
                f"the cluster asks for a token, RAY_AUTH_MODE=token"
            ) from error

    def _require_room(self) -> None:
        """Raises ValueError for more actors than the cluster can ever hold; warns if it is busy."""
        settings = self._settings
        there, free = self._ray.cluster_resources(), self._ray.available_resources()
        needs = {"CPU": settings.cpus_per_actor, "GPU": settings.gpus_per_actor}
        for name, each in needs.items():
            held = there.get(name, 0)
            if each and _places(held, each) < settings.actors:
                raise ValueError(
                    f"{settings.actors} actors of {each:g} {name} each do not fit: the Ray "
                    f"cluster has {held:g} {name}; give fewer --actors, or less "
                    f"--{name.lower()}s-per-actor"
                )
            if each and free.get(name, 0) / each + 1e-9 < settings.actors:
                warnings.warn(
                    f"the Ray cluster is busy: {free.get(name, 0):g} of {held:g} {name} are free, "
                    f"and the search waits until {settings.actors} actors of {each:g} find room",
                    RuntimeWarning,
                    stacklevel=2,
                )


class RayExecutor:
    """Does the jobs of one task on the actors of a pool; the seam of `SequentialEvaluator`.

    Values are those of the in-process evaluator, in the order in which they come. Jobs that want a
    cost all go to one actor while the others rest. `answered` counts answers and losses so far.
    Raises RayExecutorError where actors keep dying, and whatever an actor raises.
    """

    def __init__(self, pool: RayPool, task: str) -> None:
        self._pool, self._task = pool, task
        self.answered = 0

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        timed = [job for job in jobs if "cost" in job.want]
        rest = [job for job in jobs if "cost" not in job.want]
        yield from self._spread(cut(rest, len(self._pool.actors)))
        # An actor that dies is followed by one that times all sets anew: the last value counts.
        costs = {one.skip: one for one in self._spread([timed] if timed else [])}
        yield from costs.values()

    def limits(self) -> Limits:
        """What no answer can exceed; asked of an actor, since the drafter must be loaded."""
        deaths = _Deaths(self._task)
        while True:
            (actor, *_) = self._pool.actors
            try:
                limits: Limits = self._pool.fetch(actor.limits.remote(self._task))
            except _ActorLostError as error:
                deaths.add(error)
                self._pool.replace(actor)
            else:
                return limits

    def _spread(self, chunks: Sequence[Sequence[Job]]) -> Iterator[Evaluation]:
        """Give every idle actor a chunk until all is done; a lost one's rest goes to a new one."""
        queue = deque(_Chunk(tuple(jobs), _Deaths(self._task)) for jobs in chunks)
        idle = deque(self._pool.actors)
        running: dict[Any, tuple[Any, _Chunk]] = {}
        while queue or running:
            while queue and idle:
                actor, chunk = idle.popleft(), queue.popleft()
                running[actor.begin.remote(self._task, chunk.left())] = actor, chunk
            ready = self._pool.first_ready(list(running))
            actor, chunk = running.pop(ready)
            try:
                evaluation = self._pool.fetch(ready)
            except _ActorLostError as error:
                chunk.deaths.add(error)
                idle.append(self._pool.replace(actor))
                if chunk.left():
                    queue.appendleft(chunk)
                continue
            if evaluation is None:
                idle.append(actor)
                continue
            running[actor.take.remote()] = actor, chunk
            chunk.table.add(evaluation)
            self.answered += _answers(evaluation)
            yield evaluation


def cut(jobs: Sequence[Job], actors: int) -> list[Sequence[Job]]:
    """The jobs in chunks, two an actor where there are enough: large, and none idle for long."""
    size = max(1, math.ceil(len(jobs) / (actors * _CHUNKS_PER_ACTOR)))
    return [jobs[start : start + size] for start in range(0, len(jobs), size)]


class _Deaths:
    """Counts the actors that one piece of work has lost."""

    def __init__(self, task: str) -> None:
        self._task, self._count = task, 0

    def add(self, error: _ActorLostError) -> None:
        """Warn of one more. Raises RayExecutorError where it was one too many."""
        self._count += 1
        if self._count == MAX_DEATHS:
            raise RayExecutorError(
                f"{self._task}: {MAX_DEATHS} actors died, one after the other, on the same "
                f"evaluations, the last one so: {error}. What was measured is in the ledger; take "
                f"fewer --actors, or more memory, and start the same command again"
            ) from error
        warnings.warn(
            f"{self._task}: an actor died and a new one takes over ({error})",
            RuntimeWarning,
            stacklevel=2,
        )


@dataclass
class _Chunk:
    """Jobs that one actor does at a time, and what has come back of them."""

    jobs: tuple[Job, ...]
    deaths: _Deaths
    table: EvaluationTable = field(default_factory=EvaluationTable)

    def left(self) -> tuple[Job, ...]:
        """What nobody has answered; costs stay, since all are timed interleaved or none."""
        found: list[Job] = []
        for job in self.jobs:
            timed = "cost" in job.want
            found += [job] if timed else self.table.missing(job.skip, job.want, job.prompts)
        return tuple(found)


def _answers(evaluation: Evaluation) -> int:
    """Answers and losses that an evaluation holds."""
    kinds = (evaluation.accept is not None) + (evaluation.loss is not None)
    return kinds * len(evaluation.prompts)


def _require_listener(address: str) -> None:
    """Raises OSError where nothing listens at HOST:PORT; Ray itself tries for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _places(held: float, each: float) -> int:
    """How many shares of size `each` fit; a share below one lies on one device."""
    return int(held) * int(1 / each) if each < 1 else int(held // each)
