"""Directories that appear in the user's cache whole or not at all.

A directory is built beside its final place under a file lock and renamed when done, with a
manifest of its files and sizes; whatever is torn or of another key is built anew.
May import: the standard library, filelock, tss_bench.paths.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from tss_bench.paths import CACHE_VARIABLE

MANIFEST = "tss_bench_source.json"


class WeightsUnavailable(RuntimeError):
    """Weights could not be fetched, stored or checked; the message says what to do."""


def say(message: str) -> None:
    """One line for the user, on stderr so that tables and JSON on stdout stay clean."""
    print(f"tss_bench: {message}", file=sys.stderr, flush=True)


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest of a finished directory; None if it is absent, torn or files are missing."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text("utf-8"))
        sizes = manifest["files"]
        whole = all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if whole and sizes else None


def build_once(directory: Path, key: dict[str, Any], build: Callable[[Path], None]) -> Path:
    """Return `directory`, filled by `build(empty_dir)` unless it is already whole for `key`.

    Two processes do not build at once: the second waits and takes the first one's result.
    Raises WeightsUnavailable if the cache cannot be written.
    """
    if _is_current(directory, key):
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / f"{directory.name}.lock"):
            if not _is_current(directory, key):
                _build(directory, key, build)
    except OSError as error:
        raise WeightsUnavailable(
            f"cannot prepare {directory} in the cache: {error}; if the disk is full or may not be "
            f"written, free some space or set {CACHE_VARIABLE} to another directory"
        ) from error
    return directory


def _is_current(directory: Path, key: dict[str, Any]) -> bool:
    manifest = read_manifest(directory)
    return manifest is not None and manifest.get("key") == key


def _build(directory: Path, key: dict[str, Any], build: Callable[[Path], None]) -> None:
    prefix = f".{directory.name}.building-"
    for left_over in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=directory.parent))
    try:
        build(work)
        files = {p.relative_to(work).as_posix(): p.stat().st_size for p in _files(work)}
        manifest = json.dumps({"key": key, "files": files}, indent=1, sort_keys=True)
        (work / MANIFEST).write_text(manifest, "utf-8")
        work.chmod(0o755)
        if directory.exists():
            shutil.rmtree(directory)
        work.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is preparing {path.stem}; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
