"""The commit that a record names, and whether the code was changed since.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tss_bench import __version__
from tss_bench.training import records


def git(tree: Path, *words: str) -> str:
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    done = subprocess.run(
        ["git", *who, *words], cwd=tree, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_commit_is_marked_where_the_code_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, notes = tmp_path / "tss_bench" / "training" / "records.py", tmp_path / "notes.md"
    code.parent.mkdir(parents=True)
    code.write_text("x = 1\n", encoding="utf-8")
    notes.write_text("a\n", encoding="utf-8")
    monkeypatch.setattr(records, "__file__", str(code))
    assert records.source_state() is None
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    notes.write_text("b\n", encoding="utf-8")
    assert records.source_state() == records.source_commit() == commit
    code.write_text("x = 2\n", encoding="utf-8")
    first = records.source_state()
    assert first is not None
    assert re.fullmatch(rf"{commit}\+changes-[0-9a-f]{{8}}", first)
    code.write_text("x = 3\n", encoding="utf-8")
    second = records.source_state()
    assert second not in (first, commit)
    code.write_text("x = 2\n", encoding="utf-8")
    assert records.source_state() == first
    assert records.source_commit() == commit


def test_the_commit_of_another_project_s_tree_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a package that is installed below a source tree that ignores it."""
    code = tmp_path / ".venv" / "tss_bench" / "training" / "records.py"
    code.parent.mkdir(parents=True)
    code.write_text("x = 1\n", encoding="utf-8")
    (tmp_path / ".gitignore").write_text(".venv\n", encoding="utf-8")
    monkeypatch.setattr(records, "__file__", str(code))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    assert records.source_commit() is None
    assert records.source_state() is None


def test_changes_are_seen_in_a_tree_inside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "vendor" / "tss_bench" / "training" / "records.py"
    code.parent.mkdir(parents=True)
    code.write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(records, "__file__", str(code))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    code.write_text("x = 2\n", encoding="utf-8")
    assert str(records.source_state()).startswith(f"{records.source_commit()}+changes-")


def test_versions_are_of_this_package_and_of_what_it_stands_on() -> None:
    found = records.library_versions("pytest")
    assert list(found) == ["tss_bench", "torch", "transformers", "pytest"]
    assert found["tss_bench"] == __version__
    assert found["pytest"] == pytest.__version__
