"""The user's cache: whole directories only, one builder at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tss_bench.weights.cache import (
    MANIFEST,
    WeightsUnavailable,
    build_once,
    read_manifest,
)

KEY = {"sha256": "abc", "converter": 1}

CHILD = """
import sys
from pathlib import Path
from tss_bench.weights.cache import build_once

def build(work):
    print("building", flush=True)
    sys.stdin.readline()
    (work / "weights").write_text("whole")

build_once(Path(sys.argv[1]), {"k": 1}, build)
print("done", flush=True)
"""


class Builder:
    """Writes one file and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, work: Path) -> None:
        self.calls += 1
        (work / "weights").write_text("0123456789")


def test_builds_once(tmp_path):
    build = Builder()
    for _ in range(3):
        assert build_once(tmp_path / "a" / "model", KEY, build) == tmp_path / "a" / "model"
    assert build.calls == 1
    assert read_manifest(tmp_path / "a" / "model") == {"key": KEY, "files": {"weights": 10}}


def test_another_key_builds_anew(tmp_path):
    build = Builder()
    build_once(tmp_path / "model", KEY, build)
    build_once(tmp_path / "model", {**KEY, "converter": 2}, build)
    assert build.calls == 2


@pytest.mark.parametrize("damage", ["truncated", "deleted", "no manifest", "torn manifest"])
def test_torn_directory_is_built_anew(tmp_path, damage):
    build = Builder()
    model = build_once(tmp_path / "model", KEY, build)
    if damage == "truncated":
        (model / "weights").write_text("0123")
    elif damage == "deleted":
        (model / "weights").unlink()
    elif damage == "no manifest":
        (model / MANIFEST).unlink()
    else:
        (model / MANIFEST).write_text('{"key": {"sha')
    build_once(model, KEY, build)
    assert build.calls == 2
    assert (model / "weights").read_text() == "0123456789"


def test_failed_build_leaves_nothing(tmp_path):
    def fail(work: Path) -> None:
        (work / "weights").write_text("half")
        raise KeyError("stop")

    with pytest.raises(KeyError):
        build_once(tmp_path / "model", KEY, fail)
    assert [p.name for p in tmp_path.iterdir() if p.is_dir()] == []


def test_left_over_of_a_killed_build_is_removed(tmp_path):
    (tmp_path / ".model.building-x1").mkdir()
    build_once(tmp_path / "model", KEY, Builder())
    assert not (tmp_path / ".model.building-x1").exists()


def test_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WeightsUnavailable, match="TSS_BENCH_CACHE"):
        build_once(tmp_path / "file" / "model", KEY, Builder())


def test_two_processes_build_once(tmp_path):
    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path / "model")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    with start() as first:
        assert first.stdout.readline() == "building\n"
        with start() as second:
            assert "another process is preparing model" in second.stderr.readline()
            assert not (tmp_path / "model").exists()
            first.communicate("\n", timeout=60)
            assert second.communicate(timeout=60)[0] == "done\n"
    assert (first.returncode, second.returncode) == (0, 0)
