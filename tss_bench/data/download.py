"""Fetch the official files: pinned by revision and sha256, quick to give up when offline.

May import: the standard library, tss_bench.data.rows; huggingface_hub inside functions
(layer L1 of the design).
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import os
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

CONNECT_SECONDS = 4.0
"""How long a host gets to answer at all. Two hosts are asked, so offline costs under 10 s."""

STALL_SECONDS = 10.0
"""How long a started transfer may stand still."""

_TRANSFER_ERRORS = (OSError, http.client.HTTPException)
_OFFLINE_SWITCHES = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


class FetchError(RuntimeError):
    """A file that could not be fetched; one line saying why."""


@dataclass(frozen=True)
class GitHubFile:
    """A file of a GitHub repository at one commit."""

    repository: str
    commit: str
    path: str
    sha256: str

    @property
    def url(self) -> str:
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"

    @property
    def revision(self) -> str:
        return f"github.com/{self.repository}@{self.commit}"

    def read(self) -> bytes:
        """The file's bytes, not yet checked. Raises FetchError."""
        require_connection(self.url)
        try:
            with urllib.request.urlopen(self.url, timeout=STALL_SECONDS) as response:
                data: bytes = response.read()
        except _TRANSFER_ERRORS as error:
            raise FetchError(f"{self.url} cannot be read ({_reason(error)})") from None
        return data


@dataclass(frozen=True)
class HubFile:
    """A file of a data set on the Hugging Face hub at one commit."""

    repository: str
    commit: str
    path: str
    sha256: str

    @property
    def url(self) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(self.repository, self.path, repo_type="dataset", revision=self.commit)

    @property
    def revision(self) -> str:
        return f"huggingface.co/datasets/{self.repository}@{self.commit}"

    def read(self) -> bytes:
        """The file's bytes, from the hub's own cache if they are there. Raises FetchError."""
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            return self._fetch(local_files_only=True)
        except LocalEntryNotFoundError:
            require_connection(self.url)
        try:
            return self._fetch(local_files_only=False)
        except Exception as error:  # the hub client raises httpx, OS and its own errors
            raise FetchError(f"{self.url} cannot be read ({_reason(error)})") from None

    def _fetch(self, local_files_only: bool) -> bytes:
        from huggingface_hub import hf_hub_download

        found = hf_hub_download(
            self.repository,
            self.path,
            repo_type="dataset",
            revision=self.commit,
            etag_timeout=STALL_SECONDS,
            local_files_only=local_files_only,
        )
        return Path(found).read_bytes()


RemoteFile = GitHubFile | HubFile


def fetch(file: RemoteFile) -> bytes:
    """The bytes of a pinned file. Raises FetchError: out of reach, or another sha256."""
    data = file.read()
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise FetchError(f"{file.url} has sha256 {found}, expected {file.sha256}")
    return data


def require_connection(url: str) -> None:
    """Raises FetchError unless the host of `url` answers; asked once a process."""
    switch = next((name for name in _OFFLINE_SWITCHES if _is_set(name)), None)
    if switch:
        raise FetchError(f"{switch} is set, so nothing is downloaded")
    parts = urlsplit(url)
    reason = _connection_failure(f"{parts.scheme}://{parts.netloc}/", CONNECT_SECONDS)
    if reason:
        raise FetchError(f"{parts.netloc} cannot be reached ({reason})")


@functools.cache
def _connection_failure(address: str, seconds: float) -> str:
    """Why `address` does not answer within `seconds`; empty if it does.

    Any HTTP status is an answer. The question runs in a thread of its own because looking up
    a host name knows no time limit.
    """
    answers: list[str] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=seconds):
                answers.append("")
        except urllib.error.HTTPError:
            answers.append("")
        except _TRANSFER_ERRORS as error:
            answers.append(_reason(error))

    thread = threading.Thread(target=ask, name="tss_bench-connection-check", daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else f"no answer in {seconds:g} s"


def _is_set(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in {"1", "true", "yes", "on"}


def _reason(error: BaseException) -> str:
    """An error in one short line."""
    cause = getattr(error, "reason", None) or error
    text = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    return str(text).strip().splitlines()[0][:160]
