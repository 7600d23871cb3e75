"""The plugin package, as importlib.metadata sees it once it is installed.

May import: pytest and the standard library.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parent.parent / "plugin_package"


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the plugin package importable, with the entry points of its pyproject.toml."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    install(tmp_path / "site", project["name"], project["entry-points"]["tss_bench.strategies"])
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(PLUGIN))


def install(site: Path, name: str, strategies: dict[str, str]) -> None:
    """Write the metadata of an installed distribution that declares these strategies."""
    folder = site / f"{name.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    lines = [f"{key} = {value}" for key, value in strategies.items()]
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("\n".join(["[tss_bench.strategies]", *lines]) + "\n")
