"""The adapters of draft models and of prompt lookup.

May import: pytest, torch, lm_eval, transformers, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import PreTrainedTokenizerFast

from model_adapters.adapters import TssAR
from model_adapters.arguments import AdapterError
from model_adapters.base import SpeculativeLM
from model_adapters.draft_model import NativeDraftModel, TssDraftModel
from model_adapters.prompt_lookup import NativePromptLookup, TssPromptLookup
from tests.model_adapters.conftest import save_model
from tss_bench.decoding.drafters.base import Prompt
from tss_bench.decoding.drafters.draft_model import DraftModel
from tss_bench.weights import weights_fingerprint

Build = Callable[..., SpeculativeLM]
Row = Callable[..., dict[str, Any]]
RequestFor = Callable[..., Instance]


@pytest.mark.parametrize("skip", ["dense", "0+3"])
def test_both_give_the_text_of_plain_decoding(
    build: Build, row: Row, request_for: RequestFor, draft_model: Path, skip: str
) -> None:
    requests = [request_for(row(str(n), f"Satz {n} " * n), max_gen_toks=24) for n in (1, 3)]
    plain = build(TssAR, skip_layers=skip).generate_until(copy.deepcopy(requests), True)
    for lm in (
        build(TssPromptLookup, skip_layers=skip),
        build(TssDraftModel, skip_layers=skip, draft=str(draft_model)),
    ):
        found = lm.generate_until(copy.deepcopy(requests), True)
        assert found == plain
        assert sum(answer.stats[0].drafted for answer in found) > 0


def test_the_target_drafts_for_itself_without_a_miss(
    build: Build, row: Row, request_for: RequestFor, chat_model: Path
) -> None:
    lm = build(NativeDraftModel, draft=str(chat_model), num_draft_tokens=3)
    (answer,) = lm.generate_until([request_for(row("a", "Hallo"), max_gen_toks=13)], True)
    (stats,) = answer.stats
    assert stats.accepted == stats.drafted
    assert set(stats.accept_lengths[:-1]) == {4}


def test_the_sizes_are_the_arguments(build: Build, draft_model: Path) -> None:
    assert build(NativePromptLookup).drafter.max_nodes == 1 + 10
    assert build(NativePromptLookup, num_pred_tokens=4).drafter.max_nodes == 1 + 4
    assert build(NativeDraftModel, draft=str(draft_model)).drafter.max_nodes == 1 + 5


@pytest.mark.parametrize(("given", "drafts"), [(1, (7, 1, 2)), (3, (9, 5, 2, 7, 1, 2))])
def test_the_longest_ngram_is_the_argument(
    build: Build, given: int, drafts: tuple[int, ...]
) -> None:
    drafter = build(NativePromptLookup, max_ngram_size=given).drafter
    none = torch.zeros(0)
    drafter.begin(Prompt([1, 2, 9, 5, 2, 7, 1], none, lambda hidden: hidden, 2))
    assert drafter.propose(2, 99).tokens == (2, *drafts)


def test_a_draft_runs_as_the_target_does(build: Build, draft_model: Path) -> None:
    lm = build(NativeDraftModel, draft=str(draft_model), dtype="bfloat16")
    assert isinstance(lm.drafter, DraftModel)
    assert lm.drafter.model.dtype == lm.target.dtype
    assert lm.drafter.model.device == lm.target.device


def test_a_draft_is_recorded_by_its_content(build: Build, draft_model: Path) -> None:
    record = build(NativeDraftModel, draft=str(draft_model)).get_model_info()["tss_bench"]
    assert record["draft_model"] == "tiny-draft"
    assert record["draft_fingerprint"] == weights_fingerprint(draft_model)
    assert (record["drafter"], record["num_draft_tokens"]) == ("draft_model", 5)
    lookup = build(NativePromptLookup).get_model_info()["tss_bench"]
    assert (lookup["max_ngram_size"], lookup["num_pred_tokens"]) == (3, 10)


@pytest.mark.parametrize("rows", [-6, 10])
def test_a_matrix_of_another_size_with_the_same_tokenizer_drafts(
    build: Build, row: Row, request_for: RequestFor, chat_model: Path, tmp_path: Path, rows: int
) -> None:
    size = len(build(TssAR).tokenizer) + rows
    draft = save_model(tmp_path / "padded", None, layers=1, vocab_size=size)
    requests = [request_for(row("a", "Guten Morgen, Welt"), max_gen_toks=24)]
    plain = build(TssAR).generate_until(copy.deepcopy(requests), True)
    assert build(NativeDraftModel, draft=str(draft)).generate_until(requests, True) == plain


def test_a_draft_of_a_short_context_is_told(
    build: Build,
    row: Row,
    request_for: RequestFor,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    draft = save_model(tmp_path / "short", None, layers=1, max_position_embeddings=32)
    requests = [request_for(row("a", "Hallo " * 8), max_gen_toks=24)]
    lm = build(NativeDraftModel, draft=str(draft))
    told = "draft short has a context of 32 tokens, the target 256: beyond it nothing is drafted"
    assert told in capsys.readouterr().err
    (answer,) = lm.generate_until(copy.deepcopy(requests), True)
    assert answer == build(TssAR).generate_until(requests, True)[0]
    assert answer.stats[0].drafted == 0


@pytest.mark.usefixtures("no_loading")
class TestBadInput:
    """Each is refused before any weights are loaded."""

    def test_no_draft_at_all(self, chat_model: Path) -> None:
        for adapter in (NativeDraftModel, TssDraftModel):
            with pytest.raises(AdapterError) as caught:
                adapter(pretrained=str(chat_model))
            line = str(caught.value)
            assert line.startswith(f"{adapter.name} needs draft=MODEL: a hub id or a directory")
            assert "with the tokenizer of tiny-chat" in line
            assert "tss-bench export" in line

    def test_another_tokenizer(
        self,
        chat_model: Path,
        draft_model: Path,
        tokenizer: PreTrainedTokenizerFast,
        tmp_path: Path,
    ) -> None:
        draft = save_model(tmp_path / "other", None, layers=1)
        other = copy.deepcopy(tokenizer)
        other.add_tokens(["Hallo"])
        other.save_pretrained(draft)
        with pytest.raises(AdapterError, match=r"'other' has another tokenizer .*'tiny-chat'.*use"):
            NativeDraftModel(pretrained=str(chat_model), draft=str(draft))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"draft": "./no-draft"}, "'./no-draft' does not exist"),
            ({"draft_revision": "v2"}, "revision='v2' does not apply"),
            ({"num_draft_tokens": 0}, "num_draft_tokens must be a whole number of at least 1"),
            ({"total_token": 8}, "'total_token' has no meaning for native_draft_model"),
        ],
    )
    def test_bad_arguments(
        self, chat_model: Path, draft_model: Path, given: dict[str, Any], message: str
    ) -> None:
        arguments = {"pretrained": str(chat_model), "draft": str(draft_model), **given}
        with pytest.raises(AdapterError, match=message):
            NativeDraftModel(**arguments)

    @pytest.mark.parametrize("name", ["max_ngram_size", "num_pred_tokens"])
    def test_bad_sizes_of_a_lookup(self, name: str) -> None:
        with pytest.raises(AdapterError, match=f"{name} must be a whole number of at least 1"):
            NativePromptLookup(**{name: 0})
        with pytest.raises(AdapterError, match="'draft' has no meaning for native_prompt_lookup"):
            NativePromptLookup(draft="x")
