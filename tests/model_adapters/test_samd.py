"""The SAM-Decoding adapters: arguments, fallbacks, the corpus file, answers in any order.

May import: pytest, torch, transformers, lm_eval, model_adapters, tss_bench.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from transformers import PreTrainedTokenizerFast

from model_adapters.adapters import ADAPTERS, TssAR
from model_adapters.arguments import AdapterError
from model_adapters.base import SpeculativeLM
from model_adapters.samd import NativeSamd, TssSamd
from tss_bench.batched_answers import answers_of
from tss_bench.decoding.drafters.static_automaton import StaticAutomaton
from tss_bench.decoding.drafters.suffix_automaton import SamDecoding
from tss_bench.types import SkipSet
from tss_bench.weights import vocabulary_digest

Build = Callable[..., SpeculativeLM]
Row = Callable[..., dict[str, Any]]
RequestFor = Callable[..., Instance]
TEXT = "Drei mal drei ist neun. Drei mal vier ist zwölf."


@pytest.fixture(scope="module")
def sam(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A corpus of one sentence for the tiny models."""
    path = tmp_path_factory.mktemp("sam") / "tiny.sam"
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    source = {"pretrained": "tiny", "vocabulary": vocabulary_digest(tokenizer)}
    StaticAutomaton.build([ids], source).save(path)
    return str(path)


@pytest.fixture
def requests(row: Row, request_for: RequestFor) -> list[Instance]:
    texts = ("Eins zwei, eins zwei", TEXT, "x", "Drei mal drei")
    rows = [row(str(place), text) for place, text in enumerate(texts)]
    return [request_for(one, max_gen_toks=24) for one in rows]


def counts(answers: list[Any]) -> list[Any]:
    return [(text.ids, text.stats[0].accept_lengths, text.stats[0].drafted) for text in answers]


def test_they_are_known_by_name() -> None:
    assert ADAPTERS["native_samd"] is NativeSamd
    assert ADAPTERS["tss_samd"] is TssSamd


@pytest.mark.parametrize("skip", ["dense", "1+3"])
@pytest.mark.parametrize("fallback", ["token_recycling", "eagle"])
def test_answers_are_those_of_plain_decoding_in_any_order(
    build: Build,
    requests: list[Instance],
    eagle_head: Path,
    small_tree: str,
    sam: str,
    skip: str,
    fallback: str,
) -> None:
    own = {"tree": small_tree, "len_threshold": 2, "len_bias": 0, "n_predicts": 6, "sam": sam}
    if fallback == "eagle":
        own["draft"] = str(eagle_head)
    lm = build(TssSamd, skip_layers=skip, fallback=fallback, **own)
    assert isinstance(lm.drafter, SamDecoding)
    assert lm.drafter.max_nodes == 7
    forward = lm.generate_until(copy.deepcopy(requests), True)
    assert forward == build(TssAR, skip_layers=skip).generate_until(copy.deepcopy(requests), True)
    assert all(text.stats[0].drafted for text in forward)
    backward = lm.generate_until(copy.deepcopy(requests[::-1]), True)
    assert counts(backward[::-1]) == counts(forward)


def test_the_record_tells_all_that_an_answer_depends_on(
    build: Build, small_tree: str, eagle_head: Path, sam: str
) -> None:
    plain = build(NativeSamd, tree=small_tree).get_model_info()["tss_bench"]
    assert (plain["drafter"], plain["fallback"], plain["sam"]) == ("samd", "token_recycling", None)
    assert (plain["n_predicts"], plain["len_threshold"], plain["len_bias"]) == (40, 5, 5)
    assert (plain["max_nodes"], plain["sam_fingerprint"]) == (41, None)
    fixed = build(NativeSamd, fallback="eagle", draft=str(eagle_head), tree=small_tree, sam=sam)
    record = fixed.get_model_info()["tss_bench"]
    assert record["sam_fingerprint"] == StaticAutomaton.load(Path(sam)).fingerprint
    assert record["tree_shape"] == plain["tree_shape"]
    assert record["draft_fingerprint"]
    dynamic = build(NativeSamd, fallback="eagle", draft=str(eagle_head), total_token=4, depth=2)
    shape = dynamic.get_model_info()["tss_bench"]["tree_shape"]
    assert shape == {"total_token": 4, "depth": 2, "top_k": 3}


def test_a_small_tree_stands_in_on_a_cpu_and_any_may_be_named(build: Build) -> None:
    tree = build(NativeSamd).get_model_info()["tss_bench"]["tree_shape"]
    named = build(NativeSamd, tree="token_recycling_8").get_model_info()["tss_bench"]
    assert named["tree_shape"] == tree
    big = build(NativeSamd, tree="token_recycling_61").drafter
    assert big.max_nodes == 61


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"n_predicts": 0}, ["n_predicts must be a whole number of at least 1, got 0"]),
        ({"len_threshold": 0}, ["len_threshold must be a whole number of at least 1"]),
        ({"len_bias": -1}, ["len_bias must be a whole number of at least 0"]),
        ({"fallback": "pld"}, ["fallback must be one of token_recycling, eagle, got 'pld'"]),
        ({"state": "run"}, ["'state' has no meaning for native_samd"]),
        ({"top_k": 2}, ["top_k is for fallback=eagle, here fallback=token_recycling"]),
        ({"draft": "x"}, ["draft is for fallback=eagle"]),
        ({"tree": "token_recycle_4_16"}, ["did you mean 'token_recycle_4_15'"]),
        ({"fallback": "eagle"}, ["draft=", "tiny-chat"]),
        ({"fallback": "eagle", "draft": "/no/head"}, ["/no/head", "draft="]),
        ({"fallback": "eagle", "tree": "token_recycling_8", "depth": 2}, ["one or the other"]),
        ({"sam": "/no/corpus.sam"}, ["no file /no/corpus.sam", "tss-bench data build-sam"]),
    ],
)
def test_bad_arguments_end_in_one_line_before_loading(
    build: Build, given: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(AdapterError) as caught:
        build(NativeSamd, **given)
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.usefixtures("no_loading")
def test_a_corpus_of_another_tokenizer_is_refused(
    build: Build, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    other = copy.deepcopy(tokenizer)
    other.add_tokens(["Hallo"])
    path = tmp_path / "other.sam"
    source = {"pretrained": "other/model", "vocabulary": vocabulary_digest(other)}
    StaticAutomaton.build([[1, 2]], source).save(path)
    with pytest.raises(AdapterError, match=r"tokenizer of 'other/model', and target 'tiny-chat'"):
        build(NativeSamd, sam=str(path))
    source["vocabulary"] = vocabulary_digest(tokenizer)
    StaticAutomaton.build([[1, len(tokenizer)]], source).save(path)
    with pytest.raises(AdapterError, match=rf"holds id {len(tokenizer)}, but target"):
        build(NativeSamd, sam=str(path))
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(AdapterError, match=r"other.sam is torn"):
        build(NativeSamd, sam=str(path))


HUGE = 10**9
DRAFTERS: dict[str, dict[str, Any]] = {
    "tss_samd": {"n_predicts": HUGE},
    "tss_prompt_lookup": {"num_pred_tokens": HUGE, "max_ngram_size": HUGE},
    "tss_draft_model": {"num_draft_tokens": HUGE},
    "tss_layerskip": {"num_speculations": HUGE, "exit_layer": 2},
    "tss_eagle": {"total_token": HUGE},
}


@pytest.mark.parametrize("protocol", ["strict", "paper"])
@pytest.mark.parametrize("name", list(DRAFTERS))
def test_a_size_beyond_the_context_needs_no_memory(
    build: Build,
    requests: list[Instance],
    eagle_head: Path,
    draft_model: Path,
    name: str,
    protocol: str,
) -> None:
    """The cache of an answer has room for the largest tree: 10**9 nodes would not fit."""
    heads = {"tss_eagle": eagle_head, "tss_draft_model": draft_model}
    draft = {"draft": str(heads[name])} if name in heads else {}
    lm = build(ADAPTERS[name], skip_layers="1", protocol=protocol, **DRAFTERS[name], **draft)
    assert lm.drafter.max_nodes <= lm.max_length + 1
    (answer,) = lm.generate_until(copy.deepcopy(requests[:1]), True)
    (plain,) = build(TssAR, skip_layers="1").generate_until(copy.deepcopy(requests[:1]), True)
    assert answer.ids[0][: len(plain.ids[0])] == plain.ids[0]
    # The batched answers reserve rows for the same trees.
    jobs = lm.jobs(copy.deepcopy(requests[:1]))
    ((_, other),) = answers_of(lm, jobs, "test")([(0, SkipSet.of([1], lm.target.num_layers))])
    assert other.ids == answer.ids
