"""What each strategy chooses and asks for, against independent answers.

May import: pytest, hypothesis and tss_bench.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.search.surface import Recorder, Surface
from tss_bench.search import (
    Budget,
    Evaluation,
    Job,
    Limits,
    Progress,
    Rules,
    SearchResult,
    SearchSpace,
    get,
    run_search,
    serial,
)
from tss_bench.types import SkipSet

SURFACES = st.builds(
    Surface,
    seed=st.integers(0, 10**6),
    num_layers=st.integers(2, 5),
    num_prompts=st.integers(1, 7),
    wild=st.booleans(),
    accuracy=st.booleans(),
    unscored=st.sampled_from([frozenset(), frozenset({1})]),
)
RULES = st.builds(
    Rules,
    eps=st.sampled_from([-0.1, 0.0, 0.05, 0.3, 0.9]),
    tau=st.sampled_from([0.0, 0.05, 0.4]),
    tolerance=st.sampled_from(["relative", "absolute"]),
    use_metric=st.booleans(),
)


def search(name: str, surface: Surface, rules: Rules, **settings: Any) -> SearchResult:
    options = settings.pop("options", {})
    settings.setdefault("budget", Budget(evaluations=10**6))
    settings["depth"] = min(settings.get("depth", 2), surface.num_layers)
    space = surface.space(**settings)
    return run_search(get(name), space, rules, serial(surface.evaluate), options=options)


def brute_force(surface: Surface, rules: Rules, depth: int) -> tuple[int, ...]:
    """Algorithm 1 written down again, over plain numbers."""
    prompts = range(surface.num_prompts)

    def figures(layers: tuple[int, ...]) -> tuple[float, float]:
        skip = SkipSet.of(layers, surface.num_layers)
        pairs = [surface.accept(skip, i) for i in prompts]
        values = [v for v in (surface.metric(skip, i) for i in prompts) if v is not None]
        steps = sum(below for _, below in pairs)
        accept = sum(above for above, _ in pairs) / steps if steps else float("-inf")
        return accept, sum(values) / len(values) if values else 0.0

    def floor(dense: float, tolerance: float) -> float:
        if rules.tolerance == "absolute" or dense == 0:
            return dense - tolerance - 1e-9
        return dense * (1 - tolerance) - 1e-9

    dense = figures(())

    def passed(layers: tuple[int, ...], tolerance: float) -> list[bool]:
        used = 2 if rules.use_metric else 1
        return [figures(layers)[i] >= floor(dense[i], tolerance) for i in range(used)]

    pool = [layer for layer in range(surface.num_layers) if any(passed((layer,), rules.tau))]
    kept: list[tuple[int, ...]] = []
    for size in range(1, depth + 1):
        good = [one for one in itertools.combinations(pool, size) if all(passed(one, rules.eps))]
        if not good:
            break
        kept += good
    return min(
        kept,
        key=lambda one: (-len(one), -figures(one)[0], -figures(one)[1], one),
        default=(),
    )


def has_figures(surface: Surface, rules: Rules) -> bool:
    dense = surface.full(SkipSet.dense(surface.num_layers)).score()
    return dense.accept is not None and (dense.metric is not None or not rules.use_metric)


@given(SURFACES, RULES, st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_tss_bfs_equals_brute_force(surface: Surface, rules: Rules, depth: int) -> None:
    if has_figures(surface, rules):
        found = search("tss_bfs", surface, rules, depth=depth).best
        expected = brute_force(surface, rules, min(depth, surface.num_layers))
        assert tuple(found.skip) == expected


@given(SURFACES, RULES, st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.booleans())
@settings(max_examples=250, deadline=None)
def test_tss_race_equals_tss_bfs_and_asks_for_no_more(
    surface: Surface, rules: Rules, depth: int, chunk: int, width: int, limits: bool
) -> None:
    if not has_figures(surface, rules):
        return
    given_limits = {} if limits else {"limits": Limits()}
    full = search("tss_bfs", surface, rules, depth=depth, **given_limits)
    options = {"chunk": chunk, "width": width}
    raced = search("tss_race", surface, rules, depth=depth, options=options, **given_limits)
    assert raced.best == full.best
    assert raced.counts.prompt_evaluations <= full.counts.prompt_evaluations
    assert raced.counts.evaluations <= full.counts.evaluations


@given(SURFACES, RULES)
@settings(max_examples=60, deadline=None)
def test_tss_race_equals_tss_bfs_with_measured_costs(surface: Surface, rules: Rules) -> None:
    rules = Rules(rules.eps, rules.tau, rules.tolerance, "measured", rules.use_metric)
    if has_figures(surface, rules):
        full = search("tss_bfs", surface, rules)
        raced = search("tss_race", surface, rules)
        assert raced.best == full.best
        assert raced.counts.prompt_evaluations <= full.counts.prompt_evaluations


@pytest.mark.parametrize("accuracy", [False, True])
def test_tss_race_saves_prompts_on_surfaces_like_a_target(accuracy: bool) -> None:
    asked = {"tss_bfs": 0, "exact": 0, "student": 0}
    for seed in range(3):
        surface = Surface(seed, num_layers=24, num_prompts=16, accuracy=accuracy)
        full = search("tss_bfs", surface, Rules())
        asked["tss_bfs"] += full.counts.prompt_evaluations
        for bound in ("exact", "student"):
            raced = search("tss_race", surface, Rules(), options={"bound": bound})
            assert raced.best == full.best
            asked[bound] += raced.counts.prompt_evaluations
    assert asked["exact"] < 0.9 * asked["tss_bfs"]
    assert asked["student"] < 0.45 * asked["tss_bfs"]


@given(SURFACES, st.sampled_from(["hoeffding", "student"]))
@settings(max_examples=60, deadline=None)
def test_a_statistical_race_still_chooses_a_feasible_set(surface: Surface, bound: str) -> None:
    if has_figures(surface, Rules()):
        result = search("tss_race", surface, Rules(), options={"bound": bound, "delta": 0.2})
        exact = surface.full(result.best.skip).score()
        assert result.kept_dense or Rules().feasible(result.dense, exact)  # type: ignore[arg-type]
        assert (result.best.accept, result.best.metric) == (exact.accept, exact.metric)


@given(SURFACES, RULES, st.sampled_from(["hoeffding", "student"]), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_a_statistical_race_asks_for_nothing_that_tss_bfs_does_not(
    surface: Surface, rules: Rules, bound: str, depth: int
) -> None:
    if has_figures(surface, rules):
        asked = []
        for name, options in (("tss_bfs", {}), ("tss_race", {"bound": bound, "delta": 0.2})):
            recorder = Recorder(surface)
            space = surface.space(
                depth=min(depth, surface.num_layers), budget=Budget(evaluations=10**6)
            )
            run_search(get(name), space, rules, recorder, options=options)
            asked.append(recorder.decoded)
        assert asked[1] <= asked[0]


def test_a_statistical_race_that_keeps_dense_calls_it_likely() -> None:
    surface = Surface(478306, num_layers=2, num_prompts=8, wild=True, accuracy=True)
    rules = Rules(0, 0.05, "absolute", use_metric=False)
    options = {"bound": "student", "delta": 0.45, "chunk": 2, "width": 3, "seed": 6}
    guessed = search("tss_race", surface, rules, options=options, limits=Limits())
    assert guessed.kept_dense
    assert guessed.reason == "dense kept: none of 0 sets is likely to be feasible (student)"
    assert not search("tss_bfs", surface, rules, limits=Limits()).kept_dense


@given(SURFACES, st.sampled_from(["accept", "metric"]), st.integers(1, 4))
@settings(max_examples=80, deadline=None)
def test_one_objective_strategies_choose_the_best_they_evaluated(
    surface: Surface, objective: str, depth: int
) -> None:
    if not has_figures(surface, Rules()):
        return
    recorder = Recorder(surface)
    space = surface.space(depth=min(depth, surface.num_layers))
    found = run_search(get(f"{objective}_only"), space, Rules(), recorder)
    evaluated = [surface.full(skip).score() for skip in recorder.sets]
    values = [getattr(score, objective) for score in evaluated]
    assert getattr(found.best, objective) == max(v for v in values if v is not None)


@given(SURFACES, RULES, st.sampled_from(["tss_beam", "tss_race", "random"]), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_no_choice_beats_the_exhaustive_optimum_of_its_rule(
    surface: Surface, rules: Rules, name: str, depth: int
) -> None:
    if not has_figures(surface, rules):
        return
    depth = min(depth, surface.num_layers)
    choice = {} if name == "tss_race" else {"options": {"choice": "min_cost"}}
    found = search(name, surface, rules, depth=depth, **choice)
    every = [
        surface.full(SkipSet.of(layers, surface.num_layers)).score()
        for size in range(1, depth + 1)
        for layers in itertools.combinations(range(surface.num_layers), size)
    ]
    good = [score for score in every if rules.feasible(found.dense, score)]  # type: ignore[arg-type]
    if good:
        assert len(found.best.skip) <= max(len(score.skip) for score in good)
    else:
        assert found.kept_dense


class Table:
    """A surface of one prompt from a table: (A as emitted of 1 step out of 10, M, loss) by set."""

    def __init__(
        self, figures: Mapping[tuple[int, ...], tuple[float, float]], default: Any
    ) -> None:
        self.figures, self.default = dict(figures), default
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, job: Job) -> Evaluation:
        key = tuple(job.skip)
        if key not in self.asked:
            self.asked.append(key)
        accept, metric = self.figures.get(key, self.default)
        values = {
            "accept": (round(accept * 100), 100),
            "metric": metric,
            "loss": (-100 * metric, 100),
        }
        fields: Any = {name: (values[name],) for name in job.want}
        return Evaluation(job.skip, job.prompts, **fields)


def vicuna(**settings: Any) -> SearchSpace:
    """The space of the published logs: 32 layers behind an early barrier of 2."""
    return SearchSpace(32, 1, early=2, **settings)


def run_table(name: str, table: Table, space: SearchSpace, **options: Any) -> SearchResult:
    return run_search(get(name), space, Rules(), serial(table), options=options)


def chain(*layers: int) -> dict[tuple[int, ...], tuple[float, float]]:
    """A and M that rise along one path of growing sets and nowhere else."""
    return {
        tuple(sorted(layers[:size])): (2.0 + size / 10, 0.4 + size / 100)
        for size in range(len(layers) + 1)
    }


@pytest.mark.parametrize(
    ("name", "path", "depth", "evaluations"),
    [
        # Sets and counts of the published logs (search_strategies_vicuna7b_eagle), dense not
        # counted: translation by sleb, accept_only and metric_only, mmlu by accept_only.
        ("sleb", (2, 3, 4, 9), 4, 114),
        ("accept_only", (3, 15), 8, 87),
        ("metric_only", (12, 18, 28), 8, 114),
        ("accept_only", (4, 6, 16), 8, 114),
    ],
)
def test_counts_are_those_of_the_published_logs(
    name: str, path: tuple[int, ...], depth: int, evaluations: int
) -> None:
    table = Table(chain(*path), default=(1.5, 0.3))
    result = run_table(name, table, vicuna(depth=depth))
    assert tuple(result.best.skip) == path
    assert result.counts.evaluations == evaluations + 1
    assert len(table.asked) == evaluations + 1


def test_a_single_that_only_ties_the_dense_metric_ends_after_thirty_as_published() -> None:
    # metric_only on mmlu: {3} after 30 evaluations.
    table = Table({(): (2.0, 0.4), (3,): (2.0, 0.4)}, default=(2.0, 0.3))
    result = run_table("metric_only", table, vicuna(depth=8))
    assert tuple(result.best.skip) == (3,)
    assert len(table.asked) == 31


def test_greedy_keeps_dense_where_nothing_is_higher() -> None:
    result = run_table("accept_only", Table({(): (2.0, 0.4)}, (1.5, 0.4)), vicuna())
    assert result.kept_dense
    assert result.reason == "dense kept: no set of 30 has a higher accept"


def test_tss_beam_extends_only_sets_that_keep_the_dense_accept_length() -> None:
    figures = {
        (): (2.0, 0.4),
        (2,): (2.4, 0.4),
        (3,): (2.3, 0.4),
        (4,): (1.9, 0.9),
        (5,): (2.2, 0.4),
        (6,): (2.1, 0.4),
    }
    table = Table(figures, default=(1.5, 0.4))
    result = run_table("tss_beam", table, vicuna(depth=8), beam=3)
    # Beam {2}, {3}, {5}; 3 * 29 extensions less the three pairs that come twice.
    assert len(table.asked) == 1 + 30 + 84
    assert (4, 7) not in table.asked
    assert (6, 7) not in table.asked
    assert tuple(result.best.skip) == (2,)


def test_tss_beam_prefers_later_layers_among_equals() -> None:
    table = Table({(): (2.0, 0.4), (7,): (2.2, 0.4), (29,): (2.2, 0.4)}, default=(1.5, 0.4))
    run_table("tss_beam", table, vicuna(depth=2), beam=1)
    assert (4, 29) in table.asked
    assert (4, 7) not in table.asked


def test_tss_beam_chooses_large_sets_first() -> None:
    table = Table(chain(3, 25, 30), default=(1.5, 0.3))
    table.figures[9,] = (5.0, 0.5)
    result = run_table("tss_beam", table, vicuna(depth=8))
    assert tuple(result.best.skip) == (3, 25, 30)
    assert result.strategy == "tss_beam"


def test_gm_skip_breaks_ties_backwards_and_stays_inside_the_tolerance() -> None:
    figures = {
        (): (2.0, 0.4),
        (31,): (1.0, 0.4),
        (30, 31): (1.0, 0.39),
        (29, 30, 31): (1.0, 0.37),  # below 0.95 * 0.4
    }
    table = Table(figures, default=(1.0, 0.4))
    for pair in itertools.combinations(range(32), 2):
        table.figures.setdefault(pair, (1.0, 0.3))
    for three in itertools.combinations(range(32), 3):
        table.figures.setdefault(three, (1.0, 0.3))
    result = run_table("gm_skip", table, vicuna(depth=3))
    assert tuple(result.best.skip) == (30, 31)
    assert len(table.asked) == 1 + 30 + 29 + 28
    balanced = run_table("gm_skip", Table(table.figures, (1.0, 0.4)), vicuna(depth=3), balance=0.0)
    assert len(balanced.best.skip) == 3


def test_gm_skip_refuses_a_balance_to_nothing() -> None:
    table = Table({}, default=(2.0, 0.0))
    with pytest.raises(ValueError, match="or leave out balance"):
        run_table("gm_skip", table, vicuna(), balance=0.5)
    with pytest.raises(ValueError, match=r"balance must lie in 0 … 1, got 2.0"):
        run_table("gm_skip", table, vicuna(), balance=2.0)


def test_sleb_takes_the_lower_layer_among_equals_and_stops_at_its_blocks() -> None:
    result = run_table("sleb", Table({}, default=(2.0, 0.4)), vicuna(), blocks=3)
    assert tuple(result.best.skip) == (2, 3, 4)


def test_random_draws_distinct_sets_within_the_depth_and_the_budget() -> None:
    table = Table({}, default=(2.0, 0.4))
    run_table("random", table, vicuna(depth=3), samples=50, seed=4)
    drawn = [key for key in table.asked if key]
    assert len(drawn) == 50
    assert {len(key) for key in drawn} == {1, 2, 3}
    assert min(map(min, drawn)) >= 2
    again = Table({}, default=(2.0, 0.4))
    run_table("random", again, vicuna(depth=3, budget=Budget(evaluations=20)), samples=50, seed=4)
    assert again.asked == table.asked[:20]
    few = SearchSpace(3, 1, depth=2)
    everything = Table({}, default=(2.0, 0.4))
    run_table("random", everything, few, samples=50)
    assert len(everything.asked) == 1 + 3 + 3


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tss_beam", {"beam": 0}),
        ("random", {"samples": 0}),
        ("sleb", {"blocks": 31}),
        ("tss_race", {"delta": 0.7}),
        ("tss_race", {"chunk": 0}),
    ],
)
def test_options_out_of_range_are_refused_before_any_work(name: str, options: Any) -> None:
    table = Table({}, default=(2.0, 0.4))
    with pytest.raises(ValueError, match="must"):
        run_table(name, table, vicuna(), **options)
    assert not table.asked


def planned_of(surface: Surface, rules: Rules, beam: int, **settings: int) -> tuple[list[int], int]:
    """What tss_beam announces from step to step, and how many sets it asks for in the end."""
    told: list[Progress] = []
    result = run_search(
        get("tss_beam"),
        surface.space(**settings),
        rules,
        serial(surface.evaluate),
        options={"beam": beam},
        progress=told.append,
    )
    return [now.planned for now in told if now.planned is not None], result.counts.evaluations


@settings(max_examples=40, deadline=None)
@given(SURFACES, RULES, st.integers(1, 3))
def test_a_beam_never_asks_for_more_sets_than_it_announced(
    surface: Surface, rules: Rules, beam: int
) -> None:
    assume(surface.full(surface.space().dense).score().accept is not None)
    planned, asked = planned_of(surface, rules, beam, depth=surface.num_layers)
    assert planned == sorted(planned, reverse=True)
    assert asked <= planned[-1]


def test_the_bound_of_a_beam_is_counted_by_hand() -> None:
    planned, _ = planned_of(Surface(1, 6, 2), Rules(), 2, early=2, depth=3)
    # Dense, four singles; 2 x 3 pairs, of which there are six; 2 x 2 triples, all four.
    assert planned[0] == 1 + 4 + 6 + 4
    planned, _ = planned_of(Surface(1, 6, 2), Rules(), 1, depth=3)
    # One set grows by five layers, then one by four.
    assert planned[0] == 1 + 6 + 5 + 4
