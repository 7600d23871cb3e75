"""An append-only file of JSON lines that survives a kill, open for one process at a time.

May import: filelock, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from filelock import FileLock, Timeout

from tss_bench.weights.cache import say


class JsonLines:
    """The file at `path`; a context manager that reads what is there, then appends.

    Every line, read or written, goes to `take`, which may keep it and raises ValueError,
    KeyError or TypeError for a line that is none of its own; `kind` is what messages call a
    line. A last line that a kill left torn is cut off, with a warning. Raises ValueError where
    another process writes to the directory and for a line that `take` refuses.
    """

    def __init__(self, path: Path, take: Callable[[dict[str, Any]], None], kind: str) -> None:
        self.path = path
        self._take = take
        self._kind = kind
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))
        self._file: IO[str] | None = None

    def __enter__(self) -> Self:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"another process writes to {self.path.parent}; wait for it or give another --out"
            ) from None
        try:
            self._read()
            self._file = self.path.open("a", encoding="utf-8")
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.release()

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one line; it is on its way to the disk when this returns."""
        assert self._file is not None, "use the file in a with statement"
        text = json.dumps(line, ensure_ascii=False)
        self._file.write(text + "\n")
        self._file.flush()
        # Read back, so that a line is the same whether this run made it or an earlier one.
        self._take(json.loads(text))

    def _read(self) -> None:
        if not self.path.is_file():
            return
        data = self.path.read_bytes()
        *lines, torn = data.split(b"\n")
        if torn:
            say(f"the last line of {self.path} is torn: it is dropped and computed again")
            with self.path.open("r+b") as file:
                file.truncate(len(data) - len(torn))
        for number, line in enumerate(lines, 1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {self.path} is no {self._kind}; delete the line or "
                    f"give another --out"
                ) from error
