"""Files written in one step.

May import: pytest, tss_bench.files and the standard library.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tss_bench.files import remove_stale_parts, replace, replace_text


def test_a_text_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    for text in ("first, longer", "zweite é\n"):
        replace_text(path, text)
        assert path.read_bytes() == text.encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_file_before_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text("whole", encoding="utf-8")

    def write(part: Path) -> None:
        part.write_text("ha", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "whole"
        raise OSError("disk full")

    with pytest.raises(OSError, match=re.escape(f"cannot write {path}: disk full")):
        replace(path, write)
    assert path.read_text(encoding="utf-8") == "whole"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_of_torch_means_that_the_file_cannot_be_written(tmp_path: Path) -> None:
    def write(part: Path) -> None:
        raise RuntimeError("unexpected pos 64 vs 0")

    with pytest.raises(OSError, match=re.escape(f"cannot write {tmp_path / 'a'}: unexpected pos")):
        replace(tmp_path / "a", write)


def test_an_error_that_names_a_file_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "absent" / "a"))):
        replace_text(tmp_path / "absent" / "a", "text")


def test_only_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    # The first process belongs to another user, or to this one.
    kept = {"a.json", "notes.part", ".part", f"a.json.{os.getpid()}.part", "a.json.1.part"}
    for name in (*kept, f"a.json.{ended.pid}.part", f"a.json.{10**30}.part"):
        (tmp_path / name).touch()
    remove_stale_parts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_two_processes_write_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []
    for process in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        replace(tmp_path / "map.json", lambda part: (parts.append(part), part.touch()))
    assert parts[0] != parts[1]
    assert {part.parent for part in parts} == {tmp_path}
