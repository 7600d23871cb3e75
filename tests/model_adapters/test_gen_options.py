"""Generation arguments of a request.

May import: pytest and model_adapters.
"""

from __future__ import annotations

from typing import Any

import pytest

from model_adapters.arguments import AdapterError, Arguments
from model_adapters.gen_options import GenOptions, read_options

ADAPTER = Arguments(max_gen_toks=256, temperature=0.5)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, GenOptions(256, (), 0.5)),
        ({"until": [], "max_gen_toks": 96}, GenOptions(96, (), 0.5)),
        ({"until": "\n"}, GenOptions(256, ("\n",), 0.5)),
        ({"until": ["\n", "", "Q:"]}, GenOptions(256, ("\n", "Q:"), 0.5)),
        ({"until": None, "max_gen_toks": "0"}, GenOptions(0, (), 0.5)),
        ({"max_new_tokens": 7}, GenOptions(7, (), 0.5)),
        ({"max_gen_toks": 5, "max_tokens": 7}, GenOptions(5, (), 0.5)),
        ({"temperature": 0.0}, GenOptions(256, (), 0.0)),
        ({"temperature": "0.8"}, GenOptions(256, (), 0.8)),
        ({"do_sample": False}, GenOptions(256, (), 0.0)),
        ({"do_sample": False, "temperature": 0.8}, GenOptions(256, (), 0.0)),
        ({"do_sample": True, "temperature": 0.8}, GenOptions(256, (), 0.8)),
        ({"do_sample": True}, GenOptions(256, (), 0.5)),
        ({"do_sample": False, "top_p": 0.9, "top_k": 5}, GenOptions(256, (), 0.0)),
        ({"num_beams": 1, "top_p": 1.0, "repetition_penalty": None}, GenOptions(256, (), 0.5)),
    ],
)
def test_what_the_request_says_wins(given: dict[str, Any], options: GenOptions) -> None:
    assert read_options(given, ADAPTER) == options


def test_sampling_without_a_temperature_anywhere_is_plain_sampling() -> None:
    assert read_options({"do_sample": True}, Arguments()).temperature == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_p": 0.9}, "top_p=0.9 is not supported"),
        ({"num_beams": 4, "do_sample": False}, "num_beams=4 is not supported"),
        ({"max_gen_tok": 5}, "unknown generation argument 'max_gen_tok'; did you mean 'max_gen_"),
        ({"banana": 5}, "unknown generation argument 'banana'; known: until"),
        ({"max_gen_toks": -1}, "max_gen_toks must be a whole number of at least 0, got -1"),
        ({"max_gen_toks": 2.5}, "max_gen_toks must be a whole number of at least 0, got 2.5"),
        ({"max_gen_toks": True}, "max_gen_toks must be a whole number"),
        ({"until": 3}, "until must be a text or a list of texts, got 3"),
        ({"until": ["a", 3]}, "until must be a text or a list of texts"),
        ({"temperature": -0.1}, "temperature must be 0 or a number above it, got -0.1"),
        ({"temperature": "hot"}, "temperature must be 0 or a number above it, got 'hot'"),
        ({"do_sample": True, "temperature": 0}, "do_sample=True needs a temperature above 0"),
    ],
)
def test_what_we_would_have_to_ignore_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        read_options(given, ADAPTER)
