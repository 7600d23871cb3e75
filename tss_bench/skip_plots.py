"""Curves over layers as an image file.

May import: matplotlib (inside functions), the standard library (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

IMAGES = (".png", ".svg")

Curve = tuple[Sequence[int], Sequence[float]]
"""Layers and their values."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes with a curve for each name; `level` is a horizontal line to read against."""

    title: str
    y_label: str
    curves: Mapping[str, Curve] = field(default_factory=dict)
    level: float | None = None


def check_plot(path: Path) -> None:
    """Raises ValueError where `path` could not be written later: its kind, its folder."""
    if path.suffix.lower() not in IMAGES:
        raise ValueError(f"--plot draws {' or '.join(IMAGES)} files, got {path}")
    if path.is_dir():
        raise ValueError(f"--plot: {path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"--plot: the folder {path.parent} does not exist; make it first")


def draw(panels: Sequence[Panel], columns: int, path: Path) -> None:
    """Write the panels, `columns` in a row, to `path`; its suffix is the format.

    An SVG keeps its text as text and no date: the same curves give the same file.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(panels) // columns)
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tss_bench"}):
        figure = Figure(figsize=(5.5 * columns, 3.2 * rows), layout="constrained")
        FigureCanvasAgg(figure)
        for place, panel in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, place)
            if panel.level is not None:
                axes.axhline(panel.level, color="0.6", linewidth=0.8)
            for name, (layers, values) in panel.curves.items():
                axes.plot(layers, values, marker="o", markersize=3, linewidth=1.2, label=name)
            axes.set(title=panel.title, xlabel="layer", ylabel=panel.y_label)
            axes.grid(visible=True, alpha=0.3)
            if panel.curves:
                axes.legend(fontsize="small")
        svg = path.suffix.lower() == ".svg"
        figure.savefig(path, dpi=150, metadata={"Date": None} if svg else None)
