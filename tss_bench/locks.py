"""A lock that one process holds while it writes to a place; whoever comes second is refused.

May import: the standard library, filelock (inside a function, so that bad names fail fast).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def only_writer(lock: Path, refusal: str) -> Iterator[None]:
    """Hold the lock file `lock`, in a directory that is there; it is gone at the end.

    Raises ValueError with `refusal` where another process holds it, OSError where its directory
    cannot be written.
    """
    from filelock import FileLock, Timeout

    # A file that cannot be made looks like one that is held.
    tempfile.TemporaryFile(dir=lock.parent).close()
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout as error:
        raise ValueError(refusal) from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        held.release()
