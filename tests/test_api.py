"""`tss_bench.load` and `tss_bench.generate` on tiny models."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tss_bench
from model_adapters.adapters import TssTokenRecycling
from model_adapters.arguments import AdapterError
from tests.model_adapters.conftest import TEMPLATE, make_request, make_row, save_model
from tss_bench import api, weights
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.types import SkipSet

PROMPT = "Say é and €."
MODEL = "tss_token_recycling"


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-chat", TEMPLATE)


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-base", None)


@pytest.fixture(scope="module")
def given(chat_model: Path) -> dict[str, Any]:
    return {"pretrained": str(chat_model), "dtype": "float32", "device": "cpu"}


@pytest.fixture(scope="module")
def decoder(given: dict[str, Any]) -> tss_bench.Decoder:
    return tss_bench.load(MODEL, **given)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is loaded, in order; the decoder that `generate` keeps is forgotten before and after."""
    seen: list[str] = []
    load = weights.load_model

    def counted(name: str, **arguments: Any) -> Any:
        seen.append(name)
        return load(name, **arguments)

    monkeypatch.setattr("tss_bench.weights.load_model", counted)
    api._KEPT.clear()
    yield seen
    api._KEPT.clear()


def test_the_answer_is_the_adapter_s_own(decoder: tss_bench.Decoder, given: dict[str, Any]) -> None:
    own = TssTokenRecycling(**given, skip_layers="1+2")
    request = make_request(make_row("a", PROMPT), max_gen_toks=24)
    (expected,) = own.generate_until([request], True)
    answer = decoder.generate(PROMPT, max_new_tokens=24, skip_layers=[1, 2])
    assert answer.text == str(answer) == str(expected)
    assert answer.ids == expected.ids[0]
    assert answer.stats.accept_lengths == expected.stats[0].accept_lengths
    assert answer.stats.accepted == expected.stats[0].accepted
    assert (list(answer.skip), answer.why) == ([1, 2], "skip_layers={1,2}")
    # Another set is another answer; the set of one prompt is not that of the next.
    dense = decoder.generate(PROMPT, max_new_tokens=24)
    assert (dense.ids != answer.ids, list(dense.skip)) == (True, [])


def test_steps_add_up_to_the_answer(decoder: tss_bench.Decoder) -> None:
    # An answer that repeats itself, so that drafts are accepted.
    answer = decoder.generate("The sky", max_new_tokens=40, skip_layers=[3])
    first, *verified = answer.steps
    assert (len(first.ids), first.verified) == (1, False)
    assert tuple(token for step in answer.steps for token in step.ids) == answer.ids
    assert tuple(len(step.ids) for step in verified) == answer.stats.accept_lengths
    assert sum(len(step.drafts) for step in verified) == answer.stats.accepted > 0
    assert "".join(step.text for step in answer.steps) == answer.text
    assert answer.figures["accept_len"] == (len(answer.ids) - 1) / len(verified)
    assert answer.figures["tokens_per_second"] == len(answer.ids) / answer.stats.wall_s


def test_a_stream_gives_the_steps_of_the_same_answer(decoder: tss_bench.Decoder) -> None:
    whole = decoder.generate(PROMPT, max_new_tokens=24)
    stream = decoder.stream(PROMPT, max_new_tokens=24)
    steps = []
    for step in stream:
        # What the caller does between two steps is no part of the decoding.
        assert not torch.is_inference_mode_enabled()
        steps.append(step)
    assert tuple(steps) == whole.steps
    assert stream.answer.ids == whole.ids
    assert "".join(map(str, steps)) == whole.text
    # Asked for at once, the answer makes its steps itself.
    assert decoder.stream(PROMPT, max_new_tokens=24).answer.steps == whole.steps


def test_a_stream_left_open_cannot_go_on_after_another_prompt(decoder: tss_bench.Decoder) -> None:
    stream = decoder.stream(PROMPT, max_new_tokens=24)
    next(stream)
    decoder.generate(PROMPT, max_new_tokens=2)
    with pytest.raises(RuntimeError, match="another answer was begun on this decoder"):
        next(stream)
    with pytest.raises(RuntimeError, match="ended before its answer"):
        _ = stream.answer


def test_a_limit_of_zero_is_an_empty_answer(decoder: tss_bench.Decoder) -> None:
    answer = decoder.generate(PROMPT, max_new_tokens=0)
    assert (answer.text, answer.ids, answer.steps, answer.stats.stop) == ("", (), (), "length")


def test_a_stop_string_ends_the_answer(decoder: tss_bench.Decoder) -> None:
    text = decoder.generate(PROMPT, max_new_tokens=40).text
    stop = text[len(text) // 2 :][:2]
    answer = decoder.generate(PROMPT, max_new_tokens=40, stop=stop)
    assert answer.text == text[: text.index(stop)]
    assert answer.stats.stop == "stop_string"
    assert "".join(step.text for step in answer.steps) == answer.text


def test_the_seed_decides_a_sampled_answer(decoder: tss_bench.Decoder) -> None:
    first, again, other, default = (
        decoder.generate(PROMPT, max_new_tokens=12, temperature=3.0, seed=seed).ids
        for seed in (5, 5, 6, None)
    )
    assert first == again != other
    assert default == decoder.generate(PROMPT, max_new_tokens=12, temperature=3.0, seed=0).ids


def test_a_text_is_one_turn_of_a_user(decoder: tss_bench.Decoder) -> None:
    def tokens(prompt: Any, **options: Any) -> int:
        return decoder.generate(prompt, max_new_tokens=1, **options).stats.prompt_tokens

    # <s>, <|user|>, the bytes, <|end|>, <|assistant|>; as it is: <s> and the bytes.
    assert tokens("abc") == 7
    assert tokens("abc", chat=False) == 4
    assert tokens([{"role": "user", "content": "abc"}]) == 7
    system = {"role": "system", "content": "x"}
    assert tokens([system, {"role": "user", "content": "abc"}]) == 10
    # An assistant's last message is gone on with: nothing closes it.
    begun = {"role": "assistant", "content": "yz"}
    assert tokens([{"role": "user", "content": "abc"}, begun]) == 9


def test_messages_that_the_template_refuses_are_bad_input(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = api.prepare("native_ar", **given)
    template = "{{ raise_exception('system role not supported') }}"
    monkeypatch.setattr(strict.adapter.prompter._tokenizer, "chat_template", template)
    with pytest.raises(AdapterError, match="refuses the messages: system role not supported"):
        strict.generate([{"role": "system", "content": "abc"}])


def test_a_base_model_gets_the_prompt_as_it_is(base_model: Path) -> None:
    plain = tss_bench.load("native_ar", pretrained=str(base_model), dtype="float32", device="cpu")
    assert plain.generate("abc", max_new_tokens=1).stats.prompt_tokens == 4
    with pytest.raises(AdapterError, match="messages needs a chat template"):
        plain.generate([{"role": "user", "content": "abc"}])
    with pytest.raises(AdapterError, match="native_ar always runs every layer and takes"):
        plain.generate("abc", skip_layers=[1])


def test_a_task_chooses_the_set_of_its_domain(given: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    domains = {"qa": DomainConfig(SkipSet.of([1, 2], 4)), "law": DomainConfig(SkipSet.of([3], 4))}
    DomainMap("tiny-chat", "none", 4, scope="all", domains=domains).save(path)
    mapped = tss_bench.load("tss_ar", **given, domain_map=str(path))

    def chosen(**options: Any) -> tuple[list[int], str | None, str]:
        answer = mapped.generate("abc", max_new_tokens=2, **options)
        return list(answer.skip), answer.domain, answer.why

    assert chosen(task="qa") == ([1, 2], "qa", f"task qa in map {path}")
    assert chosen(task="specbench_qa")[:2] == ([1, 2], "qa")
    assert chosen(task="law")[0] == [3]
    assert chosen(task="qa", skip_layers="0")[:2] == ([0], "qa")
    assert chosen() == ([], None, f"map {path} has no set for requests without a task: dense")
    for unknown in ("summaries", "*"):
        with pytest.raises(AdapterError, match="is no domain and has no skip set"):
            chosen(task=unknown)


def test_a_second_call_uses_the_loaded_decoder(given: dict[str, Any], loads: list[str]) -> None:
    first = tss_bench.generate(PROMPT, MODEL, max_new_tokens=4, **given)
    again = tss_bench.generate(PROMPT, MODEL, max_new_tokens=8, skip_layers="1", **given)
    assert (len(first.ids), len(again.ids), list(again.skip)) == (4, 8, [1])
    assert len(loads) == 1
    tss_bench.generate(PROMPT, MODEL, max_new_tokens=4, max_length=64, **given)
    tss_bench.generate(PROMPT, "native_ar", max_new_tokens=4, **given)
    assert len(loads) == 3


def test_the_decoder_before_is_dropped_before_the_next_one_loads(
    given: dict[str, Any], loads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[tss_bench.Decoder]] = []
    alive: list[int] = []
    prepare, load = api.prepare, tss_bench.Decoder.load

    def watched(*words: Any, **arguments: Any) -> tss_bench.Decoder:
        decoder = prepare(*words, **arguments)
        made.append(weakref.ref(decoder))
        return decoder

    def counted(self: tss_bench.Decoder, *words: Any) -> tss_bench.Decoder:
        gc.collect()
        alive.append(sum(one() is not None for one in made))
        return load(self, *words)

    monkeypatch.setattr(api, "prepare", watched)
    monkeypatch.setattr(tss_bench.Decoder, "load", counted)
    for model in (MODEL, "native_ar"):
        tss_bench.generate(PROMPT, model, max_new_tokens=2, **given)
    assert (len(loads), alive) == (2, [1, 1])


def test_a_decoder_may_share_the_target_of_another(
    decoder: tss_bench.Decoder, given: dict[str, Any], loads: list[str]
) -> None:
    plain = api.prepare("native_ar", **given).load(decoder)
    assert plain.generate(PROMPT, max_new_tokens=8).ids == (
        decoder.generate(PROMPT, max_new_tokens=8).ids
    )
    assert loads == []


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("", {}, "the prompt is empty"),
        (" \n", {}, "the prompt is empty"),
        ([], {}, "the prompt is empty"),
        ([{"role": "user"}], {}, 'a message is {"role": "user"'),
        (7, {}, "a prompt is a text or a list of messages, got int"),
        (None, {}, "a prompt is a text or a list of messages, got NoneType"),
        ({"role": "user", "content": "x"}, {}, "a text or a list of messages, got dict"),
        (b"abc", {}, "a prompt is a text or a list of messages, got bytes"),
        ("abc\udcff", {}, r"the prompt of this request is no UTF-8: its character 4 is '\\udcff'"),
        ([{"role": "user", "content": "\ud800"}], {}, r"no UTF-8: its character \d+ is '\\ud800'"),
        ("a" * 300, {}, "the prompt of this request has 304 tokens.* context of 256"),
        ("a" * 70, {"max_length": 64}, "has 74 tokens.* context of 64"),
        (PROMPT, {"model": "tss_eagel"}, "no adapter 'tss_eagel'; did you mean 'tss_eagle'"),
        (PROMPT, {"max_new_tokens": -1}, "max_new_tokens must be a whole number"),
        (PROMPT, {"max_new_tokens": "²"}, "max_new_tokens must be a whole number.*got '²'"),
        (
            PROMPT,
            {"model": "early_exit", "skip_layers": [1]},
            "alone and takes no skip_layers; use",
        ),
        (PROMPT, {"temperature": -1}, "temperature must be 0 or a number above it"),
        (PROMPT, {"seed": 1.5}, "seed must be a whole number from 0"),
        (PROMPT, {"stop": 3}, "until must be a text or a list of texts"),
        (PROMPT, {"task": ""}, "task must be a name"),
        (PROMPT, {"skip_layers": [4]}, r"skip_layers=\[4\]: skip layer 4 does not exist"),
        (PROMPT, {"max_tokens": 3}, "no argument 'max_tokens'"),
        (PROMPT, {"state": "never"}, "state must be one of"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    given: dict[str, Any], loads: list[str], prompt: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(AdapterError, match=message) as caught:
        tss_bench.generate(prompt, **{"model": MODEL, **given, **options})
    assert "\n" not in str(caught.value)
    assert loads == []


def test_a_long_prompt_is_cut_where_that_is_asked_for(given: dict[str, Any]) -> None:
    cut = tss_bench.load("native_ar", **given, on_overflow="flag", max_length=64)
    assert cut.generate("a" * 70, max_new_tokens=4).stats.prompt_truncated


def test_an_unknown_option_of_a_decoder_is_named(decoder: tss_bench.Decoder) -> None:
    with pytest.raises(TypeError, match="no option 'max_tokens'; there is chat, max_new_tokens"):
        decoder.generate(PROMPT, max_tokens=3)  # type: ignore[call-arg]


def test_the_package_shows_the_functions_and_loads_them_when_asked() -> None:
    assert {"Answer", "Decoder", "generate", "load"} <= set(dir(tss_bench))
    assert tss_bench.generate is api.generate
    with pytest.raises(AttributeError, match="no attribute 'generat'"):
        _ = tss_bench.generat  # type: ignore[attr-defined]
