"""No adapter keeps anything from one request, task or evaluation to the next.

May import: pytest, lm_eval, model_adapters, tss_bench.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from model_adapters.adapters import ADAPTERS
from model_adapters.base import SpeculativeLM
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.types import GeneratedText, SkipSet

Row = Callable[..., dict[str, Any]]
RequestFor = Callable[..., Instance]


@pytest.fixture(scope="module")
def needed(eagle_head: Path, draft_model: Path, small_tree: str) -> Mapping[str, dict[str, Any]]:
    """What each drafter needs on the tiny model: a line for every `drafter_id` in ADAPTERS."""
    return {
        "none": {},
        "eagle": {"draft": str(eagle_head)},
        "token_recycling": {"tree": small_tree},
        "prompt_lookup": {},
        "samd": {"len_threshold": 2, "n_predicts": 6, "tree": small_tree},
        "layerskip": {"exit_layer": 2, "num_speculations": 3},
        "early exit (lossy)": {"exit_layer": 3},
        "draft_model": {"draft": str(draft_model), "num_draft_tokens": 3},
    }


@pytest.fixture(scope="module")
def two_sets(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A map with another skip set for each of two domains."""
    path = tmp_path_factory.mktemp("maps") / "map.json"
    sets = {"translation": SkipSet.of([1], 4), "qa": SkipSet.of([0, 2], 4)}
    domains = {name: DomainConfig(skip) for name, skip in sets.items()}
    DomainMap("tiny-chat", "any", 4, domains=domains).save(path)
    return str(path)


def requests(row: Row, request_for: RequestFor) -> list[Instance]:
    """Rows of two tasks that share most of their ids; one of two turns, one sampled."""
    text = "abab abc "
    drawn = {"do_sample": True, "temperature": 3.0, "max_gen_toks": 10}
    qa = {"task": "specbench_qa", "max_gen_toks": 10}
    return [
        request_for(row("1", text * 2), max_gen_toks=10),
        request_for(row("2", text * 2 + "?", domain="qa"), doc_id=1, **qa),
        request_for(row("3", text, text + "b", domain="qa"), doc_id=2, **qa),
        request_for(row("4", text * 2), doc_id=3, **drawn),
    ]


def told(answer: GeneratedText) -> tuple[Any, ...]:
    """All of an answer but its times."""
    counts = [
        (one.prompt_tokens, one.drafted, one.accepted, one.accept_lengths, one.stop)
        for one in answer.stats
    ]
    return (str(answer), answer.turns, answer.ids, answer.config, counts)


def answers(lm: SpeculativeLM, asked: Sequence[Instance]) -> dict[int, tuple[Any, ...]]:
    """What is told of each request, by its document, from one evaluation."""
    given = lm.generate_until(list(asked), disable_tqdm=True)
    pairs = zip(asked, given, strict=True)
    return {request.doc_id: told(answer) for request, answer in pairs}


@pytest.mark.parametrize("name", ADAPTERS)
def test_results_do_not_depend_on_order(
    name: str,
    build: Callable[..., SpeculativeLM],
    row: Row,
    request_for: RequestFor,
    needed: Mapping[str, dict[str, Any]],
    two_sets: str,
) -> None:
    adapter = ADAPTERS[name]
    assert adapter.drafter_id in needed, f"tell `needed` above how {name} is made"
    own = {"domain_map": two_sets} if adapter.sparse else {}
    lm = build(adapter, **own, **needed[adapter.drafter_id])
    asked = requests(row, request_for)
    first = answers(lm, asked)
    assert len(first) == len(asked)
    # In another order, and again: the four differ in skip set, length and temperature.
    assert answers(lm, asked[::-1]) == first
    # One evaluation after the other, the second task first, instead of one for both.
    alone = [answers(lm, [request]) for request in (asked[2], asked[3], asked[0], asked[1])]
    assert {doc: one for each in alone for doc, one in each.items()} == first
    if lm.drafter.max_nodes > 1:
        assert any(count[1] > 0 for one in first.values() for count in one[-1])
