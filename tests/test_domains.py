"""Domain maps and the skip controller.

May import: pytest, the standard library and tss_bench.{types,domains}.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tss_bench.domains import (
    DomainConfig,
    DomainMap,
    MapError,
    SkipController,
    domain_of,
    find_packaged,
    packaged_maps,
)
from tss_bench.types import SkipSet


def example() -> dict[str, Any]:
    return {
        "schema": 1,
        "model": "org/four-layers",
        "drafter": "eagle",
        "num_layers": 4,
        "scope": "all",
        "protocol": "strict",
        "domains": {
            "qa": {"skip": [1], "accept": 2.5, "metric": 0.25, "sparsity": 0.25},
            "specbench_rag": {"skip": [0, 3]},
        },
        "pareto": {"qa": [{"skip": [2], "accept": 2.0, "metric": 0.5}]},
        "provenance": {"command": "tss-bench search"},
    }


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_a_map_is_read_field_by_field(tmp_path: Path) -> None:
    found = DomainMap.load(write(tmp_path / "map.json", example()))
    assert (found.model, found.drafter, found.num_layers) == ("org/four-layers", "eagle", 4)
    assert (found.scope, found.protocol) == ("all", "strict")
    assert found.domains["qa"] == DomainConfig(SkipSet.of([1], 4), 2.5, 0.25)
    assert found.domains["specbench_rag"] == DomainConfig(SkipSet.of([0, 3], 4))
    assert found.domains["specbench_rag"].sparsity == 0.5
    assert found.pareto["qa"] == (DomainConfig(SkipSet.of([2], 4), 2.0, 0.5),)
    assert found.provenance == {"command": "tss-bench search"}


def test_a_saved_map_reads_back_equal_and_leaves_no_other_file(tmp_path: Path) -> None:
    original = DomainMap.from_dict(example())
    original.save(tmp_path / "new" / "map.json")
    assert DomainMap.load(tmp_path / "new" / "map.json") == original
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["map.json"]


def change(*path: str, value: object) -> dict[str, Any]:
    data = example()
    place = data
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (change("domian", value={}), r"unknown field 'domian'; did you mean domains"),
        (
            change("domains", "qa", "accpt", value=1),
            r"domain qa: unknown field 'accpt'.*mean accept",
        ),
        (change("schema", value=2), r"schema 2 is unknown, this version reads 1"),
        (change("schema", value=True), r"schema True is unknown"),
        (change("num_layers", value=0), r"num_layers must be a whole number above 0, got 0"),
        (change("num_layers", value="4"), r"num_layers must be a whole number above 0, got '4'"),
        (change("scope", value="some"), r"scope must be one of verify, all, got 'some'"),
        (change("protocol", value=None), r"protocol must be one of strict, paper, got None"),
        (change("model", value=""), r"model must be a text"),
        (change("domains", value=[]), r"domains must be a JSON object, got list"),
        (change("domains", "qa", "skip", value=[4]), r"domain qa: skip layer 4 .*0 to 3"),
        (change("domains", "qa", "skip", value="1"), r"domain qa: skip must be a list"),
        (change("domains", "qa", "skip", value=[1.5]), r"domain qa: 1.5 is no layer index"),
        (change("domains", "qa", "sparsity", value=0.5), r"sparsity 0.5 does not fit skip {1}"),
        (change("domains", "qa", "accept", value="2"), r"accept must be a number, got '2'"),
        (change("domains", "qa", "metric", value=float("nan")), r"metric must be a number"),
        (change("domains", "qa", value={}), r"domain qa: field 'skip' is missing"),
        (change("pareto", "qa", value={}), r"pareto of qa must be a list"),
        ({k: v for k, v in example().items() if k != "model"}, r"field 'model' is missing"),
        ([], r"must be a JSON object, got list"),
    ],
)
def test_anything_false_in_a_map_is_one_line_naming_it(
    tmp_path: Path, data: object, message: str
) -> None:
    path = write(tmp_path / "bad.json", data)
    with pytest.raises(MapError, match=message) as caught:
        DomainMap.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b'{"schema": 1, "mod', b"\xff\xfe\x00", b"not json"])
def test_a_torn_file_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "torn.json"
    path.write_bytes(content)
    with pytest.raises(MapError, match=r"domain map .*torn.json (is no whole JSON|cannot be read)"):
        DomainMap.load(path)


def test_a_directory_is_no_map(tmp_path: Path) -> None:
    with pytest.raises(MapError, match="cannot be read"):
        DomainMap.load(tmp_path)


def test_another_model_is_refused_with_both_names() -> None:
    with pytest.raises(MapError, match=r"org/four-layers.*other/model"):
        DomainMap.from_dict(example()).require("other/model", 4)
    with pytest.raises(MapError, match=r"org/four-layers.*else/four-layers"):
        DomainMap.from_dict(example()).require("else/four-layers", 4)


def test_another_layer_count_is_refused_with_both_counts() -> None:
    with pytest.raises(MapError, match=r"has 4 layers, .*org/four-layers has 5"):
        DomainMap.from_dict(example()).require("org/four-layers", 5)


@pytest.mark.parametrize("model", ["org/four-layers", "Org/Four-Layers", "four-layers"])
def test_the_same_model_is_accepted_also_from_a_local_directory(model: str) -> None:
    DomainMap.from_dict(example()).require(model, 4)


def test_a_map_of_mixed_layer_counts_cannot_be_made() -> None:
    with pytest.raises(MapError, match="5-layer target in a map for 4 layers"):
        DomainMap("m", "none", 4, domains={"qa": DomainConfig(SkipSet.dense(5))})


def test_an_unknown_name_suggests_the_nearest_packaged_map() -> None:
    with pytest.raises(MapError, match=r"did you mean published/vicuna-7b-v1.3-eagle"):
        DomainMap.load("published/vicuna-7b-v13-eagle")
    with pytest.raises(MapError, match=r"neither a file nor a packaged map; packaged maps: "):
        DomainMap.load("zzz")


def test_every_packaged_map_can_be_loaded_by_its_name() -> None:
    assert {"published/vicuna-7b-v1.3-eagle", "published/llama-2-13b-chat-samd"} < set(
        packaged_maps()
    )
    for name in packaged_maps():
        assert DomainMap.load(name).domains


PUBLISHED = [
    ("vicuna-7b-v1.3-eagle", "translation", [3, 25, 30], 4.528, 0.2370),
    ("vicuna-7b-v1.3-eagle", "summarization", [15, 22, 23], 4.013, 0.2702),
    ("vicuna-7b-v1.3-eagle", "rag", [3, 6, 14, 25, 30], 4.027, 0.1091),
    ("vicuna-7b-v1.3-eagle", "qa", [6, 8, 19, 21, 27], 3.970, 0.0640),
    ("vicuna-7b-v1.3-eagle", "nq_open", [6, 8, 19, 21, 27], 3.970, 0.0640),
    ("vicuna-7b-v1.3-eagle", "mmlu", [3, 7, 9, 14, 20], 3.955, 0.3281),
    ("llama-2-13b-chat-samd", "translation", [7, 11, 20, 31, 35, 38], 2.887, 0.2116),
    ("llama-2-13b-chat-samd", "summarization", [12, 20, 27, 33, 34, 38], 3.188, 0.2507),
    ("llama-2-13b-chat-samd", "qa", [9, 10, 11, 19, 28, 38], 2.738, 0.1288),
    ("llama-2-13b-chat-samd", "nq_open", [9, 10, 11, 19, 28, 38], 2.738, 0.1288),
    ("llama-2-13b-chat-samd", "mmlu", [7, 23, 24, 26, 28, 32, 33], 4.084, 0.4219),
]


@pytest.mark.parametrize(("name", "domain", "skip", "accept", "metric"), PUBLISHED)
def test_the_published_sets_are_the_paper_s(
    name: str, domain: str, skip: list[int], accept: float, metric: float
) -> None:
    found = DomainMap.load(f"published/{name}")
    config = found.domains[domain]
    assert (list(config.skip), config.accept, config.metric) == (skip, accept, metric)
    assert found.protocol == "paper"
    assert "2609.26100" in found.provenance["source"]


def test_the_published_maps_are_of_the_paper_s_models() -> None:
    eagle = DomainMap.load("published/vicuna-7b-v1.3-eagle")
    assert (eagle.model, eagle.num_layers, eagle.drafter) == ("lmsys/vicuna-7b-v1.3", 32, "eagle")
    assert len(eagle.domains) == 6
    samd = DomainMap.load("published/llama-2-13b-chat-samd")
    assert (samd.model, samd.num_layers) == ("meta-llama/Llama-2-13b-chat-hf", 40)
    assert (samd.drafter, len(samd.domains)) == ("samd", 5)


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "smollm2-135m-layerdrop"])
@pytest.mark.parametrize("drafter", ["eagle", "token_recycling", "none"])
def test_the_default_models_have_a_map_for_each_drafter(model: str, drafter: str) -> None:
    found = find_packaged(model, drafter)
    assert found is not None
    assert found[1].num_layers == 30
    assert found[0] in packaged_maps()


def test_published_maps_are_never_chosen_by_themselves() -> None:
    assert find_packaged("lmsys/vicuna-7b-v1.3", "eagle") is None


@pytest.mark.parametrize(
    ("task", "domain"),
    [
        ("specbench_translation", "translation"),
        ("specbench_qa_fewshot", "qa"),
        ("specbench_math_reasoning", "math_reasoning"),
        ("specbench_mt_bench", "mt_bench"),
        ("tss_mmlu", "mmlu"),
        ("tss_mmlu_ll", "mmlu"),
        ("tss_mmlu_fewshot", "mmlu"),
        ("tss_nq_open", "nq_open"),
        ("nq_open", "nq_open"),
        ("mmlu_anatomy", "mmlu"),
        ("arc_easy", None),
        ("qasper", None),
        ("", None),
    ],
)
def test_the_domain_of_a_task_name(task: str, domain: str | None) -> None:
    assert domain_of(task) == domain


def controller() -> SkipController:
    return SkipController.of_map(DomainMap.from_dict(example()), "map x.json")


def test_a_task_name_wins_over_its_domain_and_unknown_is_dense() -> None:
    chosen = controller()
    assert list(chosen.choose("specbench_qa").skip) == [1]
    assert list(chosen.choose("specbench_rag").skip) == [0, 3]
    assert list(chosen.choose("tss_mmlu").skip) == []
    assert list(chosen.choose("arc_easy").skip) == []
    assert list(chosen.choose("anything", domain="qa").skip) == [1]


def test_a_map_knows_its_tasks_and_domains_and_a_fixed_set_knows_all() -> None:
    chosen = controller()
    assert chosen.knows("specbench_qa")
    assert chosen.knows("specbench_rag")
    assert chosen.knows("anything", "qa")
    assert not chosen.knows("tss_mmlu")
    assert not chosen.knows("arc_easy")
    # The domain of a row wins over the one that the task's name tells.
    assert not chosen.knows("specbench_qa", "law")
    assert chosen.used == {}
    assert SkipController.fixed(SkipSet.of([2], 4), "skip_layers=2").knows("arc_easy")


def test_every_answer_says_why() -> None:
    chosen = controller()
    assert chosen.choose("specbench_qa").why == "domain qa in map x.json"
    assert chosen.choose("specbench_rag").why == "task specbench_rag in map x.json"
    assert chosen.choose("tss_mmlu").why == "map x.json has no domain mmlu: dense"
    assert chosen.choose("arc_easy").why == "map x.json has no task arc_easy: dense"
    assert str(chosen.choose("specbench_qa")) == (
        "specbench_qa: skips {1} of 4 layers (domain qa in map x.json)"
    )
    assert str(chosen.choose("tss_mmlu")).startswith("tss_mmlu: runs all 4 layers (")


def test_what_was_answered_is_remembered_by_task() -> None:
    chosen = controller()
    chosen.choose("specbench_qa")
    chosen.choose("tss_mmlu")
    assert {task: list(choice.skip) for task, choice in chosen.used.items()} == {
        "specbench_qa": [1],
        "tss_mmlu": [],
    }


def test_a_fixed_set_is_for_every_task() -> None:
    fixed = SkipController.fixed(SkipSet.of([2], 4), "skip_layers=2")
    for task in ("specbench_qa", "arc_easy"):
        assert list(fixed.choose(task).skip) == [2]
        assert fixed.choose(task).why == "skip_layers=2"
    assert fixed.sets == {"*": SkipSet.of([2], 4)}


def test_a_map_without_domains_is_dense_for_all() -> None:
    empty = SkipController.of_map(DomainMap("m", "none", 4), "map y")
    assert list(empty.choose("specbench_qa").skip) == []
    assert empty.choose("specbench_qa").why == "map y has no domain qa: dense"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"num_layers": ' + "9" * 5000 + "}"])
def test_json_that_python_gives_up_on_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MapError, match=r"odd\.json is no whole JSON file"):
        DomainMap.load(path)
