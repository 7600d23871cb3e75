"""The seconds of a search, by a clock that only the executor moves.

May import: pytest and tss_bench.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.search.surface import Killed, Recorder, Surface, nothing
from tss_bench.search import (
    Budget,
    Evaluation,
    Fingerprint,
    Job,
    Ledger,
    Query,
    Rules,
    Score,
    Search,
    SearchResult,
    SearchSpace,
    Spent,
    get,
    run_search,
)
from tss_bench.search.seconds import SecondsTable, Taken
from tss_bench.types import SkipSet

SURFACE = Surface(5, num_layers=6, num_prompts=4)
SPACE = SURFACE.space()
DENSE, ONE, TWO, THREE = SPACE.dense, SPACE.skip([1]), SPACE.skip([2]), SPACE.skip([3])
FINGERPRINT = Fingerprint("model", "drafter", "data", "strict", "verify", "1")


class Slow:
    """An executor on a clock of its own that takes `takes[skip]` seconds a job."""

    def __init__(self, takes: Mapping[SkipSet, float], dies_in: SkipSet | None = None) -> None:
        self.now = 1000.0
        self._takes, self._dies_in = takes, dies_in

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Evaluation]:
        for job in jobs:
            self.now += self._takes[job.skip]
            if job.skip == self._dies_in:
                raise Killed
            yield SURFACE.evaluate(job)

    def clock(self) -> float:
        return self.now


def asking(*queries: Query) -> Any:
    """A strategy that asks these and keeps dense."""

    def strategy(space: SearchSpace, rules: Rules) -> Search:
        for query in queries:
            assert (yield query)
        return SearchResult(Score(space.dense), reason="test")

    return strategy


def opened(path: Path) -> Ledger:
    return Ledger(path, FINGERPRINT, SURFACE.num_layers)


def spent(
    slow: Slow, *sets: SkipSet, ledger: Ledger | None = None, **settings: Any
) -> Spent | None:
    """What a search takes that asks for these sets at once."""
    given = {"rules": Rules(), "clock": slow.clock, "ledger": ledger, **settings}
    return run_search(asking(Query(sets)), SPACE, executor=slow, **given).spent


def test_only_the_time_of_the_executor_counts() -> None:
    slow = Slow({DENSE: 2.0, ONE: 6.0})

    def progress(_: object) -> None:
        slow.now += 100.0

    assert spent(slow, DENSE, ONE, progress=progress, machine="cpu") == Spent(8.0, ("cpu",))


def test_an_executor_that_gives_everything_at_the_end_is_timed_as_well() -> None:
    slow = Slow({DENSE: 2.0, ONE: 6.0})

    def eager(jobs: Sequence[Job]) -> Iterable[Evaluation]:
        return list(slow(jobs))

    result = run_search(asking(Query([ONE])), SPACE, Rules(), eager, clock=slow.clock)
    assert result.spent == Spent(8.0)


def test_strategies_that_share_a_ledger_each_have_what_they_would_have_taken_alone(
    tmp_path: Path,
) -> None:
    with opened(tmp_path / "ledger.jsonl") as ledger:
        # 2 + 6 + 1 seconds for 3 sets of 4 answers: 0.75 an answer, 3 a set.
        first = spent(Slow({DENSE: 2.0, ONE: 6.0, TWO: 1.0}), DENSE, ONE, TWO, ledger=ledger)
        again = spent(Slow({}), DENSE, ONE, ledger=ledger)
        more = spent(Slow({THREE: 5.0}), DENSE, TWO, THREE, ledger=ledger)
    assert first == Spent(9.0)
    assert again == Spent(6.0)
    assert more == Spent(3.0 + 3.0 + 5.0)
    with opened(tmp_path / "ledger.jsonl") as ledger:
        assert spent(Slow({}), DENSE, ONE, TWO, THREE, ledger=ledger) == Spent(14.0)


def test_a_loss_is_an_answer_of_its_own() -> None:
    slow = Slow({DENSE: 3.0})
    strategy = asking(Query([DENSE], {"loss"}))
    # The losses take 3 seconds, and the answers that the result is completed with as many.
    assert run_search(strategy, SPACE, Rules(), slow, clock=slow.clock).spent == Spent(6.0)


def test_timed_costs_are_those_of_this_run(tmp_path: Path) -> None:
    with opened(tmp_path / "ledger.jsonl") as ledger:
        # The answers of both, then the costs of both, which the second run times alone.
        for slow, seconds in ((Slow({DENSE: 2.0, ONE: 6.0}), 16), (Slow({DENSE: 1, ONE: 4}), 13)):
            query = Query([DENSE, ONE], {"accept", "metric", "cost"})
            found = run_search(
                asking(query),
                SPACE,
                Rules(cost="measured"),
                slow,
                ledger=ledger,
                clock=slow.clock,
                machine="cpu",
            )
            assert found.spent == Spent(seconds, ("cpu",))


def test_a_resumed_search_has_the_seconds_of_both_runs_and_names_both_machines(
    tmp_path: Path,
) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger, pytest.raises(Killed):
        # What ONE took is lost with it.
        spent(Slow({DENSE: 2.0, ONE: 30.0}, ONE), DENSE, ONE, ledger=ledger, machine="a")
    with opened(path) as ledger:
        resumed = spent(Slow({ONE: 5.0}), DENSE, ONE, ledger=ledger, machine="b")
        assert resumed == Spent(7.0, ("a", "b"))
    with opened(path) as ledger:
        assert spent(Slow({}), DENSE, ledger=ledger, machine="c") == Spent(2.0, ("a",))
        assert spent(Slow({}), DENSE, ONE, ledger=ledger, machine="c") == resumed


def test_a_torn_line_takes_its_seconds_with_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        assert spent(Slow({DENSE: 2.0, ONE: 6.0}), DENSE, ONE, ledger=ledger) == Spent(8.0)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.warns(UserWarning, match="its last line is cut off"):
        ledger = opened(path)
    with ledger:
        assert spent(Slow({ONE: 10.0}), DENSE, ONE, ledger=ledger) == Spent(12.0)


def test_an_old_ledger_is_read_and_its_seconds_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        spent(Slow({DENSE: 2.0, ONE: 6.0}), DENSE, ONE, ledger=ledger)
    old = []
    for line in path.read_text("utf-8").splitlines():
        record = json.loads(line)
        old.append({key: record[key] for key in record if key not in ("seconds", "batch")})
        old[-1].get("note", {}).pop("machine", None)
    path.write_text("".join(json.dumps(record) + "\n" for record in old), "utf-8")
    with opened(path) as ledger:
        assert spent(Slow({}), DENSE, ONE, ledger=ledger) is None
        assert spent(Slow({TWO: 1.0}), DENSE, TWO, ledger=ledger) is None


@pytest.mark.parametrize("name", ["tss_bfs", "tss_beam", "tss_race", "sleb", "random"])
def test_a_search_alone_takes_what_its_executor_took(name: str, tmp_path: Path) -> None:
    space = SURFACE.space(depth=2, budget=Budget(10**6))
    now = [0.0]
    recorder = Recorder(SURFACE)

    def executor(jobs: Sequence[Job]) -> Iterator[Evaluation]:
        for place, evaluation in enumerate(recorder(jobs)):
            now[0] += 0.5 + place
            yield evaluation

    with opened(tmp_path / "ledger.jsonl") as ledger:
        found = run_search(
            get(name), space, Rules(eps=0.2), executor, ledger=ledger, clock=lambda: now[0]
        )
    assert found.spent is not None
    assert found.spent.seconds == pytest.approx(now[0])
    with opened(tmp_path / "ledger.jsonl") as ledger:
        again = run_search(get(name), space, Rules(eps=0.2), nothing, ledger=ledger)
    assert again.spent == found.spent


def test_results_are_equal_whatever_they_took() -> None:
    found = [
        run_search(asking(Query([ONE])), SPACE, Rules(), slow, clock=slow.clock)
        for slow in (Slow({DENSE: 1.0, ONE: 1.0}), Slow({DENSE: 2.0, ONE: 2.0}))
    ]
    assert found[0] == found[1]
    assert found[0].spent != found[1].spent


def test_a_prompt_decoded_again_for_another_field_counts_where_both_are_asked_for() -> None:
    table = SecondsTable()
    assert table.next_batch() == 1
    table.add(Evaluation(ONE, (0, 1), accept=((2, 1), (2, 1))), Taken(4.0, 1))
    table.add(Evaluation(ONE, (0,), accept=((2, 1),), metric=(0.5,)), Taken(3.0, 2))
    table.add(Evaluation(TWO, (0,), metric=(0.5,)), None)
    assert table.next_batch() == 3
    assert table.of([(ONE, "accept", 0)]) == Spent(2.0)
    assert table.of([(ONE, "accept", 0), (ONE, "metric", 0)]) == Spent(5.0)
    # Of one answer, and nowhere to be found.
    assert table.of([(ONE, "accept", 0), (TWO, "metric", 0)]) is None
    assert table.of([(ONE, "loss", 0)]) is None
