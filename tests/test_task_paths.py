"""The one function that finds the task folder, in a checkout and in a wheel."""

from pathlib import Path

import pytest

from tss_bench.task_paths import task_directory


def lay(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "specbench_translation.yaml").write_text("task: specbench_translation\n")
    return folder


def test_this_installation_has_the_tasks():
    assert (task_directory() / "loading.py").is_file()


def test_a_checkout_has_them_beside_the_package(tmp_path: Path):
    (tmp_path / "tss_bench").mkdir()
    beside = lay(tmp_path / "tasks")
    assert task_directory(tmp_path / "tss_bench") == beside


def test_a_wheel_has_them_inside_the_package(tmp_path: Path):
    inside = lay(tmp_path / "tss_bench" / "tasks")
    lay(tmp_path / "tasks")
    assert task_directory(tmp_path / "tss_bench") == inside


def test_another_packages_tasks_folder_is_not_taken(tmp_path: Path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "other.yaml").write_text("task: other\n")
    with pytest.raises(FileNotFoundError, match="task files of tss_bench are missing"):
        task_directory(tmp_path / "tss_bench")
