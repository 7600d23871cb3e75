"""Reading model arguments.

May import: pytest and model_adapters.arguments.
"""

from __future__ import annotations

from typing import Any

import pytest

from model_adapters.arguments import (
    COMMON,
    DRAFT_MODEL,
    EAGLE,
    PROMPT_LOOKUP,
    SPARSE,
    TOKEN_RECYCLING,
    AdapterError,
    Arguments,
    read_arguments,
    share_out,
    split_arguments,
)

OWN = (EAGLE, TOKEN_RECYCLING, PROMPT_LOOKUP, DRAFT_MODEL)
ALL = COMMON.union(SPARSE, *OWN)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        (None, {}),
        ("skip_layers=[3,25,30]", {"skip_layers": [3, 25, 30]}),
        (
            "pretrained=org/model,skip_layers=[3,25,30],dtype=float32",
            {"pretrained": "org/model", "skip_layers": [3, 25, 30], "dtype": "float32"},
        ),
        ("skip_layers=3+25+30,seed=4", {"skip_layers": "3+25+30", "seed": 4}),
        ("skip_layers=3", {"skip_layers": 3}),
        ("skip_layers={3,25}", {"skip_layers": {3, 25}}),
        ("chat_template=False, temperature=0.5", {"chat_template": False, "temperature": 0.5}),
        ("draft=None,tree=a=b.json,", {"draft": None, "tree": "a=b.json"}),
    ],
)
def test_an_argument_string_keeps_the_commas_of_a_list(
    text: str | None, values: dict[str, Any]
) -> None:
    assert split_arguments(text) == values


def test_a_piece_without_a_value_is_named() -> None:
    with pytest.raises(AdapterError, match="'oops' is no name=value pair"):
        split_arguments("seed=1,oops")


def test_defaults_are_the_documented_ones() -> None:
    read = read_arguments("tss_eagle", {}, ALL)
    assert read == Arguments()
    assert read.pretrained == "smollm2-135m-instruct"
    assert (read.dtype, read.draft, read.protocol) == ("bfloat16", "auto", "strict")
    assert (read.on_overflow, read.temperature, read.batch_size) == ("flag", 0.0, 1)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"dtype": "torch.float32"}, "dtype", "float32"),
        ({"dtype": "auto"}, "dtype", "auto"),
        ({"draft_revision": "v1.0"}, "draft_revision", "v1.0"),
        ({"temperature": "0.7"}, "temperature", 0.7),
        ({"max_length": "64"}, "max_length", 64),
        ({"max_gen_toks": 0}, "max_gen_toks", 0),
        ({"chat_template": "false"}, "chat_template", False),
        ({"trust_remote_code": True}, "trust_remote_code", True),
        ({"batch_size": "1"}, "batch_size", 1),
        ({"batch_size": "auto"}, "batch_size", 1),
        ({"batch_size": 1}, "batch_size", 1),
        ({"max_batch_size": 64}, "batch_size", 1),
        ({"draft": None}, "draft", "auto"),
        ({"pretrained": 135}, "pretrained", "135"),
        ({"on_overflow": "error"}, "on_overflow", "error"),
        ({"state": "run"}, "state", "run"),
        ({"router": "knn"}, "router", "knn"),
        ({"router_threshold": "0.25"}, "router_threshold", 0.25),
        ({"router_k": "5"}, "router_k", 5),
    ],
)
def test_values_are_read_whatever_type_the_command_line_gave(
    given: dict[str, Any], name: str, value: object
) -> None:
    assert getattr(read_arguments("tss_eagle", given, ALL), name) == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"skip_layer": 3}, r"no argument 'skip_layer'; did you mean 'skip_layers'"),
        ({"totaltoken": 8}, r"no argument 'totaltoken'; did you mean 'total_token'"),
        ({"peft": "x"}, r"no argument 'peft'; .*it takes batch_size, "),
        ({"batch_size": 2}, r"batch_size must be 1 or auto, got 2"),
        ({"batch_size": "auto:4"}, r"batch_size must be 1 or auto, got 'auto:4'"),
        ({"dtype": "int8"}, r"dtype must be one of bfloat16, float16, float32, auto, got 'int8'"),
        ({"scope": "both"}, r"scope must be one of verify, all"),
        ({"protocol": "loose"}, r"protocol must be one of strict, paper"),
        ({"on_overflow": "cut"}, r"on_overflow must be one of flag, error"),
        ({"state": "ever"}, r"state must be one of request, run"),
        ({"temperature": -1}, r"temperature must be 0 \(greedy\) or a number above it, got -1"),
        ({"temperature": "inf"}, r"temperature must be"),
        ({"temperature": "warm"}, r"temperature must be .* got 'warm'"),
        ({"max_length": 1}, r"max_length must be a whole number of at least 2, got 1"),
        ({"max_gen_toks": 1.5}, r"max_gen_toks must be a whole number"),
        ({"seed": -1}, r"seed must be a whole number of at least 0"),
        ({"total_token": 1}, r"total_token must be a whole number of at least 2"),
        (
            {"router_threshold": -0.1},
            r"router_threshold must be a cosine distance, 0 to 2, got -0.1",
        ),
        ({"router_threshold": "nan"}, r"router_threshold must be a cosine distance"),
        ({"top_k": True}, r"top_k must be a whole number of at least 1"),
        ({"chat_template": "maybe"}, r"chat_template must be true or false"),
        ({"pretrained": ["a"]}, r"pretrained must be a name or a path"),
        ({"domain_map": ""}, r"domain_map must be a name or a path"),
    ],
)
def test_a_bad_argument_is_one_line_naming_it(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError, match=message) as caught:
        read_arguments("tss_eagle", given, ALL)
    assert "\n" not in str(caught.value)


def test_arguments_of_another_adapter_are_refused() -> None:
    with pytest.raises(AdapterError, match=r"native_eagle always runs every layer.*use tss_eagle"):
        read_arguments("native_eagle", {"skip_layers": [3]}, COMMON | EAGLE)
    with pytest.raises(AdapterError, match="takes no domain_map"):
        read_arguments("native_ar", {"domain_map": "x"}, COMMON)
    with pytest.raises(AdapterError, match="'draft' has no meaning for tss_ar"):
        read_arguments("tss_ar", {"draft": "x"}, COMMON | SPARSE)


def test_an_error_of_several_lines_becomes_one() -> None:
    assert str(AdapterError("first\n  second\n")) == "first second"


def test_arguments_for_several_go_to_those_that_take_them() -> None:
    given = {"dtype": "float32", "skip_layers": 3, "tree": "x", "oops": 1}
    allowed = {"a": {"dtype", "tree"}, "b": {"dtype", "skip_layers"}, "c": {"dtype"}}
    assert share_out(given, allowed) == {
        # What nobody takes goes to the first, which refuses it.
        "a": {"dtype": "float32", "tree": "x", "oops": 1},
        "b": {"dtype": "float32", "skip_layers": 3},
        "c": {"dtype": "float32"},
    }


def test_an_argument_may_be_for_one_adapter_alone() -> None:
    given = {"tree": "x", "b.tree": "y", "c.skip_layers": 3, "d.tree": "z"}
    allowed = {"a": {"tree"}, "b": {"tree"}, "c": {"skip_layers"}}
    assert share_out(given, allowed) == {
        # There is no d here, so the name is one that nobody takes.
        "a": {"tree": "x", "d.tree": "z"},
        "b": {"tree": "y"},
        "c": {"skip_layers": 3},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("skip_layers=3,25,30", r"'25' is no name=value pair; write a list of layers as 3\+25"),
        ("skip_layers=[3,25", "a bracket is not closed"),
        ("seed=1,seed=2", "'seed' is given twice"),
    ],
)
def test_a_misspelt_argument_string_is_refused(text: str, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        split_arguments(text)


def test_a_near_name_that_the_adapter_takes_comes_first() -> None:
    with pytest.raises(AdapterError, match="did you mean 'num_pred_tokens'"):
        read_arguments("x", {"num_draft_token": 3}, {"num_pred_tokens"})
    with pytest.raises(AdapterError, match="did you mean 'num_draft_tokens'"):
        read_arguments("x", {"num_draft_token": 3}, {"seed"})
