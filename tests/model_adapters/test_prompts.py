"""Prompts: the template once, begin-of-text once, conversations, overflow.

May import: pytest, transformers and model_adapters. The tokenizer is the tiny one of conftest.py:
one id a byte, and a template `<s><|user|>…<|end|><|assistant|>`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from model_adapters.arguments import AdapterError
from model_adapters.prompts import Prompter, Request, fit_prompt

Row = Callable[..., dict[str, Any]]
BOS = 0


def of(doc: object, context: str, task: str = "specbench_translation") -> Request:
    return Request.of(context, doc, task, 5)


def test_a_chat_prompt_gets_the_template_once(tokenizer: PreTrainedTokenizerFast, row: Row) -> None:
    prompter = Prompter(tokenizer, chat=True)
    templated = "<s><|user|>Hallo<|end|><|assistant|>"
    assert prompter.first(of(row("a", "Hallo"), "Hallo")) == templated
    # lm-eval's --apply_chat_template came first
    assert prompter.first(of(row("a", "Hallo"), templated)) == templated
    with_system = "<s><|system|>Be brief.<|end|><|user|>Hallo<|end|><|assistant|>"
    assert prompter.first(of(row("a", "Hallo"), with_system)) == with_system


def test_a_description_in_front_is_part_of_the_user_s_turn(
    tokenizer: PreTrainedTokenizerFast, row: Row
) -> None:
    text = Prompter(tokenizer, chat=True).first(of(row("a", "Hallo"), "Translate.\n\nHallo"))
    assert text == "<s><|user|>Translate.\n\nHallo<|end|><|assistant|>"


def test_completion_and_foreign_prompts_are_left_alone(
    tokenizer: PreTrainedTokenizerFast, row: Row
) -> None:
    prompter = Prompter(tokenizer, chat=True)
    assert prompter.first(of(row("a", "Q: x\nA:", style="completion"), "Q: x\nA:")) == "Q: x\nA:"
    assert prompter.first(of({"turns": ["other"], "question": "x"}, "x", "arc_easy")) == "x"
    assert prompter.first(of(None, "x", "arc_easy")) == "x"


def test_a_request_without_a_row_and_a_number_has_no_name() -> None:
    nameless = Request.of("x", None, None, None)
    assert (nameless.name, nameless.where) == ("", "this request")
    assert Request.of("x", None, "arc_easy", 0).where == "document 0 of arc_easy"


def test_chat_template_false_leaves_every_prompt_alone(
    tokenizer: PreTrainedTokenizerFast, row: Row
) -> None:
    assert Prompter(tokenizer, chat=False).first(of(row("a", "Hallo"), "Hallo")) == "Hallo"


def test_a_model_without_a_template_refuses_it(base_tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(AdapterError, match="no chat template"):
        Prompter(base_tokenizer, chat=True)


@pytest.mark.parametrize("text", ["Hallo", "<s>Hallo", "<s><|user|>Hallo<|end|><|assistant|>"])
def test_begin_of_text_stands_once(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = Prompter(tokenizer, chat=True).encode(text)
    assert ids[0] == BOS
    assert ids.count(BOS) == 1


def test_begin_of_text_can_be_left_out_for_a_continuation(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    assert BOS not in Prompter(tokenizer, chat=True).encode("Hallo", add_special_tokens=False)


def test_the_second_turn_follows_the_first_answer(
    tokenizer: PreTrainedTokenizerFast, row: Row
) -> None:
    prompter = Prompter(tokenizer, chat=True)
    request = of(row("m", "One?", "Two?"), "One?")
    first = prompter.first(request)
    assert prompter.following(request, first, ["Eins."]) == (
        "<s><|user|>One?<|end|><|assistant|>Eins.<|end|><|user|>Two?<|end|><|assistant|>"
    )


def test_the_second_turn_keeps_what_lm_eval_put_in_front(
    tokenizer: PreTrainedTokenizerFast, row: Row
) -> None:
    prompter = Prompter(tokenizer, chat=True)
    given = "<s><|system|>Be brief.<|end|><|user|>One?<|end|><|assistant|>"
    request = of(row("m", "One?", "Two?"), given)
    assert prompter.following(request, prompter.first(request), ["Eins."]) == (
        given + "Eins.<|end|><|user|>Two?<|end|><|assistant|>"
    )


def test_a_third_turn_carries_both_answers(tokenizer: PreTrainedTokenizerFast, row: Row) -> None:
    prompter = Prompter(tokenizer, chat=True)
    request = of(row("m", "1?", "2?", "3?"), "1?")
    text = prompter.following(request, prompter.first(request), ["a", "b"])
    assert text == (
        "<s><|user|>1?<|end|><|assistant|>a<|end|><|user|>2?<|end|><|assistant|>b<|end|>"
        "<|user|>3?<|end|><|assistant|>"
    )


def test_without_a_template_the_turns_are_joined_by_blank_lines(
    base_tokenizer: PreTrainedTokenizerFast, row: Row
) -> None:
    prompter = Prompter(base_tokenizer, chat=False)
    request = of(row("m", "One?", "Two?"), "One?")
    assert prompter.following(request, "One?", [" Eins."]) == "One? Eins.\n\nTwo?"


@pytest.mark.parametrize(
    ("doc_turns", "context"), [(["x"], ""), (["x"], " \n"), (["x", ""], "x"), ([""], "templated")]
)
def test_an_empty_prompt_is_an_error_naming_the_document(
    row: Row, doc_turns: list[str], context: str
) -> None:
    with pytest.raises(AdapterError, match="document tr-7 of specbench_translation has an empty"):
        of(row("tr-7", *doc_turns), context).check_texts()


def test_a_text_that_is_no_utf_8_is_named(tokenizer: PreTrainedTokenizerFast, row: Row) -> None:
    prompter = Prompter(tokenizer, chat=True)
    doc = row("tr-7", "good", "b\udcff")
    with pytest.raises(
        AdapterError, match=r"document tr-7 .*no UTF-8: its character 2 is '\\udcff'"
    ):
        of(doc, "good").check_texts()
    with pytest.raises(AdapterError, match=r"the text 'b\\udcff' is no UTF-8: its character 2"):
        prompter.encode("b\udcff")


def test_a_foreign_document_is_named_by_its_number() -> None:
    assert of({"question": "x"}, "x", "arc_easy").where == "document 5 of arc_easy"


@pytest.mark.parametrize(
    ("length", "limit", "kept", "cut"),
    [
        (10, 4, 10, False),
        (15, 4, 15, False),  # the answer gets less room: the engine clamps and flags that
        (16, 4, 12, True),  # no room for one token: 16 - 4 are kept
        (17, 4, 12, True),
        (17, 100, 8, True),  # a large limit takes half the context, not all
        (17, 0, 15, True),
    ],
)
def test_a_prompt_longer_than_the_context_keeps_its_end(
    length: int, limit: int, kept: int, cut: bool
) -> None:
    ids = list(range(length))
    assert fit_prompt(ids, limit, 16, "flag", "document 1") == (ids[length - kept :], cut)


def test_a_prompt_longer_than_the_context_can_be_refused() -> None:
    with pytest.raises(AdapterError, match=r"prompt of document 1 .* 17 tokens.*context of 16"):
        fit_prompt(range(17), 4, 16, "error", "document 1")
    assert fit_prompt([1, 2], 4, 16, "error", "document 1") == ([1, 2], False)
