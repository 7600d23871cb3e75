"""EAGLE-3 heads through the adapters, in both formats, on a tiny random model.

May import: pytest, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from model_adapters.adapters import NativeEagle, TssAR, TssEagle
from model_adapters.base import SpeculativeLM
from tests import eagle3
from tests.model_adapters.conftest import make_tokenizer
from tss_bench.weights import weights_fingerprint

Build = Callable[..., SpeculativeLM]
VOCAB = len(make_tokenizer())
DRAFTS = 120


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One head on layers 1, 2 and 3, as its authors and as speculators would write it."""
    folder = tmp_path_factory.mktemp("heads")
    layers = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
    config = eagle3.official_config(VOCAB, DRAFTS, **layers)
    state = eagle3.official_state(VOCAB, DRAFTS)
    return {
        "official": eagle3.write(folder / "official", config, state, as_pickle=True),
        "speculators": eagle3.write(
            folder / "speculators", *eagle3.as_speculators(config, state, **layers)
        ),
    }


@pytest.mark.parametrize("skip", ["dense", "1", "0+3"])
def test_an_eagle_3_head_gives_the_text_of_plain_decoding(
    build: Build,
    row: Callable[..., dict[str, Any]],
    request_for: Callable[..., Any],
    heads: dict[str, Path],
    small_tree: str,
    skip: str,
) -> None:
    requests = [request_for(row(str(n), f"Satz {n} " * n), max_gen_toks=24) for n in (1, 2)]
    plain = build(TssAR, skip_layers=skip).generate_until(copy.deepcopy(requests), True)
    counts = []
    for name, tree in (("official", {}), ("speculators", {}), ("official", {"tree": small_tree})):
        lm = build(TssEagle, skip_layers=skip, draft=str(heads[name]), **tree)
        found = lm.generate_until(copy.deepcopy(requests), True)
        assert found == plain
        counts.append([text.stats[0].accept_lengths for text in found])
        assert all(text.stats[0].drafted > 0 for text in found)
    # The same head drafts the same in either format.
    assert counts[0] == counts[1]


def test_the_record_and_what_the_user_is_told(
    build: Build, heads: dict[str, Path], chat_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = build(NativeEagle, draft=str(heads["speculators"]))
    assert "trained for" not in capsys.readouterr().err
    record = lm.get_model_info()["tss_bench"]
    assert record["drafter"] == "eagle"
    assert record["draft_fingerprint"] == weights_fingerprint(heads["speculators"])
    other = chat_model.rename(chat_model.with_name("another"))
    try:
        build(NativeEagle, pretrained=str(other), draft=str(heads["speculators"]))
    finally:
        other.rename(chat_model)
    assert "trained for owner/tiny-chat, the target is another" in capsys.readouterr().err
