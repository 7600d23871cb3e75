"""The EAGLE head that comes with the package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tss_bench.domains import DOMAINS
from tss_bench.weights import DEFAULT_MODEL, describe, load_eagle_head, resolve_eagle
from tss_bench.weights.eagle import packaged_heads

HEADS = sorted(path for path in packaged_heads().iterdir() if path.is_dir())
LIMIT = 12_000_000


def test_the_default_target_has_a_head() -> None:
    assert resolve_eagle("auto", describe(DEFAULT_MODEL)) in HEADS


@pytest.mark.parametrize("path", HEADS, ids=lambda path: path.name)
def test_a_packaged_head_fits_its_target_and_is_small(path: Path) -> None:
    target = describe(path.name)
    head = load_eagle_head(
        path, target_hidden_size=target.hidden_size, target_vocab_size=target.vocab_size
    )
    assert (path / "model.safetensors").stat().st_size < LIMIT
    rows = head.draft_rows
    assert rows is not None
    assert len(torch.unique(rows)) == head.config.draft_vocab_size


@pytest.mark.parametrize("path", HEADS, ids=lambda path: path.name)
def test_a_packaged_head_says_what_made_it(path: Path) -> None:
    record = json.loads((path / "provenance.json").read_text("utf-8"))
    assert record["target"] == path.name
    assert record["command"].startswith("tss-bench train eagle ")
    assert record["settings"]["seed"] is not None
    assert record["data"]["answer_tokens"] > 100_000
    assert record["evaluations"][-1]["loss"] < record["evaluations"][0]["loss"]
    assert record["measured"]["accept_len"].keys() >= {"specbench_translation", "specbench_qa"}
    # The text kept away from the official rows of every domain, not from the mini set alone.
    official = {e["domain"] for e in record["excluded_evaluation_rows"] if e["kind"] == "official"}
    assert official == set(DOMAINS)
