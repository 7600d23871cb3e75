"""Files that are written whole or not at all, so that no reader ever sees half of one.

May import: the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file beside `path`, then put it in the place of `path` in one step.

    What was at `path` stays where `write` raises, and nothing else is left behind. The file
    beside it carries the process's number: two processes may write the same path. Raises
    OSError naming a file for an OSError or a RuntimeError (torch's, for a full disk) of `write`.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        write(part)
        part.replace(path)
    except (OSError, RuntimeError) as error:
        if getattr(error, "filename", None) is not None:
            raise
        raise OSError(f"cannot write {path}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def remove_stale_parts(directory: Path) -> None:
    """Remove what `replace` left beside its files in `directory` where its process was killed.

    The file of a process that runs stays, also where a new one has got an old one's number.
    """
    for part in directory.glob("*.part"):
        number = part.name.split(".")[-2]
        if number.isdecimal() and not _is_running(int(number)):
            part.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    if os.name == "nt":  # there signal 0 is Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def replace_text(path: Path, text: str) -> None:
    """Write a file of UTF-8 text in one step."""
    replace(path, lambda part: part.write_text(text, encoding="utf-8"))
