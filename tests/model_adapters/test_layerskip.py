"""Self-speculation and early exit through the adapters, on a tiny random model.

May import: pytest, lm_eval, model_adapters, tss_bench.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from model_adapters.adapters import ADAPTERS, TssAR
from model_adapters.arguments import AdapterError, Arguments
from model_adapters.base import SpeculativeLM
from model_adapters.layerskip import EarlyExit, NativeLayerSkip, TssLayerSkip, exit_layer
from tests.model_adapters.test_generation import decode, hf_ids
from tss_bench import bench
from tss_bench.decoding.drafters.layerskip import LayerSkip
from tss_bench.weights import ModelInfo

Build = Callable[..., SpeculativeLM]
Row = Callable[..., dict[str, Any]]
RequestFor = Callable[..., Instance]


def info(model: str, layers: int) -> ModelInfo:
    return ModelInfo(model, layers, "0", False, "llama", 8, 8, 64)


@pytest.mark.parametrize("skip", ["dense", "1", "0+3", "2+3"])
@pytest.mark.parametrize("scope", ["verify", "all"])
def test_self_speculation_gives_the_text_of_plain_decoding(
    build: Build, row: Row, request_for: RequestFor, skip: str, scope: str
) -> None:
    requests = [request_for(row(str(n), f"Satz {n} " * n), max_gen_toks=16) for n in (1, 3)]
    given = {"skip_layers": skip, "scope": scope}
    plain = build(TssAR, **given).generate_until(copy.deepcopy(requests), True)
    spoken = build(TssLayerSkip, exit_layer=2, num_speculations=3, **given)
    found = spoken.generate_until(copy.deepcopy(requests), True)
    assert found == plain
    assert [text.ids for text in found] == [text.ids for text in plain]
    assert sum(text.stats[0].drafted for text in found) > 0


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, (1, 6, 0.0)),
        ({"exit_layer": 3, "num_speculations": 2}, (3, 2, 0.0)),
        ({"num_speculations": "auto"}, (1, 20, 0.4)),
        ({"num_speculations": "auto", "draft_confidence": 0.7}, (1, 20, 0.7)),
        ({"draft_confidence": "0.5"}, (1, 6, 0.5)),
    ],
)
def test_sizes_are_read_recorded_and_used(
    build: Build, given: dict[str, Any], sizes: tuple[int, int, float]
) -> None:
    lm = build(NativeLayerSkip, **given)
    record = lm.get_model_info()["tss_bench"]
    names = ("exit_layer", "num_speculations", "draft_confidence")
    assert tuple(record[name] for name in names) == sizes
    assert (record["drafter"], record["max_nodes"]) == ("layerskip", sizes[1] + 1)
    assert isinstance(lm.drafter, LayerSkip)
    assert lm.drafter.exit_layer == sizes[0]


@pytest.mark.parametrize(
    ("model", "layers", "expected"),
    [
        ("facebook/layerskip-llama3.2-1B", 16, 4),
        ("facebook/layerskip-llama2-13B", 40, 8),
        ("facebook/layerskip-llama2-70B", 80, 10),
        ("some/other-7B", 32, 8),
        ("some/tiny", 2, 1),
    ],
)
def test_the_exit_layer_is_known_or_a_quarter(model: str, layers: int, expected: int) -> None:
    assert exit_layer(Arguments(), info(model, layers)) == expected
    given = replace(Arguments(), exit_layer=layers - 1)
    assert exit_layer(given, info(model, layers)) == layers - 1


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("adapter", "given", "message"),
    [
        (NativeLayerSkip, {"exit_layer": 4}, "exit_layer=4 is out of range: tiny-chat has 4 layer"),
        (EarlyExit, {"exit_layer": 9}, "so it must be 1 to 3"),
        (TssLayerSkip, {"exit_layer": 0}, "exit_layer must be a whole number of at least 1, got 0"),
        (NativeLayerSkip, {"num_speculations": "many"}, "must be auto or a whole number of at le"),
        (NativeLayerSkip, {"num_speculations": 0}, "num_speculations must be auto or a whole"),
        (NativeLayerSkip, {"draft_confidence": 1.5}, "draft_confidence must be a probability, 0"),
        (NativeLayerSkip, {"draft_confidence": True}, "must be a probability, 0 to 1, got True"),
        (NativeLayerSkip, {"skip_layers": 1}, "takes no skip_layers; use tss_layerskip"),
        (EarlyExit, {"skip_layers": 1}, "runs the first exit_layer layers alone and takes no skip"),
        (EarlyExit, {"router": "knn"}, "takes no router; use tss_ar with router"),
        (EarlyExit, {"scope": "verify"}, "argument 'scope' has no meaning for early_exit"),
        (EarlyExit, {"num_speculations": 3}, "'num_speculations' has no meaning for early_exit"),
        (TssAR, {"exit_layer": 2}, "argument 'exit_layer' has no meaning for tss_ar"),
    ],
)
def test_bad_input_is_refused_before_weights_are_loaded(
    chat_model: Path, adapter: type[SpeculativeLM], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(AdapterError, match=re.escape(message)):
        adapter(pretrained=str(chat_model), **given)


def test_one_layer_has_no_exit() -> None:
    with pytest.raises(AdapterError, match="some/flat has one layer, so there is no early exit"):
        exit_layer(Arguments(), info("some/flat", 1))


def test_early_exit_is_the_model_without_its_later_blocks_and_says_that_it_is_lossy(
    build: Build,
    row: Row,
    request_for: RequestFor,
    chat_model: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lm = build(EarlyExit, exit_layer=2)
    (answer,) = lm.generate_until([request_for(row("a", "Guten Morgen"))], disable_tqdm=True)
    prompt = lm.tok_encode("<s><|user|>Guten Morgen<|end|><|assistant|>")
    assert answer == decode(lm, hf_ids(chat_model, prompt, 8, removed=(2, 3)))
    assert answer != decode(lm, hf_ids(chat_model, prompt, 8))
    assert set(answer.stats[0].accept_lengths) == {1}

    assert answer.config["skip"] == [2, 3]
    assert answer.config["scope"] == "all"
    assert answer.config["why"] == "early exit after 2 of 4 layers, lossy"
    said = capsys.readouterr().err
    assert "early_exit: early exit after 2 of 4 layers, lossy: nothing verifies" in said
    record = lm.get_model_info()["tss_bench"]
    assert record["drafter"] == "early exit (lossy)"
    assert (record["exit_layer"], record["scope"]) == (2, "all")
    assert lm.label == "early_exit (lossy)"
    lines = bench.machine({"early_exit": lm}).splitlines()
    assert lines[1] == "early_exit (lossy): protocol strict, scope all, skips {2,3}"


def test_a_likelihood_is_that_of_the_early_exit(build: Build, row: Row) -> None:
    doc = row("a", "Guten Morgen", style="completion")
    ask = Instance("loglikelihood", doc, ("Guten", " Morgen"), 0, ("specbench_qa", 0, 1))
    early = build(EarlyExit, exit_layer=1).loglikelihood([ask], True)
    sparse = build(TssAR, skip_layers="1+2+3").loglikelihood([ask], True)
    dense = build(TssAR, skip_layers="dense").loglikelihood([ask], True)
    assert early == sparse != dense


def test_lm_eval_knows_them_by_name() -> None:
    for adapter in (NativeLayerSkip, TssLayerSkip, EarlyExit):
        assert ADAPTERS[adapter.name] is adapter
        assert not (adapter.sparse and adapter is EarlyExit)
    assert NativeLayerSkip.side_by_side is TssLayerSkip.side_by_side is False
    assert TssAR.side_by_side is EarlyExit.side_by_side is True
