"""Which skip sets a run uses.

May import: pytest, model_adapters, tss_bench.{types,domains,weights}.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model_adapters.arguments import AdapterError, Arguments
from model_adapters.skip_plan import native_plan, sparse_plan
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.types import Scope, SkipSet
from tss_bench.weights import ModelInfo

DEFAULT = ModelInfo("smollm2-135m-instruct", 30, "r", True, "llama", 576, 49152, 8192)
OTHER = ModelInfo("org/four", 4, "r", True, "llama", 32, 48, 64)


@pytest.fixture
def map_path(tmp_path: Path) -> str:
    path = tmp_path / "map.json"
    domains = {"qa": DomainConfig(SkipSet.of([1, 2], 4))}
    DomainMap("org/four", "eagle", 4, scope="all", protocol="paper", domains=domains).save(path)
    return str(path)


def test_skip_layers_are_for_every_task() -> None:
    plan = sparse_plan(Arguments(skip_layers="3+1"), OTHER, "eagle")
    choice = plan.controller.choose("specbench_qa")
    assert (list(choice.skip), choice.why) == ([1, 3], "skip_layers=1+3")
    assert (plan.scope, plan.notes) == ("verify", ())


@pytest.mark.parametrize("written", ["[]", "dense", "{}", []])
def test_an_empty_skip_set_is_an_explicit_dense(written: object) -> None:
    plan = sparse_plan(Arguments(skip_layers=written), OTHER, "eagle")
    assert str(plan.controller.choose("x")) == "x: runs all 4 layers (skip_layers=dense)"


def test_skip_layers_win_over_a_map_and_say_so() -> None:
    arguments = Arguments(skip_layers=[0], domain_map="not/read.json")
    plan = sparse_plan(arguments, OTHER, "eagle")
    assert list(plan.controller.choose("specbench_qa").skip) == [0]
    assert plan.notes == ("skip_layers=0 wins over domain_map=not/read.json, which is not read",)


def test_a_map_gives_each_domain_its_set_and_its_scope(map_path: str) -> None:
    plan = sparse_plan(Arguments(domain_map=map_path, protocol="paper"), OTHER, "eagle")
    assert list(plan.controller.choose("specbench_qa").skip) == [1, 2]
    assert list(plan.controller.choose("specbench_rag").skip) == []
    assert plan.scope == "all"
    assert plan.notes == ()
    assert map_path in plan.source


@pytest.mark.parametrize(
    ("drafter", "scope", "protocol", "note"),
    [
        ("none", None, "paper", "found with drafter eagle, this run uses none"),
        ("eagle", "verify", "paper", "found with scope all, this run uses verify"),
        ("eagle", None, "strict", "protocol paper, this run counts with strict"),
    ],
)
def test_a_map_used_otherwise_than_it_was_found_says_so(
    map_path: str, drafter: str, scope: Scope | None, protocol: str, note: str
) -> None:
    arguments = Arguments(domain_map=map_path, scope=scope, protocol=protocol)  # type: ignore[arg-type]
    plan = sparse_plan(arguments, OTHER, drafter)
    assert len(plan.notes) == 1
    assert note in plan.notes[0]
    assert plan.scope == (scope or "all")


def test_a_map_of_another_model_is_refused(map_path: str) -> None:
    with pytest.raises(AdapterError, match=r"org/four.*smollm2-135m-instruct"):
        sparse_plan(Arguments(domain_map=map_path), DEFAULT, "eagle")


@pytest.mark.parametrize("drafter", ["eagle", "token_recycling", "none"])
def test_the_default_model_uses_the_packaged_map_of_the_pair(drafter: str) -> None:
    plan = sparse_plan(Arguments(), DEFAULT, drafter)
    assert plan.source.startswith("packaged map smollm2-135m-instruct-")
    why = plan.controller.choose("specbench_translation").why
    assert why == f"domain translation in {plan.source}"
    assert plan.notes == ()


def test_a_pair_without_a_map_is_dense_and_says_so() -> None:
    plan = sparse_plan(Arguments(), OTHER, "eagle")
    assert list(plan.controller.choose("specbench_qa").skip) == []
    assert "no packaged map for org/four with drafter eagle: dense" in plan.notes[0]


def test_a_router_chooses_among_the_sets_of_a_map(map_path: str) -> None:
    plan = sparse_plan(Arguments(domain_map=map_path, router="knn"), OTHER, "eagle")
    assert plan.routed == {"qa": SkipSet.of([1, 2], 4)}
    assert sparse_plan(Arguments(domain_map=map_path), OTHER, "eagle").routed == {}
    fixed = sparse_plan(Arguments(skip_layers=[1], router="knn"), OTHER, "eagle")
    assert fixed.routed == {}
    assert fixed.notes == ("skip_layers=1 is for every request, so router=knn routes none",)


def test_a_native_adapter_is_dense() -> None:
    plan = native_plan(Arguments(scope="all"), OTHER)
    choice = plan.controller.choose("specbench_qa")
    assert (list(choice.skip), choice.why, plan.scope) == ([], "native adapter", "all")
