"""Pinned downloads: addresses, hash check, and giving up quickly. Nothing leaves this machine."""

import contextlib
import hashlib
import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tss_bench.data import download
from tss_bench.data.download import FetchError, GitHubFile, HubFile, fetch, require_connection


@pytest.fixture(autouse=True)
def _online(monkeypatch: pytest.MonkeyPatch):
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    download._connection_failure.cache_clear()
    yield
    download._connection_failure.cache_clear()


@contextlib.contextmanager
def serving(
    status: int, body: bytes = b"", length: int | None = None
) -> Iterator[tuple[str, list[str]]]:
    """A loopback HTTP server that gives one answer; yields its address and what was asked."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            asked.append(f"{self.command} {self.path}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_GET = do_HEAD = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_github_address_is_pinned_to_the_commit():
    file = GitHubFile("owner/name", "abc123", "data/q.jsonl", sha256="0" * 64)
    assert file.url == "https://raw.githubusercontent.com/owner/name/abc123/data/q.jsonl"
    assert file.revision == "github.com/owner/name@abc123"


def test_hub_address_is_pinned_to_the_commit():
    file = HubFile("owner/name", "abc123", "all/t.parquet", sha256="0" * 64)
    assert file.url.endswith("/datasets/owner/name/resolve/abc123/all/t.parquet")
    assert file.revision == "huggingface.co/datasets/owner/name@abc123"


def github_file(monkeypatch: pytest.MonkeyPatch, address: str, sha256: str) -> GitHubFile:
    monkeypatch.setattr(GitHubFile, "url", property(lambda self: f"{address}/q.jsonl"))
    return GitHubFile("owner/name", "abc123", "q.jsonl", sha256)


def test_a_fetched_file_is_returned_when_its_hash_is_right(monkeypatch: pytest.MonkeyPatch):
    body = b'{"a": 1}\n'
    with serving(200, body) as (address, asked):
        file = github_file(monkeypatch, address, hashlib.sha256(body).hexdigest())
        assert fetch(file) == body
    assert asked == ["HEAD /", "GET /q.jsonl"]


def test_a_file_with_another_hash_is_refused(monkeypatch: pytest.MonkeyPatch):
    with serving(200, b"changed") as (address, _):
        file = github_file(monkeypatch, address, "0" * 64)
        with pytest.raises(FetchError, match=r"q\.jsonl has sha256 .* expected 0000"):
            fetch(file)


def test_a_missing_file_is_one_line(monkeypatch: pytest.MonkeyPatch):
    with serving(404) as (address, _):
        file = github_file(monkeypatch, address, "0" * 64)
        with pytest.raises(FetchError, match=r"q\.jsonl cannot be read \(Not Found\)"):
            fetch(file)


def test_any_status_is_an_answer_and_the_host_is_asked_once():
    with serving(503) as (address, asked):
        require_connection(f"{address}/one")
        require_connection(f"{address}/two")
    assert asked == ["HEAD /"]


def test_a_cut_off_transfer_is_one_line(monkeypatch: pytest.MonkeyPatch):
    with serving(200, b"short", length=50) as (address, _):
        file = github_file(monkeypatch, address, "0" * 64)
        with pytest.raises(FetchError, match=r"q\.jsonl cannot be read \(.*5 bytes read"):
            fetch(file)


def test_a_refused_connection_names_host_and_reason():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(FetchError, match=rf"127\.0\.0\.1:{port} cannot be reached \(.*refused"):
        require_connection(f"http://127.0.0.1:{port}/file")


def test_a_host_that_never_answers_costs_the_limit_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        start = time.monotonic()
        for _ in range(20):
            with pytest.raises(FetchError, match="cannot be reached"):
                require_connection(address)
        assert time.monotonic() - start < 2


def test_a_name_look_up_that_hangs_is_cut_off(monkeypatch: pytest.MonkeyPatch):
    release = threading.Event()

    def hang(*args: object, **kwargs: object) -> None:
        release.wait(30)
        raise socket.gaierror("released by the test")

    monkeypatch.setattr(download, "CONNECT_SECONDS", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", hang)
    start = time.monotonic()
    try:
        with pytest.raises(FetchError, match=r"no answer in 0\.3 s"):
            require_connection("http://host.invalid/file")
        assert time.monotonic() - start < 2
    finally:
        release.set()


def test_two_silent_hosts_cost_less_than_ten_seconds():
    assert 2 * download.CONNECT_SECONDS < 10


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"])
def test_offline_switches_are_obeyed_without_asking(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(name, "1")
    with serving(200) as (address, asked), pytest.raises(FetchError, match=f"{name} is set"):
        require_connection(address)
    assert asked == []


def test_a_hub_file_is_not_fetched_when_the_hub_is_out_of_reach(monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def local_only(self: HubFile, local_files_only: bool) -> bytes:
        assert local_files_only
        raise LocalEntryNotFoundError("not in the cache")

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(HubFile, "_fetch", local_only)
    with pytest.raises(FetchError, match="HF_HUB_OFFLINE is set"):
        fetch(HubFile("owner/name", "abc123", "t.parquet", "0" * 64))


def test_a_hub_file_in_the_hubs_own_cache_needs_no_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(HubFile, "_fetch", lambda self, local_files_only: b"rows")
    digest = hashlib.sha256(b"rows").hexdigest()
    assert fetch(HubFile("owner/name", "abc123", "t.parquet", digest)) == b"rows"


def test_a_failure_of_the_hub_client_is_one_line(monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub.errors import LocalEntryNotFoundError

    def broken(self: HubFile, local_files_only: bool) -> bytes:
        if local_files_only:
            raise LocalEntryNotFoundError("not in the cache")
        raise RuntimeError("server error\nwith a long body")

    monkeypatch.setattr(download, "require_connection", lambda url: None)
    monkeypatch.setattr(HubFile, "_fetch", broken)
    with pytest.raises(FetchError, match=r"t\.parquet cannot be read \(server error\)$"):
        fetch(HubFile("owner/name", "abc123", "t.parquet", "0" * 64))
