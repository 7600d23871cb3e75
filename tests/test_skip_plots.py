"""Pictures of curves over layers. May import: pytest, tss_bench and the standard library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tss_bench.skip_plots import Panel, check_plot, draw


def test_panels_are_drawn_with_their_names(tmp_path: Path) -> None:
    panels = [
        Panel("first", "change, %", {"reference": ([0, 1, 2], [0.0, -3.0, 1.5])}, 0.0),
        Panel("second", "agreement"),
        Panel("third", "agreement", {"target": ([0, 2], [0.5, 0.75])}),
    ]
    path = tmp_path / "plot.svg"
    draw(panels, 2, path)
    first = path.read_text("utf-8")
    for text in ("first", "second", "third", "change, %", "reference", "target", "layer"):
        assert f">{text}<" in first
    draw(panels, 2, path)
    assert path.read_text("utf-8") == first
    draw(panels, 2, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_drawn_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--plot draws \.png or \.svg files, got .*plot\.gif"):
        check_plot(tmp_path / "plot.gif")
    with pytest.raises(ValueError, match=r"the folder .*nowhere does not exist"):
        check_plot(tmp_path / "nowhere" / "plot.png")
    check_plot(tmp_path / "plot.PNG")
