"""Where the lm-eval task folder lies: beside the package in a checkout, inside it in a wheel.

May import: the standard library only (layer L0 of the design).
"""

from __future__ import annotations

from pathlib import Path

_MARK = "specbench_translation.yaml"
_PACKAGE = Path(__file__).resolve().parent


def task_directory(package: Path = _PACKAGE) -> Path:
    """The folder with the YAML files of our tasks, for `TaskManager(include_path=...)`.

    `package` is the folder of the `tss_bench` package. Raises FileNotFoundError if neither
    place holds the tasks.
    """
    places = (package / "tasks", package.parent / "tasks")
    for place in places:
        if (place / _MARK).is_file():
            return place
    raise FileNotFoundError(
        f"the task files of tss_bench are missing: no {_MARK} in {places[0]} or {places[1]}; "
        f"install the package again"
    )
