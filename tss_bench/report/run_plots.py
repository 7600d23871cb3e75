"""Pictures of runs: accept length by domain (the paper's Figure 2), ids by step, tokens/s.

May import: matplotlib (layer L2 of the design).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator, PercentFormatter

from tss_bench.report import text
from tss_bench.report.board import Board, Figure
from tss_bench.report.entries import Entry
from tss_bench.report.main_table import section_title
from tss_bench.report.plots import (
    COLORS,
    Labels,
    Plot,
    add_legend,
    by_task,
    color_of,
    labels_of,
    name_tasks,
    series_of,
)

_LONGEST_STEP = 12

Section = tuple[str, str, str, str]


def run_plots(board: Board) -> list[Plot]:
    """The pictures of each section."""
    found: list[Plot | None] = []
    for section, entries in board.sections.items():
        shown = _told_apart(entries)
        made = [_accept_plot(board, section, shown), _step_plot(board, section, shown)]
        if missing := len(entries) - len(shown):
            note = f" {missing} runs beside labels (ADAPTER@LABEL) are in the tables only."
            made = [plot and replace(plot, caption=plot.caption + note) for plot in made]
        # One colour an adapter will do here: what a label stands for is seen from the sparsity.
        found += [*made, _speed_plot(board, section, entries, by_kind=bool(missing))]
    return [plot for plot in found if plot is not None]


def _told_apart(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The entries of a section, less the labelled ones where colours do not suffice for all.

    Then what was measured again beside those (`ADAPTER@LABEL`) goes, too.
    """
    if len(series_of([entry for entry in entries if entry.run.drafter != "none"])) <= len(COLORS):
        return entries
    labelled = {entry.run.session for entry in entries if "@" in entry.run.adapter}
    elsewhere = {_measured(entry) for entry in entries if entry.run.session not in labelled}
    return [
        entry
        for entry in entries
        if "@" not in entry.run.adapter
        and not (entry.run.session in labelled and _measured(entry) in elsewhere)
    ]


def _measured(entry: Entry) -> tuple[str, str, str]:
    return entry.run.task, entry.run.model, entry.run.adapter


def _accept_plot(board: Board, section: Section, entries: Sequence[Entry]) -> Plot | None:
    drafted = [e for e in entries if e.run.drafter != "none" and board.figure(e, "accept_len")]
    if not drafted:
        return None
    tasks = list(dict.fromkeys(entry.run.task for entry in drafted))
    series = series_of(drafted)

    def draw() -> Canvas:
        figure = Canvas(figsize=(max(4.5, 1.6 + 1.15 * len(tasks)), 3.4), layout="constrained")
        axes = figure.add_subplot()
        width = 0.8 / len(series)
        for place, (label, members) in enumerate(series.items()):
            for entry in members:
                _bar(
                    axes,
                    board,
                    entry,
                    tasks.index(entry.run.task) + width * place - 0.4,
                    width,
                    place,
                )
            axes.bar(0, 0, color=color_of(place), label=label)
        axes.axhline(1, color="0.4", linewidth=0.8, linestyle="--")
        name_tasks(axes, tasks)
        axes.set_ylabel("accept length")
        axes.grid(axis="y")
        axes.margins(x=0.02)
        add_legend(figure, *axes.get_legend_handles_labels())
        return figure

    where = section_title(section)
    return Plot(
        f"accept-len-{text.slug('-'.join(section))}",
        f"Accept length by domain: {where}",
        "Ids emitted per verification step, bonus included, with 95 % bootstrap intervals over "
        "rows; the dashed line is plain decoding.",
        f"Bars of accept length for {len(tasks)} tasks and {len(series)} methods, {where}",
        draw,
    )


def _bar(axes: Axes, board: Board, entry: Entry, left: float, width: float, place: int) -> None:
    found = board.figure(entry, "accept_len")
    assert found is not None
    axes.bar(left + width / 2, found.value, width * 0.94, color=color_of(place))
    if (ends := _ends(found)) is not None:
        axes.errorbar(left + width / 2, found.value, ends, color="0.2", capsize=2, linewidth=0.9)


def _step_plot(board: Board, section: Section, entries: Sequence[Entry]) -> Plot | None:
    counts = {entry: _steps(entry) for entry in entries if entry.run.drafter != "none"}
    known = [entry for entry, count in counts.items() if count]
    if not known:
        return None

    def panel(axes: Axes, members: Sequence[Entry], colors: dict[str, str]) -> None:
        labels = labels_of(members)
        width = 0.8 / len(members)
        for place, entry in enumerate(members):
            total = sum(counts[entry].values())
            values = [counts[entry][n] / total for n in range(1, _LONGEST_STEP + 1)]
            lefts = [n - 0.4 + width * (place + 0.5) for n in range(1, _LONGEST_STEP + 1)]
            label = labels[entry]
            axes.bar(lefts, values, width * 0.94, color=colors[label], label=label)
        longest = max(n for entry in members for n in counts[entry])
        axes.set_xlim(0.4, min(longest, _LONGEST_STEP) + 0.6)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set(xlabel="ids emitted in a step", ylabel="share of steps")

    where = section_title(section)
    return Plot(
        f"steps-{text.slug('-'.join(section))}",
        f"Ids emitted by verification step: {where}",
        f"Share of the steps that emitted so many ids, bonus included; {_LONGEST_STEP} stands for "
        f"itself and more.",
        f"Histograms of ids emitted per step, one a task, {where}",
        lambda: by_task(known, panel),
    )


def _steps(entry: Entry) -> Counter[int]:
    """How many steps emitted how many ids; long ones together."""
    return Counter(
        min(length, _LONGEST_STEP)
        for row in entry.rows.values()
        for turn in row[0].turns
        for length in turn.accept_lengths
    )


def _speed_plot(
    board: Board, section: Section, entries: Sequence[Entry], *, by_kind: bool
) -> Plot | None:
    timed = [e for e in entries if e.sparsity is not None and board.figure(e, "tokens_per_second")]
    tasks = {entry.run.task for entry in timed if entry.sparsity}
    known = [entry for entry in timed if entry.run.task in tasks]
    if not known:
        return None

    where = section_title(section)
    name = _kinds if by_kind else labels_of
    return Plot(
        f"speed-{text.slug('-'.join(section))}",
        f"tokens/s against sparsity: {where}",
        "Squares are native, points sparse, with 95 % bootstrap intervals over rows. The dashed "
        "line is native times L / (L - |S|): what cheaper blocks alone could give at the same "
        "accept length.",
        f"tokens/s by sparsity with the limit of cheaper blocks, one panel a task, {where}",
        lambda: by_task(known, lambda *given: _speed_panel(board, name, *given), name),
    )


def _kinds(members: Sequence[Entry]) -> dict[Entry, str]:
    """Adapters without their labels, with the model where there are several."""
    several = len({entry.run.model for entry in members}) > 1
    return {
        entry: entry.run.adapter.partition("@")[0] + (f", {entry.run.model}" if several else "")
        for entry in members
    }


def _speed_panel(
    board: Board, name: Labels, axes: Axes, members: Sequence[Entry], colors: dict[str, str]
) -> None:
    """One task: its entries, and for each native one with a sparse one the limit."""
    widest = 1.25 * max(entry.sparsity or 0.0 for entry in members)
    labels = name(members)
    ends: list[float] = []
    for entry in members:
        found = board.figure(entry, "tokens_per_second")
        assert found is not None
        axes.errorbar(
            entry.sparsity or 0.0,
            found.value,
            _ends(found),
            linestyle="",
            marker="o" if entry.sparse else "s",
            markersize=5,
            capsize=2,
            color=colors[labels[entry]],
            label=labels[entry],
        )
        native = board.native_of(entry)
        base = board.figure(native, "tokens_per_second") if native in labels and native else None
        if base is not None:
            grid = [widest * step / 40 for step in range(41)]
            limit = [base.value / (1 - share) for share in grid]
            color = colors[labels[entry]]
            axes.plot(grid, limit, color=color, linewidth=0.9, linestyle="--", zorder=1)
            ends.append(limit[-1])
    if ends:
        # Once, on the highest line: the lines of several drafters lie close together.
        axes.annotate(
            "L/(L-|S|)", (widest, max(ends)), color="dimgrey", fontsize=7, ha="right", va="bottom"
        )
    axes.set(xlabel="sparsity |S|/L", ylabel="tokens/s", xlim=(-0.05 * widest, widest))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylim(bottom=0)


def _ends(found: Figure) -> tuple[list[float], list[float]] | None:
    """The interval as distances from the value; None without one."""
    if found.low is None or found.high is None:
        return None
    return [max(found.value - found.low, 0.0)], [max(found.high - found.value, 0.0)]
