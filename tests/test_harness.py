"""Interleaved runs over real lm-eval tasks, with a tiny model."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.tasks import TaskManager

from model_adapters.arguments import AdapterError
from model_adapters.base import SpeculativeLM
from tests.model_adapters.conftest import TEMPLATE, make_request, make_row, save_model
from tests.model_adapters.conftest import make_tokenizer as byte_tokenizer
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.harness import (
    Outcome,
    TaskRequests,
    interleave,
    load_adapters,
    load_tasks,
    open_tasks,
    prepare_adapters,
    prepare_runnable,
    rounds,
    run_interleaved,
)
from tss_bench.task_paths import task_directory
from tss_bench.weights import save_eagle_head


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-chat", TEMPLATE)


@pytest.fixture(scope="module")
def head_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(8)
    config = EagleConfig(32, 64, 4, 2, 8, vocab_size=len(byte_tokenizer()))
    directory = tmp_path_factory.mktemp("heads") / "tiny-head"
    save_eagle_head(EagleHead(config, own_embedding=False), directory, {"source": "random"})
    return directory


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trees") / "small.json"
    path.write_text(json.dumps({"paths": [[0], [1], [0, 0], [0, 0, 0]]}), encoding="utf-8")
    return str(path)


@pytest.fixture(autouse=True)
def mini_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("tss_bench.weights.load_model", load)
    monkeypatch.setattr("tss_bench.weights.load_eagle_head", load)


def make_adapters(names: list[str], arguments: str) -> dict[str, SpeculativeLM]:
    adapters = prepare_adapters(names, arguments)
    load_adapters(adapters)
    return adapters


def task(name: str, limit: int) -> TaskRequests:
    (found,) = load_tasks([name], limit)
    return found


def test_adapters_share_one_target(model_dir: Path) -> None:
    made = make_adapters(["native_ar", "native_token_recycling"], f"pretrained={model_dir}")
    assert made["native_ar"].target is made["native_token_recycling"].target
    assert made["native_ar"].drafter is not made["native_token_recycling"].drafter


def test_a_target_is_shared_only_where_it_is_the_same(model_dir: Path) -> None:
    made = make_adapters(["native_ar"], f"pretrained={model_dir},dtype=float32")
    other = prepare_adapters(["tss_ar"], f"pretrained={model_dir},dtype=bfloat16")["tss_ar"]
    with pytest.raises(AdapterError, match="dtype is bfloat16 for one and float32 for another"):
        other.load(made["native_ar"].loaded)


def test_each_adapter_gets_the_arguments_that_it_takes(model_dir: Path, head_dir: Path) -> None:
    names = ["native_eagle", "tss_eagle", "native_token_recycling"]
    text = f"pretrained={model_dir},draft={head_dir},skip_layers=1+2,total_token=4,state=run"
    made = prepare_adapters(names, text)
    skips = [list(adapter.controller.choose("x").skip) for adapter in made.values()]
    assert skips == [[], [1, 2], []]
    assert [adapter.arguments.total_token for adapter in made.values()] == [4, 4, None]
    assert [adapter.arguments.state for adapter in made.values()] == ["request", "request", "run"]
    assert {adapter.arguments.pretrained for adapter in made.values()} == {str(model_dir)}


@pytest.mark.usefixtures("no_loading")
def test_a_group_is_every_adapter_that_can_run(model_dir: Path, head_dir: Path) -> None:
    text = f"pretrained={model_dir}"
    made, left_out = prepare_runnable(["native"], text)
    # The tiny model has no packaged head.
    assert {"native_ar", "native_token_recycling"} <= set(made)
    assert "no EAGLE head is packaged" in left_out["native_eagle"]
    assert not any(adapter.sparse for adapter in made.values())
    made, left_out = prepare_runnable(["all"], f"{text},native_eagle.draft={head_dir}")
    assert {"native_ar", "tss_ar", "native_eagle"} <= set(made)
    assert "tss_eagle" in left_out
    made, _ = prepare_runnable(["tss_ar", "native", "tss_ar"], text)
    assert list(made)[:2] == ["tss_ar", "native_ar"]


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        (["native_ar", "native_eagle"], "", "draft"),
        (["native", "native_eagle"], "", "draft"),
        (["native"], "dtype=float8", "dtype must be one of"),
        (["native"], "nonsense=1", "native_ar has no argument 'nonsense'"),
        (["natives"], "", "no adapter 'natives'"),
        # What was said of one adapter is meant, and a bad value is no lack.
        (["native"], "native_samd.n_predicts=0", "n_predicts must be a whole number of at least 1"),
        (["native"], "native_samd.n_predict=4", "no argument 'n_predict'; did you mean 'n_pred"),
        (["native"], "native_eagle.depth=3", "no EAGLE head is packaged"),
        (["native"], "num_pred_tokens=0", "num_pred_tokens must be a whole number of at least 1"),
        (["native"], "exit_layer=9", "exit_layer=9 is out of range"),
        (["native"], "native_draft_model.draft=./nowhere", "nowhere"),
    ],
)
def test_what_was_named_itself_is_not_left_out(
    model_dir: Path, names: list[str], arguments: str, message: str
) -> None:
    with pytest.raises(AdapterError, match=message):
        prepare_runnable(names, f"pretrained={model_dir},{arguments}")


@pytest.mark.usefixtures("no_loading")
def test_arguments_by_name_may_hold_commas(model_dir: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a,b=c"
    odd.symlink_to(model_dir, target_is_directory=True)
    given = {"pretrained": str(odd), "skip_layers": "1+2"}
    made = prepare_adapters(["native_ar", "tss_ar"], given)
    assert [adapter.arguments.pretrained for adapter in made.values()] == [str(odd)] * 2
    assert [list(one.controller.choose("x").skip) for one in made.values()] == [[], [1, 2]]


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("names", "arguments", "message"),
    [
        (["native_ar", "dummy"], "", "no adapter 'dummy'; there is native_ar, tss_ar"),
        ([], "", "no adapter was named"),
        (["native_ar", "tss_ar"], "skip_layer=3", "no argument 'skip_layer'; did you mean"),
        (["native_ar", "native_token_recycling"], "skip_layers=3", "takes no skip_layers; use tss"),
        (["native_ar", "tss_ar"], "draft=x", "argument 'draft' has no meaning for native_ar"),
        (["native_ar", "tss_ar"], "skip_layers=9", "skip layer 9 does not exist"),
        (["native_ar", "native_eagle"], "draft=./nowhere", "draft='./nowhere' is no directory"),
        (["native_ar", "tss_ar"], "max_length=257", "max_length=257 is above the context of tiny"),
        (["native_ar", "native_token_recycling"], "tree=nothing", "no tree 'nothing'|nothing"),
    ],
)
def test_bad_input_fails_before_any_weight_is_loaded(
    model_dir: Path, names: list[str], arguments: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        prepare_adapters(names, ",".join([f"pretrained={model_dir}", arguments]))


def test_every_adapter_answers_every_request(model_dir: Path, head_dir: Path) -> None:
    """A native-vs-TSS pair, as `tss-bench bench domains --model native_eagle,tss_eagle` runs it."""
    text = f"pretrained={model_dir},dtype=float32,draft={head_dir},skip_layers=1+2"
    adapters = make_adapters(["native_ar", "native_eagle", "tss_eagle"], text)
    work = task("specbench_qa_fewshot", limit=3)
    answers = run_interleaved(adapters, work.requests, work.label)
    assert {name: len(given) for name, given in answers.items()} == dict.fromkeys(adapters, 3)
    assert answers["native_ar"] == answers["native_eagle"] != answers["tss_eagle"]
    plain, eagle = (work.score(answers[name]) for name in ("native_ar", "native_eagle"))
    assert plain.aggregate(work.task)["accept_len"] == 1.0
    assert plain.aggregate(work.task)["f1"] == eagle.aggregate(work.task)["f1"]
    assert plain.requests == plain.aggregate(work.task)["scored"] == 3


def test_the_order_rotates_behind_a_warm_up_that_is_not_recorded() -> None:
    calls: list[tuple[str, int]] = []

    def method(name: str) -> Any:
        def answer(request: int) -> int:
            calls.append((name, request))
            return 10 * request

        return answer

    methods = {name: method(name) for name in "abc"}
    answers = interleave(methods, [1, 2, 3, 4], "x", begin=lambda: calls.append(("begin", 0)))
    assert answers == {name: [10, 20, 30, 40] for name in "abc"}
    assert calls[:4] == [("a", 1), ("b", 1), ("c", 1), ("begin", 0)]
    order = ["".join(name for name, request in calls[4:] if request == turn) for turn in (1, 2, 3)]
    assert order == ["abc", "bca", "cab"]
    assert [request for _, request in calls[4:]] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_a_round_is_there_as_soon_as_it_is_made_and_turns_number_the_rotation() -> None:
    calls: list[str] = []
    methods = {name: lambda request, name=name: calls.append(name + request) for name in "ab"}
    made = rounds(methods, ["x", "y"], "x", turns=[3, 6])
    assert next(made) == {"a": None, "b": None}
    assert calls == ["ax", "bx", "bx", "ax"]
    assert list(next(made)) == ["a", "b"]
    assert calls[4:] == ["ay", "by"]
    with pytest.raises(ValueError, match="zip"):
        list(rounds(methods, ["x", "y"], "x", turns=[3]))


def test_tasks_are_opened_once_and_generation_arguments_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = functools.partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("tss_bench.harness.TaskManager", own)
    opened = open_tasks(["specbench_qa"], {"split": "calibration"})
    assert opened.load(["specbench_qa"]) is opened.loaded
    with pytest.raises(ValueError, match="specbench_qa are loaded, not specbench_rag"):
        opened.load(["specbench_rag"])
    (found,) = opened.requests(1, {"max_gen_toks": 3})
    assert found.requests[0].args[1] == {"until": [], "max_gen_toks": 3}


def test_tasks_of_ones_own_come_from_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = functools.partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("tss_bench.harness.TaskManager", own)
    rows = [make_row(name, name) for name in "abcdefghij"]
    (tmp_path / "law.jsonl").write_text(
        "".join(
            json.dumps({"question_id": i, "category": "law", "turns": row["turns"],
                        "reference": ["R"]}) + "\n"
            for i, row in enumerate(rows)
        )
    )  # fmt: skip
    (tmp_path / "law.yaml").write_text(
        f"include: {task_directory()}/specbench_qa.yaml\ntask: law_qa\n"
        f"dataset_kwargs:\n  rows: law\n  file: {tmp_path / 'law.jsonl'}\n"
    )
    names = ["law_qa", "specbench_qa"]
    law, _ = load_tasks(names, 1, {"split": "calibration"}, str(tmp_path))
    assert (law.name, law.label) == ("law_qa", "law_qa (custom, calibration)")
    with pytest.raises(ValueError, match="no task law_qa"):
        load_tasks(["law_qa"], 1)
    with pytest.raises(ValueError, match="nowhere is no folder"):
        load_tasks(["law_qa"], 1, None, str(tmp_path / "nowhere"))


def test_methods_beside_the_adapters_get_the_same_jobs(model_dir: Path) -> None:
    adapters = make_adapters(["native_ar"], f"pretrained={model_dir},dtype=float32")
    requests = [make_request(make_row(name, name), max_gen_toks=3) for name in "ab"]
    beside = {"echo": lambda job: job.request.name}
    answers = run_interleaved(adapters, requests, "x", beside)  # type: ignore[arg-type]
    assert answers["echo"] == ["a", "b"]
    assert list(answers) == ["echo", "native_ar"]


def test_a_run_is_one_run_for_every_adapter(
    model_dir: Path, tree: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a drafter keeps lasts from request to request, and all requests are counted."""
    text = f"pretrained={model_dir},dtype=float32,max_length=48,tree={tree}"
    same = [make_request(make_row(name, "Hallo"), max_gen_toks=24) for name in "ab"]
    steps = {}
    for state in ("request", "run"):
        adapters = make_adapters(["native_token_recycling"], f"{text},state={state}")
        for _ in range(2):
            (answers,) = run_interleaved(adapters, same, "x").values()
            assert answers[0] == answers[1]
            steps.setdefault(state, []).append([a.stats[0].verify_steps for a in answers])
    (alone, again), _ = steps["request"]
    assert alone == again
    # Warm-up and earlier runs leave nothing behind; the second request has the first's rows.
    assert steps["run"][0] == steps["run"][1]
    assert steps["run"][0][0] == alone
    assert steps["run"][0][1] < alone
    capsys.readouterr()
    long = [make_request(make_row(name, "x" * 60), max_gen_toks=2) for name in "abc"]
    run_interleaved(adapters, long, "x")
    assert "3 of 3 prompts did not fit the context of 48 tokens" in capsys.readouterr().err


def test_figures_are_pooled_by_the_task() -> None:
    outcome = Outcome()
    outcome.add({"accept_len": (10, 2), "f1": 1.0, "scored": 1})
    outcome.add({"accept_len": (90, 45), "f1": 0.0, "scored": 1})
    found = outcome.aggregate(task("specbench_qa", 1).task)
    assert found["accept_len"] == pytest.approx(100 / 47)
    assert (found["f1"], found["scored"]) == (0.5, 2)


def test_an_unknown_task_and_an_untimed_one_are_refused() -> None:
    with pytest.raises(ValueError, match="no task specbench_nothing"):
        load_tasks(["specbench_nothing"], 1)
    with pytest.raises(ValueError, match="tss_mmlu_ll asks for no generated answer"):
        load_tasks(["tss_mmlu_ll"], 1)
    with pytest.raises(ValueError, match="no task was named"):
        load_tasks([], 1)


def test_a_task_is_called_as_in_lm_eval_s_table() -> None:
    found = task("specbench_qa", 2)
    assert (found.label, len(found.requests)) == ("specbench_qa (mini)", 2)
