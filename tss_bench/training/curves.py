"""Training curves as pictures.

May import: matplotlib, when a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Curve = Sequence[tuple[float, float]]


def draw_curves(path: Path, panels: Mapping[str, Mapping[str, Curve]], x_label: str) -> None:
    """One panel under another, each with its curves of (x, y) points; the suffix sets the kind."""
    import matplotlib

    matplotlib.use("Agg")
    # Text stays text and no date is written: the file is small and the same for the same run.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "tss_bench"})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        len(panels), 1, figsize=(7, 3 * len(panels)), squeeze=False, sharex=True
    )
    for axis, (title, curves) in zip(axes[:, 0], panels.items(), strict=True):
        for label, points in curves.items():
            axis.plot([x for x, _ in points], [y for _, y in points], marker=".", label=label)
        axis.set_ylabel(title)
        axis.grid(alpha=0.3)
        if len(curves) > 1:
            axis.legend(fontsize="small")
    axes[-1, 0].set_xlabel(x_label)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
