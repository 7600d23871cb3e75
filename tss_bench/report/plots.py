"""What every picture of a report shares: files, style, colours, panels, labels.

The same data gives the same bytes, on one version of matplotlib.

May import: matplotlib (layer L2 of the design).
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tss_bench.report.entries import Entry
from tss_bench.report.main_table import identity, method

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
PLAIN_COLOR = "0.5"
"""Okabe and Ito's colours, which colour-blind readers can tell apart."""

_STYLE: Any = {
    "svg.fonttype": "path",
    "svg.hashsalt": "tss_bench",
    "text.parse_math": False,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "legend.frameon": False,
}
_WIDEST = 3
_LONGEST_LABEL = 60


@dataclass(frozen=True)
class Plot:
    """A picture: `stem` names its two files, `alt` says what it shows where it is not seen."""

    stem: str
    title: str
    caption: str
    alt: str
    draw: Callable[[], Figure]

    def save(self, folder: Path) -> None:
        """Write `stem`.png and `stem`.svg."""
        with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
            # A letter that the font lacks is drawn as a box; a name is no reason to warn.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure = self.draw()
            FigureCanvasAgg(figure)
            figure.savefig(folder / f"{self.stem}.png", dpi=150, metadata={"Software": None})
            metadata = {"Date": None, "Creator": None}
            figure.savefig(folder / f"{self.stem}.svg", metadata=metadata)


def with_own_stems(plots: Sequence[Plot]) -> list[Plot]:
    """The plots, those of a stem that another has under one of their own."""
    found: dict[str, Plot] = {}
    for plot in plots:
        stem, count = plot.stem, 2
        while stem in found:
            stem, count = f"{plot.stem}-{count}", count + 1
        found[stem] = replace(plot, stem=stem)
    return list(found.values())


Labels = Callable[[Sequence[Entry]], dict[Entry, str]]
"""Names the entries of one task; those of one name share a colour."""


def by_task(
    entries: Sequence[Entry],
    panel: Callable[[Axes, Sequence[Entry], dict[str, str]], None],
    name: Labels | None = None,
) -> Figure:
    """One panel a task, with one legend for all of them; `name` is `labels_of` if not given."""
    tasks = list(dict.fromkeys(entry.run.task for entry in entries))
    name = name or labels_of
    named = [name([e for e in entries if e.run.task == task]) for task in tasks]
    colors = colors_of(label for labels in named for label in labels.items())
    figure, grid = grid_of(len(tasks))
    handles: dict[str, Any] = {}
    for axes, task, labels in zip(grid, tasks, named, strict=True):
        panel(axes, list(labels), colors)
        axes.set_title(short(task))
        axes.grid(axis="y")
        handles |= {
            label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
    names = list(colors)
    add_legend(figure, [handles[name] for name in names], names)
    return figure


def colors_of(labels: Iterable[tuple[Entry, str]]) -> dict[str, str]:
    """A colour for each label, alike in all pictures of the entries; grey for plain decoding."""
    colors: dict[str, str] = {}
    drafted = 0
    for entry, label in labels:
        if label not in colors:
            plain = entry.run.drafter == "none"
            colors[label] = PLAIN_COLOR if plain else color_of(drafted)
            drafted += not plain
    return colors


def add_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """One legend above all panels, as many entries in a row as its width takes."""
    # Inches of one entry: its key and gap, and about as much a letter.
    widest = 0.6 + 0.075 * max(map(len, names))
    columns = max(1, int(figure.get_figwidth() / widest))
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), columns))


def grid_of(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(count, _WIDEST)
    rows = -(-count // columns)
    size = (max(4.5, 3.4 * columns), 2.7 * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    return figure, [figure.add_subplot(rows, columns, place + 1) for place in range(count)]


def series_of(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """The entries of each label, over all tasks."""
    found: dict[str, list[Entry]] = {}
    for task in dict.fromkeys(entry.run.task for entry in entries):
        members = [entry for entry in entries if entry.run.task == task]
        for entry, label in labels_of(members).items():
            found.setdefault(label, []).append(entry)
    return found


def labels_of(members: Sequence[Entry]) -> dict[Entry, str]:
    """A label for each entry of one task: its method, with model or place where needed."""
    several = len({entry.run.model for entry in members}) > 1
    labels: dict[Entry, str] = {}
    for entry in members:
        # The folder only where this picture has two of one method.
        told = method({**identity(entry), "folder": None})
        told = f"{told}, {entry.run.model}" if several else told
        # matplotlib leaves labels with a leading underscore out of legends.
        label = textwrap.shorten(told.lstrip("_"), _LONGEST_LABEL, placeholder=" …")
        label = label if label not in labels.values() else f"{label}, {entry.run.place}"
        count = 2
        while label in labels.values():
            label, count = f"{label} ({count})", count + 1
        labels[entry] = label
    return labels


def name_tasks(axes: Axes, tasks: Sequence[str]) -> None:
    """Name the tasks below their places 0, 1, …; slanted where the names are long."""
    axes.set_xticks(range(len(tasks)), [short(task) for task in tasks])
    if max(len(short(task)) for task in tasks) > 15:
        for label in axes.get_xticklabels():
            label.set(rotation=20, ha="right", rotation_mode="anchor")


def color_of(place: int) -> str:
    return COLORS[place % len(COLORS)]


def short(task: str) -> str:
    """The name of a task on an axis."""
    return task.removeprefix("specbench_").removeprefix("tss_")
