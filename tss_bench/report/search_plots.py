"""Pictures of searches: what each block alone changes (the paper's Figure 3), Pareto fronts.

May import: matplotlib, tss_bench.{domains,search} (layer L2 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tss_bench.domains import DomainConfig
from tss_bench.report import text
from tss_bench.report.board import Board
from tss_bench.report.plots import Plot, add_legend, color_of, grid_of, short
from tss_bench.report.searches import (
    data_title,
    dense_score,
    is_of,
    ledger_target,
    scores,
    search_records,
)
from tss_bench.search import Score


def search_plots(board: Board) -> list[Plot]:
    """The pictures of all ledgers and maps."""
    return _ablation_plots(board) + _pareto_plots(board)


_Group = tuple[str, str, str, str]
"""Model, drafter, data and protocol."""


def _ablation_plots(board: Board) -> list[Plot]:
    groups: dict[_Group, list[tuple[str, Score, list[Score]]]] = {}
    for ledger in board.inputs.ledgers:
        dense, others = scores(ledger)
        singles = sorted((s for s in others if len(s.skip) == 1), key=lambda s: tuple(s.skip))
        if dense is None or not singles:
            continue
        target = ledger_target(board, ledger)
        key = (target.model, target.drafter, target.data or "", target.protocol)
        groups.setdefault(key, []).append((target.task, dense, singles))
    return [_ablation_plot(key, groups[key]) for key in sorted(groups)]


def _ablation_plot(key: _Group, tasks: Sequence[tuple[str, Score, list[Score]]]) -> Plot:
    def draw() -> Figure:
        figure = Figure(figsize=(9, 2.3 * len(tasks)), layout="constrained")
        grid = figure.subplots(len(tasks), 2, squeeze=False, sharex=True)
        for row, (task, dense, singles) in zip(grid, tasks, strict=True):
            by_layer = {next(iter(score.skip)): score for score in singles}
            layers = range(min(by_layer), max(by_layer) + 1)
            for axes, name, place in ((row[0], "accept", 0), (row[1], "metric", 1)):
                values = [getattr(by_layer.get(layer), name, None) for layer in layers]
                values = [math.nan if value is None else value for value in values]
                axes.plot(layers, values, marker="o", markersize=3, color=color_of(place))
                level = getattr(dense, name)
                if level is not None:
                    axes.axhline(level, color="0.4", linewidth=0.8, linestyle="--")
                axes.set_title(f"{short(task)}: {'accept length' if not place else 'metric'}")
                axes.xaxis.set_major_locator(MaxNLocator(integer=True))
                axes.grid(visible=True)
        for axes in grid[-1]:
            axes.set_xlabel("skipped block")
        return figure

    model, drafter, data, protocol = key
    title = f"{model}, {drafter}, {data_title(data)}, protocol {protocol}, calibration rows"
    return Plot(
        f"ablation-{text.slug('-'.join(filter(None, key)))}",
        f"What each block alone changes: {title}",
        "Accept length and metric with one block skipped; the dashed line is the dense target.",
        f"Curves over the skipped block for {len(tasks)} tasks, {title}",
        draw,
    )


@dataclass(frozen=True)
class _Front:
    """One domain of a map: what was chosen, the front that the map tells, what else is known."""

    task: str
    chosen: Score
    front: Sequence[Score]
    others: Sequence[Score]
    dense: Score


def _pareto_plots(board: Board) -> list[Plot]:
    """One figure a map that holds alternatives or whose task has a ledger."""
    known = [(ledger, *scores(ledger)) for ledger in board.inputs.ledgers]
    found = []
    for label, one in board.inputs.maps:
        panels = []
        for name, record in search_records(one):
            dense = dense_score(record)
            panels.append(
                _Front(
                    str(record["task"]),
                    _of(one.domains[name]),
                    [_of(config) for config in one.pareto.get(name, ())],
                    # A ledger of another machine may have the same settings, but not the scores.
                    next(
                        (
                            others
                            for ledger, base, others in known
                            if is_of(ledger, record)
                            and base is not None
                            and (base.accept, base.metric) == (dense.accept, dense.metric)
                        ),
                        [],
                    ),
                    dense,
                )
            )
        shown = [panel for panel in panels if any(map(_placed, (*panel.front, *panel.others)))]
        if shown:
            found.append(_pareto_plot(label, one.model, one.drafter, shown))
    return found


def _of(config: DomainConfig) -> Score:
    cost = len(config.skip.active) / config.skip.num_layers
    return Score(config.skip, config.accept, config.metric, cost)


def _pareto_plot(label: str, model: str, drafter: str, shown: Sequence[_Front]) -> Plot:
    def draw() -> Figure:
        figure, grid = grid_of(len(shown))
        costs = [score.cost or 0.0 for panel in shown for score in panel.front]
        scale = Normalize(min(costs, default=0.0), max(costs, default=0.0) + 1e-6)
        handles: dict[str, Any] = {}
        for axes, panel in zip(grid, shown, strict=True):
            _pareto_panel(axes, panel, scale)
            for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(name, handle)
        add_legend(figure, list(handles.values()), list(handles))
        if costs:
            colors = ScalarMappable(scale, "viridis")
            figure.colorbar(colors, ax=grid, label="cost: active blocks / L")
        return figure

    return Plot(
        f"pareto-{text.slug(label.removesuffix('.json'))}",
        f"Pareto front: {model}, {drafter} ({label})",
        "On calibration rows: in colour the search's front in accept length, metric and cost (not "
        "every strategy has one), in grey the other sets of its ledger, where those of other "
        "searches may be.",
        f"Scatter of metric over accept length for {len(shown)} domains, {model}, {drafter}",
        draw,
    )


def _pareto_panel(axes: Axes, panel: _Front, scale: Normalize) -> None:
    if panel.others:
        axes.scatter(*_points(panel.others), s=6, color="0.75", label="other sets")
    if panel.front:
        axes.scatter(
            *_points(panel.front),
            c=[score.cost or 0.0 for score in panel.front if _placed(score)],
            cmap="viridis",
            norm=scale,
            edgecolor="0.2",
            linewidth=0.5,
            label="Pareto front",
            zorder=3,
        )
    axes.scatter(*_points([panel.dense]), marker="s", color="0.2", label="dense")
    if panel.chosen.skip:
        axes.scatter(
            *_points([panel.chosen]),
            s=150,
            marker="*",
            color=color_of(1),
            edgecolor="0.1",
            linewidth=0.5,
            label="chosen",
            zorder=4,
        )
    title = f"{short(panel.task)}: chosen {panel.chosen.skip}"
    axes.set(title=title, xlabel="accept length A", ylabel="metric M")
    axes.grid(visible=True)


def _placed(score: Score) -> bool:
    return score.accept is not None and score.metric is not None


def _points(found: Sequence[Score]) -> tuple[list[Any], list[Any]]:
    placed = [score for score in found if _placed(score)]
    return [score.accept for score in placed], [score.metric for score in placed]
