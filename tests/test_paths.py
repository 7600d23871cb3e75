"""The user's cache directory, for models and data alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from tss_bench.data.resolve import data_cache
from tss_bench.paths import cache_dir


def test_environment_names_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TSS_BENCH_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    assert data_cache() == tmp_path / "mine" / "data"


def test_a_tilde_is_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("TSS_BENCH_CACHE", "~/mine")
    assert cache_dir() == tmp_path / "mine"
    assert data_cache() == tmp_path / "mine" / "data"


@pytest.mark.parametrize("setting", [None, "", "  "])
def test_without_a_setting_the_cache_is_the_user_s(
    setting: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TSS_BENCH_CACHE", raising=False)
    if setting is not None:
        monkeypatch.setenv("TSS_BENCH_CACHE", setting)
    assert cache_dir().name == "tss_bench"
    assert cache_dir().is_absolute()
