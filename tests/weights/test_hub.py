"""The hub through a small local imitation of its API, and its local cache when offline."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from tss_bench.weights.hub import describe_files, hub_directory, model_files, tokenizer_files
from tss_bench.weights.loading import describe, load_model, load_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(BaseHTTPRequestHandler):
    """Serves `folder` as the model owner/model; other names are missing or gated."""

    folder: Path
    fetched: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith(f"/owner/model/resolve/{COMMIT}/"):
            name = path.rsplit("/", 1)[1]
            if body:
                self.fetched.append(name)
            self._send(200, (self.folder / name).read_bytes(), body)
        elif path.startswith("/api/models/owner/consent"):
            answer = {"id": "owner/consent", "sha": COMMIT}
            siblings = [{"rfilename": "config.json"}]
            self._send(200, json.dumps({**answer, "siblings": siblings}).encode(), body)
        elif path.startswith("/owner/consent/"):
            self._send(403, b"", body, error="GatedRepo")
        elif path.startswith("/api/models/owner/model"):
            if path.endswith("/revision/nope"):
                self._send(404, b"", body, error="RevisionNotFound")
                return
            siblings = [{"rfilename": p.name} for p in sorted(self.folder.iterdir())]
            answer = {"id": "owner/model", "sha": COMMIT, "siblings": siblings}
            self._send(200, json.dumps(answer).encode(), body)
        elif "gated" in path:
            self._send(403, b"", body, error="GatedRepo")
        else:
            self._send(404, b"", body, error="RepoNotFound")

    def _send(self, status: int, data: bytes, body: bool, error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """No log lines on stderr."""


@pytest.fixture
def hub(llama_dir, tmp_path, monkeypatch) -> Iterator[type[FakeHub]]:
    handler = type("Hub", (FakeHub,), {"folder": llama_dir, "fetched": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    yield handler
    server.shutdown()
    server.server_close()


def test_describe_fetches_no_weights(hub):
    info = describe("owner/model")
    assert (info.id, info.num_layers, info.revision) == ("owner/model", 2, COMMIT)
    assert sorted(hub.fetched) == ["config.json", "tokenizer_config.json"]


def test_a_tokenizer_is_fetched_without_weights(hub):
    assert load_tokenizer("owner/model").get_vocab()["a"] == 3
    assert "model.safetensors" not in hub.fetched


def test_load_from_the_hub(hub, llama_dir):
    (llama_dir / "pytorch_model.bin").write_bytes(b"not wanted beside safetensors")
    model, tokenizer, info = load_model("owner/model", device="cpu", dtype="float32")
    assert (model.config.num_hidden_layers, info.revision) == (2, COMMIT)
    assert tokenizer.get_vocab()["b"] == 4
    assert "pytorch_model.bin" not in hub.fetched


def test_unknown_name_revision_and_gated_model(hub):
    with pytest.raises(ValueError, match="no model on the hub"):
        describe("owner/other")
    with pytest.raises(ValueError, match="has no revision 'nope'"):
        describe("owner/model", "nope")
    for name in ("owner/gated", "owner/consent"):
        with pytest.raises(ValueError, match="accept its licence"):
            describe(name)


def test_repository_without_config(hub, llama_dir):
    (llama_dir / "config.json").unlink()
    with pytest.raises(ValueError, match=r"no Transformers model.*no LoRA"):
        describe("owner/model")


def test_a_lora_on_the_hub(hub, make_lora):
    hub.folder = make_lora()
    (hub.folder / "config.json").write_text("{}")
    info = describe("owner/model")
    assert (info.id, info.num_layers) == ("owner/model", 2)
    assert info.revision == describe(str(hub.folder)).revision
    assert load_tokenizer("owner/model").get_vocab()["a"] == 3
    model, _, loaded = load_model("owner/model", device="cpu", dtype="float32")
    own = load_model(str(hub.folder), device="cpu", dtype="float32")[0]
    key = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(model.state_dict()[key], own.state_dict()[key])
    assert loaded == info
    assert set(hub.fetched) == {"adapter_config.json", "adapter_model.safetensors"}


def test_a_lora_here_of_a_base_on_the_hub(hub, make_lora):
    directory = make_lora(base="owner/model")
    assert describe(str(directory)).num_layers == 2
    assert "model.safetensors" not in hub.fetched
    assert load_model(str(directory), device="cpu")[2].id == "tiny-lora"
    path = directory / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "revision": "nope"}))
    with pytest.raises(ValueError, match=r"base model 'owner/model' .* has no revision 'nope'"):
        describe(str(directory))


def test_a_lora_and_a_whole_model_in_one_repository(hub, make_lora, llama_dir):
    for path in make_lora().glob("adapter*"):
        shutil.copy(path, llama_dir)
    with pytest.raises(ValueError, match=r"the hub's 'owner/model' holds a LoRA .* and a whole"):
        describe("owner/model")
    assert hub.fetched == []


def test_name_that_no_hub_could_have():
    with pytest.raises(ValueError, match="neither a directory nor"):
        hub_directory("bad name!", None, list)


def test_offline_uses_the_local_cache(llama_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    stored = tmp_path / "hub" / "models--owner--model"
    shutil.copytree(llama_dir, stored / "snapshots" / COMMIT)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(COMMIT)
    model, _, info = load_model("owner/model", device="cpu")
    assert (info.revision, model.config.num_hidden_layers) == (COMMIT, 2)
    assert f"using the cached commit {COMMIT}" in capsys.readouterr().err


def test_offline_a_lora_comes_from_the_local_cache(make_lora, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    stored = tmp_path / "hub" / "models--owner--lora"
    directory = make_lora()
    shutil.copytree(directory, stored / "snapshots" / COMMIT)
    (stored / "refs").mkdir()
    (stored / "refs" / "main").write_text(COMMIT)
    info = describe("owner/lora")
    assert (info.id, info.revision) == ("owner/lora", describe(str(directory)).revision)


def test_which_files_are_fetched():
    names = [
        "README.md",
        "config.json",
        "consolidated.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "original/model.safetensors",
        "pytorch_model.bin",
        "tokenizer.model",
        "tokenizer_config.json",
    ]
    assert describe_files(names) == ["config.json", "tokenizer_config.json"]
    assert model_files(names) == [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.model",
        "tokenizer_config.json",
    ]
    assert tokenizer_files(names) == ["tokenizer.model", "tokenizer_config.json"]
    assert model_files(["config.json", "pytorch_model.bin"]) == ["config.json", "pytorch_model.bin"]
