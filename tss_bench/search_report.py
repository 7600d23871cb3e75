"""What a search tells: its tables, and what a domain map keeps of it.

Pure functions of results and of the evaluations in a ledger.

May import: tabulate, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from tss_bench import __version__
from tss_bench.calibration import metric_name
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.harness import TaskRequests
from tss_bench.scoring.pooled import Pair, ratio
from tss_bench.scoring.statistics import ratio_interval
from tss_bench.search import (
    COST_UNITS,
    EvaluationTable,
    Fingerprint,
    Rules,
    Score,
    SearchResult,
    SearchSpace,
    Spent,
    Strategy,
)
from tss_bench.tolerance_report import difference, difference_text, figure_text
from tss_bench.types import SkipSet

METRIC_FLOOR = 0.05
"""A dense metric below this is at its floor: less than one right answer in 16 to 20 rows, the size
of a calibration split, so that what a set keeps or loses of it is noise."""


@dataclass(frozen=True)
class Found:
    """The result of one task under one set of rules, and what it was made from.

    `fresh` counts the answers that this run decoded; `floor` says why the metric says nothing.
    """

    key: str
    task: TaskRequests
    space: SearchSpace
    rules: Rules
    result: SearchResult
    floor: str | None
    fresh: int

    @property
    def dense(self) -> Score:
        return self.result.dense or Score(self.space.dense)

    def cost(self, score: Score) -> float | None:
        """C of a set, in `COST_UNITS` of the rules; None for a set that was not timed."""
        if self.rules.cost == "layers":
            return self.space.layer_cost(score.skip)
        return score.cost


def metric_floor(dense: Score, task: TaskRequests) -> str | None:
    """Why the metric of the dense target gives nothing to keep; None where it does."""
    if dense.metric is None:
        return "no calibration row has a reference, so there is no metric to keep"
    if dense.metric < METRIC_FLOOR:
        return f"the dense metric {dense.metric:.4g} is at its floor (below {METRIC_FLOOR})"
    guessing = _guessing(task)
    if guessing is not None and dense.metric <= guessing:
        return (
            f"the dense metric {dense.metric:.4g} is at its floor (guessing among the choices "
            f"gives {guessing:.4g})"
        )
    return None


def _guessing(task: TaskRequests) -> float | None:
    """The accuracy of guesses where every row has choices."""
    sizes = [len(request.doc.get("choices") or ()) for request in task.requests]
    return None if 0 in sizes else math.fsum(1 / size for size in sizes) / len(sizes)


def strategies_table(strategies: Iterable[Strategy]) -> str:
    """Every strategy with its package, what it is, and its options with their defaults."""
    blocks = []
    for strategy in strategies:
        presets = " ".join(f"--{name} {value}" for name, value in strategy.preset.items())
        blocks.append(f"{strategy.name}  ({strategy.origin})\n  {strategy.summary}")
        if presets:
            blocks.append(f"  runs with {presets} where these are not given")
        blocks += [
            f"  --opt {option.name}={_option_value(option.default)}  {option.kind}"
            for option in strategy.options
        ]
    return "\n".join(blocks)


def results_table(found: Sequence[tuple[Found, EvaluationTable]]) -> str:
    """One row a domain: the set, its calibrated A and M beside the dense ones, and the effort.

    The seconds are those of all its answers, also of those that the ledger gave (`Spent`).
    """
    effort = ("sets (answers now)", "search, s")
    headers = ["domain", "task", "skips", "|S|/L", *_FIGURES, "cost", *effort, "why"]
    body = [
        [
            one.key,
            one.task.label,
            str(one.result.best.skip),
            f"{one.result.best.skip.sparsity:.3f}",
            *figure_cells(one, table, one.result.best.skip),
            _cost_text(one),
            f"{one.result.counts.evaluations} ({one.fresh})",
            "" if one.result.spent is None else f"{one.result.spent.seconds:.1f}",
            _why(one),
        ]
        for one, table in found
    ]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


def sweep_table(found: Sequence[tuple[Found, EvaluationTable]]) -> str:
    """One row a domain and tolerance (the paper's Table 4)."""
    headers = ["domain", "tolerance", "skips", "|S|/L", *_FIGURES, "sets (answers now)", "why"]
    body = [
        [
            one.key,
            f"{one.rules.eps:+.2f}",
            str(one.result.best.skip),
            f"{one.result.best.skip.sparsity:.3f}",
            *figure_cells(one, table, one.result.best.skip),
            f"{one.result.counts.evaluations} ({one.fresh})",
            _why(one),
        ]
        for one, table in found
    ]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


def singles_table(found: Sequence[tuple[Found, EvaluationTable]]) -> str:
    """One row a domain and layer: what skipping it alone changes (the paper's Figure 3)."""
    headers = ["domain", "skips", *_FIGURES, "feasible"]
    body = [
        [
            one.key,
            str(skip),
            *figure_cells(one, table, skip),
            "yes" if one.rules.feasible(one.dense, _score(one, table, skip)) else "no",
        ]
        for one, table in found
        for skip in (one.space.dense, *one.space.singles())
    ]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


_FIGURES = ("A", "A vs dense", "M", "M vs dense")


def figure_cells(found: Found, table: EvaluationTable, skip: SkipSet) -> tuple[str, ...]:
    """A and M of a set with 95 % bootstrap intervals, and their paired changes to dense."""
    cells = []
    pairs = zip(_pairs(found, table, found.space.dense), _pairs(found, table, skip), strict=True)
    for (before, after), digits in zip(pairs, (2, 3), strict=True):
        value = ratio(after)
        interval = None if value is None else ratio_interval(after)
        changed = difference(before, after) if skip and before and after else None
        cells += [figure_text(value, interval, digits), difference_text(changed)]
    name = metric_name(found.task) or ""
    return (*cells[:2], f"{name} {cells[2]}".strip(), cells[3])


def record(found: Found, fingerprint: Fingerprint, ledger: str) -> dict[str, Any]:
    """Provenance of one domain's set: all that is needed to find it again, as plain JSON."""
    result, space = found.result, found.space
    dense = found.dense
    return {
        "version": __version__,
        "task": found.task.name,
        "data": found.task.label,
        "rows": space.num_prompts,
        "metric_name": metric_name(found.task),
        "strategy": result.strategy,
        "options": {name: _plain(value) for name, value in result.options.items()},
        "rules": asdict(found.rules),
        "space": {
            **{name: getattr(space, name) for name in ("early", "late", "depth")},
            "candidates": list(space.candidates),
            "budget": asdict(space.budget),
        },
        "dense": {
            "accept": dense.accept,
            "metric": dense.metric,
            "cost": found.cost(dense),
        },
        "cost": found.cost(result.best),
        "cost_unit": COST_UNITS[found.rules.cost],
        "kept_dense": result.kept_dense,
        "reason": result.reason,
        "stopped": result.stopped,
        "metric_floor": found.floor,
        "counts": {
            "evaluations": result.counts.evaluations,
            "prompt_evaluations": result.counts.prompt_evaluations,
        },
        **_spent_record(result.spent),
        "fingerprint": {"sha256": fingerprint.digest(), **fingerprint.parts()},
        "ledger": ledger,
    }


def _spent_record(spent: Spent | None) -> dict[str, Any]:
    if spent is None:
        return {"seconds": None, "machine": None}
    return {"seconds": round(spent.seconds, 3), "machine": "; ".join(spent.machines) or None}


def joined(before: DomainMap, found: Found, provenance: Mapping[str, Any]) -> DomainMap:
    """A map with the set of one more domain, or a new set for one that it has."""
    best = found.result.best
    told = before.provenance.get("search", {})
    return DomainMap(
        model=before.model,
        drafter=before.drafter,
        num_layers=before.num_layers,
        scope=before.scope,
        protocol=before.protocol,
        domains={**before.domains, found.key: _config(best)},
        pareto={**before.pareto, found.key: [_config(one) for one in found.result.pareto]},
        provenance={**before.provenance, "search": {**told, found.key: dict(provenance)}},
    )


def _config(score: Score) -> DomainConfig:
    return DomainConfig(score.skip, score.accept, score.metric)


def _cost_text(found: Found) -> str:
    """A share of layers as a plain number, a measured cost in ms and beside the dense one."""
    cost, dense = found.cost(found.result.best), found.cost(found.dense)
    if cost is None:
        return ""
    if found.rules.cost == "layers":
        return f"{cost:.3f}"
    beside = f" (dense {dense:.2f})" if found.result.best.skip and dense is not None else ""
    return f"{cost:.2f} ms{beside}"


def _why(found: Found) -> str:
    result = found.result
    feasible = found.rules.feasible(found.dense, result.best)
    parts = [result.reason, result.stopped]
    if result.best.skip and not feasible:
        parts.append("outside the tolerance")
    if not found.rules.use_metric:
        parts.append(f"chosen on A alone: {found.floor}")
    return "; ".join(part for part in parts if part)


def _score(found: Found, table: EvaluationTable, skip: SkipSet) -> Score:
    return table.known(skip, range(found.space.num_prompts)).score()


def _pairs(
    found: Found, table: EvaluationTable, skip: SkipSet
) -> tuple[Sequence[Pair], Sequence[Pair]]:
    """(emitted, steps) of each row, and its metric over 1 ((0, 0) without a reference)."""
    known = table.known(skip, range(found.space.num_prompts))
    return known.accept or (), [
        (0.0, 0.0) if value is None else (value, 1.0) for value in known.metric or ()
    ]


def _option_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
