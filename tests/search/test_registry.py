"""Strategies by name: built-in ones, those of other packages, and their options.

May import: pytest and tss_bench.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.search.conftest import PLUGIN, install
from tss_bench.search import Option, StrategyError, all_strategies, get, preset
from tss_bench.search.registry import BUILT_IN

ROOT = Path(__file__).resolve().parents[2]


def plain(space: Any, rules: Any) -> Any:
    yield


def positional(space: Any, rules: Any, beam: int = 3) -> Any:
    yield


def without_default(space: Any, rules: Any, *, beam: int) -> Any:
    yield


def of_odd_kind(space: Any, rules: Any, *, beam: dict[str, int] | None = None) -> Any:
    yield


def of_other_arguments(target: Any, rules: Any) -> Any:
    yield


def no_generator(space: Any, rules: Any) -> Any:
    return None


def installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, **strategies: str
) -> None:
    install(tmp_path / name, name, strategies)
    monkeypatch.syspath_prepend(str(tmp_path / name))
    monkeypatch.syspath_prepend(str(ROOT))


def test_our_pyproject_declares_the_built_in_strategies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["tss_bench.strategies"] == dict(BUILT_IN)


def test_an_installed_copy_of_ours_is_no_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, monkeypatch, "tss-bench", **BUILT_IN)
    assert [strategy.name for strategy in all_strategies()] == list(BUILT_IN)


def test_options_come_from_the_signature() -> None:
    strategy = get("tss_race")
    assert [(one.name, one.default, one.kind) for one in strategy.options] == [
        ("bound", "exact", "one of exact, hoeffding, student"),
        ("delta", 0.05, "a number"),
        ("chunk", 1, "a whole number"),
        ("width", 1, "a whole number"),
        ("seed", 0, "a whole number"),
    ]
    assert strategy.origin == "tss-bench"
    assert strategy.summary.startswith("Racing for the `min_cost` choice of `tss_bfs`")


def test_presets_are_those_of_the_paper() -> None:
    assert get("tss_beam").preset == {"early": 2, "late": 0, "depth": 8}
    assert get("tss_bfs").preset == {}
    assert preset(late=1)(plain).preset == {"late": 1}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tss_beem", r"no strategy 'tss_beem'; did you mean tss_beam\?"),
        ("qqq", "no strategy 'qqq'; there is: tss_bfs, tss_beam, tss_race"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(StrategyError, match=hint):
        get(name)


@pytest.mark.usefixtures("plugin")
def test_a_plugin_is_found_with_its_options() -> None:
    strategy = get("last_layers")
    assert strategy.origin == "tss-bench-last-layers"
    assert strategy.parse_options(["first=2"]) == {"first": 2}


def test_a_name_claimed_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch, "other", sleb="tests.search.test_registry:plain")
    message = r"strategy sleb is claimed by tss-bench .* and by other .*; uninstall one of them"
    with pytest.raises(StrategyError, match=message):
        get("tss_bfs")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("absent", "cannot be loaded"),
        ("positional", "option beam must be keyword-only"),
        ("without_default", "option beam must be keyword-only, have a default"),
        ("of_odd_kind", "and be annotated int"),
        ("of_other_arguments", r"must take \(space, rules, \*, option=default\)"),
        ("no_generator", "is no generator function"),
    ],
)
def test_what_is_no_strategy_is_refused_with_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, message: str
) -> None:
    installed(tmp_path, monkeypatch, "other", odd=f"tests.search.test_registry:{function}")
    with pytest.raises(StrategyError, match=rf"strategy odd of other \(.*{message}"):
        get("odd")


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, "3", 3),
        (float, " 1e-2 ", 0.01),
        (bool, "True", True),
        (bool, "0", False),
        (str, "a=b", "a=b"),
        (Literal["x", 2], "2", 2),
        (int | None, "none", None),
        (int | None, "4", 4),
        (int | float, "0.5", 0.5),
        (tuple[int, ...], "1+2", (1, 2)),
    ],
)
def test_texts_are_read_by_annotation(annotation: Any, text: str, value: Any) -> None:
    found = Option("name", None, annotation).parse(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["beam"], "option 'beam' of tss_beam: write it as name=value"),
        (["bean=3"], r"tss_beam has no option 'bean'; did you mean beam\?"),
        (["zzz=3"], "its options: beam, choice"),
        (["beam=x"], "option beam of tss_beam must be a whole number, got 'x'"),
        (["beam=2.5"], "must be a whole number"),
        (["choice=best"], "must be one of min_cost, triple_win, got 'best'"),
        (["beam=1", "beam=2"], "option beam of tss_beam is given twice"),
    ],
)
def test_bad_options_are_one_clear_error(texts: list[str], message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        get("tss_beam").parse_options(texts)


def test_a_strategy_without_options_says_so() -> None:
    with pytest.raises(StrategyError, match="its options: none"):
        get("accept_only").parse_options(["beam=3"])


@pytest.mark.slow
def test_the_plugin_package_installs_with_pip_and_is_found(tmp_path: Path) -> None:
    command = ["install", "--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", *command, "--target", str(tmp_path), str(PLUGIN)],
        check=True,
        timeout=120,
    )
    code = "from tss_bench.search import get; print(get('last_layers').function.__module__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": ""},
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.stdout == "tss_bench_last_layers\n"
