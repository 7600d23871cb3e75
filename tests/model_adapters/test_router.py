"""`router=knn` through the adapters, on a tiny random model and the packaged mini set.

May import: pytest, lm_eval, datasets, torch, transformers, model_adapters, tss_bench, tests.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CachingLM
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager
from transformers import LlamaForCausalLM

from model_adapters import router_prompts
from model_adapters.adapters import NativeAR, TssAR, TssTokenRecycling
from model_adapters.arguments import AdapterError
from model_adapters.base import SpeculativeLM
from model_adapters.gen_options import read_options
from model_adapters.router import PromptRouter
from model_adapters.router_prompts import domain_prompts
from tss_bench.calibration import SequentialEvaluator
from tss_bench.data.resolve import resolve
from tss_bench.data.split import split_rows
from tss_bench.domains import DOMAINS, DomainConfig, DomainMap
from tss_bench.harness import TaskRequests
from tss_bench.routing import RouterIndex
from tss_bench.search import Job as SearchJob
from tss_bench.task_paths import task_directory
from tss_bench.types import GeneratedText, SkipSet

LAYERS = 4
SETS = {"translation": [1], "qa": [2], "mmlu": []}
FOREIGN = {"question": "of somebody else"}

Build = Callable[..., SpeculativeLM]
Row = Callable[..., dict[str, Any]]
RequestFor = Callable[..., Instance]


@pytest.fixture(autouse=True)
def mini_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache: the same for all tests, so that one index serves many."""
    monkeypatch.setenv("TSS_BENCH_CACHE", str(shared_cache))
    return shared_cache


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TSS_BENCH_CACHE", str(tmp_path / "own"))
    return tmp_path / "own"


def save_map(path: Path, sets: dict[str, list[int]]) -> str:
    domains = {name: DomainConfig(SkipSet.of(skip, LAYERS)) for name, skip in sets.items()}
    DomainMap("tiny-chat", "none", LAYERS, domains=domains).save(path)
    return str(path)


@pytest.fixture(scope="module")
def map_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_map(tmp_path_factory.mktemp("maps") / "map.json", SETS)


@pytest.fixture
def routed(build: Build, map_path: str) -> Build:
    def make(**given: Any) -> SpeculativeLM:
        return build(TssAR, **{"domain_map": map_path, "router": "knn", "router_k": 1, **given})

    return make


def calibration_text(domain: str, place: int = 0) -> str:
    """The text of a calibration row, none of the tiny model's context too long for it."""
    rows = split_rows(resolve(domain)[0], "calibration")
    texts = [row.turns[0] for row in rows if len(row.turns[0]) < 150]
    return texts[place]


def foreign(request_for: RequestFor, text: str, **options: Any) -> Instance:
    return request_for(FOREIGN, text, task=None, **options)


@pytest.mark.parametrize("scope", ["verify", "all"])
@pytest.mark.parametrize("domain", ["translation", "qa"])
def test_a_routed_answer_is_that_of_the_same_set_given_by_hand(
    build: Build, routed: Build, request_for: RequestFor, scope: str, domain: str
) -> None:
    requests = [foreign(request_for, calibration_text(domain))]
    (answer,) = routed(scope=scope).generate_until(requests, True)
    skip = SETS[domain]
    (by_hand,) = build(TssAR, skip_layers=skip, scope=scope).generate_until(requests, True)
    (dense,) = build(NativeAR).generate_until(requests, True)
    assert answer.ids == by_hand.ids != dense.ids
    assert answer.config["skip"] == skip
    assert answer.config["domain"] == domain
    extra = ", one dense prefill more" if scope == "all" else ""
    assert answer.config["why"] == f"router: nearest {domain}, distance 0{extra}"


@pytest.mark.parametrize(
    ("scope", "domain", "passes"),
    [
        ("verify", "qa", [[]]),
        ("all", "qa", [[], [2]]),
        # The dense prefill serves where the choice is dense.
        ("all", "mmlu", [[]]),
    ],
)
def test_the_prompt_is_read_once_more_under_scope_all_alone(
    routed: Build,
    request_for: RequestFor,
    monkeypatch: pytest.MonkeyPatch,
    scope: str,
    domain: str,
    passes: list[list[int]],
) -> None:
    lm = routed(scope=scope)
    prompts = domain_prompts([domain]).prompts
    (job,) = lm.jobs([foreign(request_for, prompts[0].request.context)])
    lm.begin_run([job])
    seen: list[list[int]] = []
    prefill = lm.target.prefill

    def noted(ids: Any, cache: Any, skip: SkipSet, *others: Any) -> Any:
        seen.append(list(skip))
        return prefill(ids, cache, skip, *others)

    monkeypatch.setattr(lm.target, "prefill", noted)
    config = lm.answer(job).config
    assert config["domain"] == domain
    assert seen == passes
    assert config["why"].endswith("one dense prefill more") == (len(passes) == 2)


def test_the_time_of_routing_is_part_of_the_request_s(
    routed: Build, request_for: RequestFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = routed()
    choose = PromptRouter.choose

    def slow(*given: Any) -> Any:
        time.sleep(0.05)
        return choose(*given)

    monkeypatch.setattr(PromptRouter, "choose", slow)
    (answer,) = lm.generate_until([foreign(request_for, "Hallo")], True)
    assert answer.stats[0].prefill_s > 0.05
    assert answer.stats[0].wall_s > answer.stats[0].prefill_s


def test_a_stranger_is_dense(routed: Build, request_for: RequestFor) -> None:
    lm = routed(router_threshold=0.0)
    (answer,) = lm.generate_until([foreign(request_for, "% & §§§")], True)
    assert (answer.config["skip"], answer.config["domain"]) == ([], None)
    assert answer.config["why"].startswith("router: nearest ")
    assert answer.config["why"].endswith(" is above 0: dense")


def test_a_prompt_with_the_chat_template_is_compared_with_such_prompts(
    routed: Build, row: Row, request_for: RequestFor
) -> None:
    lm = routed(router_threshold=1e-3)
    text = calibration_text("qa")
    ours = request_for(row("a", text, domain="law"), task="law_qa")
    theirs = foreign(request_for, lm.apply_chat_template([{"role": "user", "content": text}]))
    for answer in lm.generate_until([ours, theirs], True):
        assert answer.config["why"] == "router: nearest qa, distance 0"
    bare = routed(chat_template=False, router_threshold=1e-3)
    (answer,) = bare.generate_until([theirs], True)
    assert answer.config["why"] == "router: no calibration prompt has this form: dense"


@pytest.mark.parametrize(
    ("task", "domain"), [("specbench_qa", "translation"), ("x", "qa"), ("mmlu_anatomy", None)]
)
def test_what_the_map_knows_is_never_routed(
    routed: Build,
    row: Row,
    request_for: RequestFor,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    domain: str | None,
) -> None:
    lm = routed()
    for name in ("choose", "ready"):
        monkeypatch.setattr(PromptRouter, name, lambda *_: pytest.fail("routed"))
    doc = row("a", calibration_text("translation"), domain=domain) if domain else FOREIGN
    request = request_for(doc, calibration_text("translation"), task=task)
    (answer,) = lm.generate_until([request], True)
    known = domain or "mmlu"
    assert answer.config["why"].startswith(f"domain {known} in map ")
    assert answer.config["skip"] == SETS[known]


def test_a_conversation_is_routed_on_its_first_turn(
    build: Build, routed: Build, row: Row, request_for: RequestFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = (calibration_text("qa"), calibration_text("translation"))
    request = request_for(row("m", *turns, domain="law"), task="law", max_gen_toks=6)
    lm = routed()
    asked: list[str] = []
    choose = PromptRouter.choose
    monkeypatch.setattr(
        PromptRouter, "choose", lambda self, *given: asked.append("x") or choose(self, *given)
    )
    (answer,) = lm.generate_until([request], True)
    (by_hand,) = build(TssAR, skip_layers=SETS["qa"]).generate_until([request], True)
    assert asked == ["x"]
    assert answer.turns == by_hand.turns
    assert answer.config["domain"] == "qa"


def foreign_task(texts: list[str]) -> ConfigurableTask:
    docs = [{"question": text, "answer": "x"} for text in texts]
    return ConfigurableTask(
        config={
            "task": "foreign",
            "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(docs)},
            "test_split": "test",
            "output_type": "generate_until",
            "doc_to_text": "question",
            "doc_to_target": "answer",
            "generation_kwargs": {"until": [], "max_gen_toks": 4},
            "process_results": lambda doc, results: {"letters": len(results[0])},
            "metric_list": [
                {"metric": "letters", "aggregation": "mean", "higher_is_better": False}
            ],
        }
    )


def test_simple_evaluate_on_somebody_else_s_task_is_routed(
    routed: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = routed()
    texts = [calibration_text("qa"), calibration_text("translation"), calibration_text("qa", 1)]
    manager = TaskManager(include_path=str(task_directory()), include_defaults=False)
    results = lm_eval.simple_evaluate(
        lm, tasks=[foreign_task(texts), "tss_mmlu"], task_manager=manager, limit=3,
        bootstrap_iters=0, gen_kwargs="max_gen_toks=4",
    )  # fmt: skip
    answers = [sample["resps"][0][0] for sample in results["samples"]["foreign"]]
    assert [answer.config["domain"] for answer in answers] == ["qa", "translation", "qa"]
    told = results["config"]["tss_bench"]
    assert told["routed"] == {
        "foreign": {
            "qa": {"skip": [2], "requests": 2},
            "translation": {"skip": [1], "requests": 1},
        }
    }
    assert list(told["used"]) == ["tss_mmlu"]
    record = told["router"]
    assert (record["pooling"], record["k"], record["threshold"]) == ("last", 1, "calibrated")
    assert set(record["data"]) == set(SETS)
    assert all(source.startswith("mini ") for source in record["data"].values())
    said = capsys.readouterr().err
    assert "foreign: router=knn chooses after each prompt among translation, qa, mmlu" in said
    assert "foreign: 3 requests routed: 2 qa, 1 translation" in said


def test_scored_requests_are_routed_by_their_context(build: Build, routed: Build) -> None:
    text = calibration_text("qa")
    pairs = [
        Instance("loglikelihood", FOREIGN, (text, end), 0, (None, 0, 1)) for end in (" a", " b")
    ]
    lm = routed()
    assert lm.loglikelihood(pairs, True) == build(TssAR, skip_layers=SETS["qa"]).loglikelihood(
        pairs, True
    )
    assert lm.router is not None
    assert lm.router.summary() == {"unnamed task": {"qa": {"skip": [2], "requests": 1}}}
    lm.loglikelihood(pairs, True)
    (told,) = lm.router.notes()
    assert told == "unnamed task: 1 requests routed: 1 qa"
    whole = [Instance("loglikelihood_rolling", FOREIGN, (text,), 0, (None, 0, 1))]
    empty = [Instance("loglikelihood", FOREIGN, ("", text), 0, (None, 0, 1))]
    dense = build(NativeAR)
    assert lm.loglikelihood_rolling(whole, True) == dense.loglikelihood_rolling(whole, True)
    assert lm.loglikelihood(empty, True) == dense.loglikelihood(empty, True)


def test_an_index_that_cannot_be_made_is_one_error_when_scoring_too(
    routed: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = routed()

    def fail(self: PromptRouter) -> None:
        raise RuntimeError("no room left")

    monkeypatch.setattr(PromptRouter, "index", fail)
    with pytest.raises(AdapterError, match="no room left"):
        lm.loglikelihood([Instance("loglikelihood", FOREIGN, ("a", "b"), 0, (None, 0, 1))], True)


# The index.


def test_the_prompts_of_the_index_are_those_of_the_tasks() -> None:
    found = domain_prompts(["qa", "nq_open", "mmlu", "specbench_qa_fewshot"])
    names = ["specbench_qa", "tss_nq_open", "tss_mmlu", "specbench_qa_fewshot"]
    manager = TaskManager(
        include_path=str(task_directory()),
        include_defaults=False,
        metadata={"split": "calibration"},
    )
    tasks = [manager.load([name])["tasks"][name] for name in names]
    for task in tasks:
        task.build_all_requests()
    expected = [
        (request.args[0], request.doc["content_hash"], request.args[1]["max_gen_toks"])
        for task in tasks
        for request in task.instances
    ]
    given = [
        (prompt.request.context, prompt.row, prompt.options["max_gen_toks"])
        for prompt in found.prompts
    ]
    assert given == expected
    assert [prompt.request.style for prompt in found.prompts].count("completion") == 8


def test_no_test_row_is_in_the_index() -> None:
    rows = {prompt.row for prompt in domain_prompts(DOMAINS).prompts}
    calibration, test = (
        {row.content_hash for domain in DOMAINS for row in split_rows(resolve(domain)[0], split)}
        for split in ("calibration", "test")
    )
    assert rows == calibration
    assert not rows & test


def test_a_calibration_row_that_is_a_test_row_elsewhere_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    every = domain_prompts(["qa", "mmlu"]).prompts
    shared = every[0].row
    monkeypatch.setattr(router_prompts, "_test_rows", lambda domains: {shared})
    assert domain_prompts(["qa", "mmlu"]).prompts == every[1:]


def test_a_domain_without_rows_is_no_place_to_go() -> None:
    found = domain_prompts(["qa", "law"])
    assert set(found.sources) == {"qa"}
    assert found.notes == ("no request is routed to law: no task of tss_bench has its rows",)


def index_file(cache: Path) -> Path:
    (path,) = (cache / "router").iterdir()
    return path


@pytest.fixture
def small(build: Build, tmp_path: Path) -> Build:
    """An adapter that routes to one domain only, whose index is quickly made."""
    path = save_map(tmp_path / "small.json", {"qa": [2]})

    def make(**given: Any) -> SpeculativeLM:
        return build(TssAR, domain_map=path, router="knn", **given)

    return make


def count_readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the prompts that are read for an index from now on."""
    lengths: list[int] = []
    read = PromptRouter.read
    monkeypatch.setattr(
        PromptRouter, "read", lambda self, ids: lengths.append(len(ids)) or read(self, ids)
    )
    return lengths


def test_the_index_is_made_once_and_only_when_it_is_needed(
    small: Build,
    row: Row,
    request_for: RequestFor,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths = count_readings(monkeypatch)
    lm = small()
    lm.generate_until([request_for(row("a", "Hallo", domain="qa"))], True)
    assert lengths == []
    lm.generate_until([foreign(request_for, "Hallo")], True)
    assert len(lengths) == 2 * 8, "eight rows, each with and without the chat template"
    stored = index_file(own_cache)
    small().generate_until([foreign(request_for, "Hallo")], True)
    assert len(lengths) == 2 * 8
    assert index_file(own_cache) == stored


def test_a_torn_index_is_made_again(
    small: Build, request_for: RequestFor, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = [foreign(request_for, "Hallo")]
    first = small().generate_until(requests, True)
    path = index_file(own_cache)
    path.write_bytes(path.read_bytes()[:2000])
    capsys.readouterr()
    again = small().generate_until(requests, True)
    assert "is no whole router index" in capsys.readouterr().err
    assert again[0].config == first[0].config
    small().generate_until(requests, True)
    assert "is no whole router index" not in capsys.readouterr().err


def test_the_index_of_another_model_is_refused_and_made_again(
    small: Build,
    request_for: RequestFor,
    own_cache: Path,
    chat_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    requests = [foreign(request_for, "Hallo")]
    small().generate_until(requests, True)
    theirs = index_file(own_cache)
    directory = tmp_path / "tiny-chat"
    shutil.copytree(chat_model, directory)
    model = LlamaForCausalLM.from_pretrained(directory)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.manual_seed(1))
    model.save_pretrained(directory)
    other = small(pretrained=str(directory))
    assert other.router is not None
    mine = theirs.with_name(f"{other.router.fingerprint[:32]}.safetensors")
    assert mine != theirs
    mine.write_bytes(theirs.read_bytes())
    other.generate_until(requests, True)
    assert "is the router index of another model" in capsys.readouterr().err
    assert RouterIndex.load(mine, other.router.fingerprint).domains == ("qa",) * 16


def test_all_that_an_index_depends_on_is_in_its_fingerprint(small: Build) -> None:
    given: list[dict[str, Any]] = [
        {}, {"dtype": "bfloat16"}, {"router_pooling": "mean"}, {"chat_template": False},
        {"max_length": 32},
    ]  # fmt: skip
    prints = [lm.router.fingerprint for lm in (small(**one) for one in given) if lm.router]
    assert len(set(prints)) == len(given)
    # What shapes the rule alone needs no other index.
    shaped = small(router_k=1, router_threshold=0.5, scope="all").router
    assert shaped is not None
    assert shaped.fingerprint == prints[0]


def test_a_cache_that_cannot_be_written_is_only_told(
    small: Build,
    request_for: RequestFor,
    own_cache: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own_cache.write_text("no directory")
    small().generate_until([foreign(request_for, "Hallo")], True)
    assert "so the router index is made again next time" in capsys.readouterr().err


def test_mean_pooling_is_the_mean_of_the_dense_features(small: Build) -> None:
    lm = small(router_pooling="mean")
    assert lm.router is not None
    features = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    assert lm.router.pool(features).tolist() == [3.0, 5.0]
    last = small(router_pooling="last").router
    assert last is not None
    assert last.pool(features).tolist() == [5.0, 7.0]


# Where routing must not matter, and what is refused.


def test_a_search_never_sees_a_routed_request(
    routed: Build, request_for: RequestFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = routed()
    assert all(job.router for job in lm.jobs([foreign(request_for, "Hallo")]))
    for name in ("choose", "ready"):
        monkeypatch.setattr(PromptRouter, name, lambda *_: pytest.fail("routed"))
    task = ConfigurableTask.__new__(ConfigurableTask)
    monkeypatch.setattr(ConfigurableTask, "aggregation", lambda self: {})
    monkeypatch.setattr(ConfigurableTask, "process_results", lambda *_: {})
    rows = TaskRequests("foreign", task, [foreign(request_for, "Hallo")])
    skip = SkipSet.of([3], LAYERS)
    evaluator = SequentialEvaluator(lm, rows)
    (found,) = evaluator([SearchJob(skip, frozenset({"accept"}), (0,))])
    assert found.skip == skip


def test_a_job_under_a_given_set_is_not_routed(routed: Build, request_for: RequestFor) -> None:
    lm = routed()
    jobs = lm.jobs([foreign(request_for, calibration_text("qa"))])
    lm.begin_run(jobs)
    answer = lm.answer(jobs[0].under(SkipSet.of([3], LAYERS), "by hand"))
    assert (answer.config["skip"], answer.config["why"]) == ([3], "by hand")


def test_skip_layers_leave_the_router_nothing_to_do(
    build: Build, request_for: RequestFor, capsys: pytest.CaptureFixture[str]
) -> None:
    lm = build(TssAR, skip_layers="1", router="knn")
    (answer,) = lm.generate_until([foreign(request_for, "Hallo")], True)
    assert (answer.config["skip"], answer.config["why"]) == ([1], "skip_layers=1")
    assert (
        "skip_layers=1 is for every request, so router=knn routes none" in capsys.readouterr().err
    )
    assert "routed" not in lm.get_model_info()["tss_bench"]


def test_a_map_that_skips_nothing_says_that_routing_changes_nothing(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save_map(tmp_path / "map.json", {"qa": []})
    build(TssTokenRecycling, domain_map=path, router="knn")
    assert "skips nothing, so router=knn changes no answer" in capsys.readouterr().err


def test_a_cache_of_answers_depends_on_the_index(
    routed: Build, row: Row, request_for: RequestFor, tmp_path: Path
) -> None:
    path = str(tmp_path / "answers_rank0.db")
    text = calibration_text("qa")
    requests = [foreign(request_for, text)]
    first = CachingLM(routed(), path).generate_until(requests)
    again = CachingLM(routed(), path).generate_until(requests)
    assert [answer.config for answer in again] == [{**first[0].config, "cached": True}]
    for change in ({"router_pooling": "mean"}, {"router_threshold": 0.5}, {"router_k": 2}):
        with pytest.raises(AdapterError, match=r"another configuration \(router: there"):
            CachingLM(routed(**change), path)
    both = [*requests, request_for(FOREIGN, text, task="specbench_qa")]
    with pytest.raises(AdapterError, match="answered with another skip set"):
        CachingLM(routed(), str(tmp_path / "other_rank0.db")).generate_until(both)


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("adapter", "given", "message"),
    [
        (TssAR, {"router": "forest"}, "router must be one of none, knn, got 'forest'"),
        (TssAR, {"router_k": 3}, "router_k: there is no router to shape; add router=knn"),
        (NativeAR, {"router": "knn"}, "native_ar always runs every layer and takes no router"),
        (TssAR, {"router": "knn"}, "no packaged map for tiny-chat with drafter none: give domain"),
        (TssAR, {"router": "knn", "router_k": 0}, "router_k must be a whole number of at least 1"),
        (TssAR, {"router": "knn", "router_threshold": 3}, "cosine distance, 0 to 2, got 3"),
        (TssAR, {"router": "knn", "router_pooling": "max"}, "must be one of last, mean"),
    ],
)
def test_bad_input_is_refused_before_any_weight_is_loaded(
    build: Build, adapter: type[SpeculativeLM], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        build(adapter, **given)


@pytest.mark.usefixtures("no_loading")
def test_a_map_without_places_and_too_many_neighbours_are_refused(
    build: Build, tmp_path: Path, map_path: str
) -> None:
    law = save_map(tmp_path / "law.json", {"law": [1]})
    with pytest.raises(AdapterError, match="no domain to route to: no request is routed to law"):
        build(TssAR, domain_map=law, router="knn")
    with pytest.raises(AdapterError, match="router_k=25 is more than the 24 calibration prompts"):
        build(TssAR, domain_map=map_path, router="knn", router_k=25)


def test_an_answer_of_no_token_is_not_routed(routed: Build, request_for: RequestFor) -> None:
    (answer,) = routed().generate_until([foreign(request_for, "Hallo", max_gen_toks=0)], True)
    assert type(answer) is GeneratedText
    assert answer.config["why"] == "router: no prompt was read: dense"
    assert read_options({"max_gen_toks": 0}, routed().arguments).max_gen_toks == 0


@pytest.mark.usefixtures("no_loading")
def test_every_form_must_have_enough_prompts(build: Build, tmp_path: Path) -> None:
    """Of the 16 rows, the 8 of the few-shot task have no form with the chat template."""
    mixed = save_map(tmp_path / "map.json", {"qa": [1], "specbench_qa_fewshot": [2]})
    with pytest.raises(AdapterError, match="more than the 8 calibration prompts of form chat that"):
        build(TssAR, domain_map=mixed, router="knn", router_k=9)


@pytest.mark.usefixtures("no_loading")
def test_a_threshold_that_cannot_be_calibrated_is_known_before_loading(
    build: Build, map_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_each(domains: Any, *given: Any) -> Any:
        found = domain_prompts(domains, *given)
        first = {prompt.domain: prompt for prompt in reversed(found.prompts)}
        return replace(found, prompts=tuple(first.values()))

    monkeypatch.setattr("model_adapters.choosing.domain_prompts", one_each)
    with pytest.raises(AdapterError, match="no domain of the router index has two rows of form"):
        build(TssAR, domain_map=map_path, router="knn", router_k=1)
