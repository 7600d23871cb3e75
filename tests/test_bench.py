"""The `bench` commands on a tiny model; the speeds themselves are never tested."""

from __future__ import annotations

import argparse
import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tiny
from tests.model_adapters.conftest import TEMPLATE, save_model
from tss_bench import bench, bench_domains
from tss_bench.domains import DomainConfig, DomainMap
from tss_bench.harness import TaskRequests, prepare_adapters
from tss_bench.locks import only_writer
from tss_bench.types import SkipSet


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny-chat", TEMPLATE)


@pytest.fixture(autouse=True)
def mini_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")


LOADED: dict[str, Any] = {}
"""Tasks by their arguments: lm-eval takes seconds to index its own for each load."""


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch: pytest.MonkeyPatch, mini_set: None) -> None:
    """Each task is loaded once; every test gets requests of its own."""
    load = bench.load_tasks

    def load_tasks(*given: Any) -> Any:
        key = repr(given)
        if key not in LOADED:
            LOADED[key] = load(*given)
        return [replace(task, requests=copy.deepcopy(task.requests)) for task in LOADED[key]]

    monkeypatch.setattr(bench, "load_tasks", load_tasks)


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("tss_bench.weights.load_model", load)


def arguments(model_dir: Path, *words: str, model_args: str = "") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_domains.add_arguments(parser)
    text = f"pretrained={model_dir},dtype=float32,device=cpu,max_length=128,{model_args}"
    return parser.parse_args(["--limit", "2", "--model_args", text, *words])


PAIR = ("--model", "native_token_recycling,tss_token_recycling", "--tasks", "specbench_qa")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of at most eight ids, whatever the task says."""
    read = bench.SpeculativeLM.jobs

    def jobs(self: Any, requests: Any) -> Any:
        for request in requests:
            request.args[1]["max_gen_toks"] = 8
        return read(self, requests)

    monkeypatch.setattr(bench.SpeculativeLM, "jobs", jobs)


@pytest.mark.usefixtures("short")
def test_domains_compares_native_and_sparse(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_domains.run(arguments(model_dir, *PAIR, model_args="skip_layers=1+2"))
    lines = capsys.readouterr().out.splitlines()
    assert "tss_token_recycling: protocol strict, scope verify, skips {1,2}" in lines
    assert "native_token_recycling: protocol strict, scope verify, skips {}" in lines
    found = json.loads(lines[-1])
    assert found["adapters"]["tss_token_recycling"]["skip_sets"] == {"*": [1, 2]}
    native, sparse = found["results"]
    assert (native["skip"], sparse["skip"]) == ([[]], [[1, 2]])
    assert native["task"] == "specbench_qa (mini)"
    assert set(native["intervals"]) >= {"accept_len", "tokens_per_second", "f1"}


def twin(task: TaskRequests, domain: str) -> TaskRequests:
    """The same rows under the name of another domain."""
    other = copy.copy(task.task)
    other._config = copy.copy(task.task.config)
    other._config.task_alias = f"specbench_{domain}"
    return TaskRequests(f"specbench_{domain}", other, list(task.requests))


def test_a_killed_run_of_a_group_goes_on_with_the_next_task(
    model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare, measure = bench.prepare, bench_domains.run_interleaved
    prepared: list[Any] = []
    labels: list[str] = []

    def prepare_once(args: argparse.Namespace) -> Any:
        if not prepared:
            adapters, (task,), left_out = prepare(args)
            for request in task.requests:
                request.args[1]["max_gen_toks"] = 8
            prepared.append((adapters, [task, twin(task, "rag")], left_out))
        return prepared[0]

    def until_killed(adapters: Any, requests: Any, label: str) -> Any:
        labels.append(label)
        if len(labels) == 2:
            raise KeyboardInterrupt
        return measure(adapters, requests, label)

    monkeypatch.setattr(bench, "prepare", prepare_once)
    monkeypatch.setattr(bench_domains, "run_interleaved", until_killed)
    words = ("--tasks", "specbench_qa", "--model", "native")
    args = arguments(model_dir, *words, "--out", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        bench_domains.run(args)
    first = capsys.readouterr().out.splitlines()
    bench_domains.run(args)
    assert labels == ["specbench_qa (mini)", *["specbench_rag"] * 2]
    second = capsys.readouterr()
    assert "specbench_qa (mini): kept, measured 20" in second.err
    # The kept figures are those that were printed, times included.
    printed = [line for line in first if line.startswith("| specbench_qa")]
    assert len(printed) >= 2
    assert set(printed) <= set(second.out.splitlines())

    found = json.loads(second.out.splitlines()[-1])
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == found
    names = {label.removesuffix(" (lossy)") for label in found["summary"]}
    assert names == set(found["adapters"]) >= {"native_ar", "early_exit"}
    assert "early_exit (lossy)" in found["summary"]
    assert "native_eagle" in found["left_out"]
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "at most 2 rows a task, split test" in summary
    assert "native_eagle is left out: no EAGLE head" in summary
    assert summary.split("\n\n| task ")[0] in second.out

    # Other rows are another measurement, and a torn file is none.
    prepared[0][1][0].requests.pop()
    (tmp_path / "specbench_rag.json").write_text("{", encoding="utf-8")
    bench_domains.run(args)
    assert labels[3:] == ["specbench_qa (mini)", "specbench_rag"]
    assert "measured with other settings" in capsys.readouterr().err


@pytest.mark.usefixtures("no_loading")
def test_two_runs_do_not_write_to_one_folder(model_dir: Path, tmp_path: Path) -> None:
    with (
        only_writer(tmp_path / ".lock", "first"),
        pytest.raises(ValueError, match=r"another bench domains writes .*; wait for it or choose"),
    ):
        bench_domains.run(arguments(model_dir, *PAIR, "--out", str(tmp_path)))
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("no_loading")
def test_out_is_a_folder(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ValueError, match="x is a file; give a folder"):
        bench_domains.run(arguments(model_dir, *PAIR, "--out", str(tmp_path / "x")))


@pytest.mark.usefixtures("short")
def test_engine_times_hub_and_adapters_on_the_same_prompts(
    model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.run_engine(arguments(model_dir, "--model", "native_ar", "--tasks", "specbench_qa"))
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert set(found["specbench_qa (mini)"]) == {"hf_generate", "native_ar"}
    assert found["specbench_qa (mini)"]["native_ar"]["accept_len"] == 1.0
    assert found["mean"]["native_ar"]["over_hub"] > 0


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--limit", "0"), "--limit must be at least 1, got 0"),
        (("--threads", "0"), "--threads must be at least 1, got 0"),
        (("--model", "native_ar,hf"), "no adapter 'hf'"),
        (("--tasks", "specbench_nothing"), "no task specbench_nothing"),
        (("--tasks", "specbench_qa_fewshot"), r"specbench_qa_fewshot stops at '\\n', where Hugg"),
    ],
)
def test_engine_refuses_bad_input_before_it_loads(
    model_dir: Path, words: tuple[str, ...], message: str
) -> None:
    args = arguments(model_dir, "--model", "native_ar", "--tasks", "specbench_qa", *words)
    with pytest.raises(ValueError, match=message):
        bench.run_engine(args)


@pytest.mark.usefixtures("no_loading")
def test_engine_refuses_sampling_and_empty_answers(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--model", "native_ar", "--tasks", "specbench_qa")
    with pytest.raises(ValueError, match=r"samples at temperature 0\.5"):
        bench.run_engine(arguments(model_dir, *words, model_args="temperature=0.5"))
    load = bench.load_tasks

    def without_limit(*given: Any) -> Any:
        tasks = load(*given)
        for request in tasks[0].requests:
            del request.args[1]["max_gen_toks"]
        return tasks

    monkeypatch.setattr(bench, "load_tasks", without_limit)
    # A task without a limit of its own takes the adapter's.
    with pytest.raises(ValueError, match="specbench_qa asks for no new token"):
        bench.run_engine(arguments(model_dir, *words, model_args="max_gen_toks=0"))


@pytest.mark.usefixtures("short")
def test_lossless_counts_equal_answers(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "tss_ar,tss_token_recycling", "--tasks", "specbench_qa")
    bench.run_lossless(arguments(model_dir, *words, model_args="skip_layers=1,scope=all"))
    lines = capsys.readouterr().out.splitlines()
    assert (
        "specbench_qa (mini): 2 of 2 answers of tss_token_recycling equal those of tss_ar"
        in (lines[-2])
    )
    assert json.loads(lines[-1])["results"][0]["different"] == 0


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("dtype", "rounding", "fails"),
    [("float32", 0.0, True), ("float32", 1e9, False), ("bfloat16", 0.0, True)],
)
def test_lossless_tells_where_answers_part_and_by_how_much(
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    dtype: str,
    rounding: float,
    fails: bool,
) -> None:
    args = arguments(model_dir, *PAIR[2:], "--model", "native_ar,native_token_recycling")
    args.model_args = args.model_args.replace("float32", dtype)
    answer = bench.SpeculativeLM.generate_until

    def wrong_third_id(self: Any, requests: Any) -> Any:
        answers = answer(self, requests, True)
        if self.name == "native_token_recycling":
            first = answers[1].ids[0]
            answers[1].ids = ((*first[:2], (first[2] + 1) % 200, *first[3:]),)
        return answers

    monkeypatch.setattr(bench.SpeculativeLM, "generate_until", wrong_third_id)
    monkeypatch.setattr("tss_bench.decoding.divergence.rounding", lambda *_: rounding)
    if fails:
        message = "1 answers differ; native_token_recycling differs from native_ar in row 1 of "
        with pytest.raises(ValueError, match=message) as caught:
            bench.run_lossless(args)
        assert "turn 1, id 2: " in str(caught.value)
        assert f"apart ({dtype} rounds 0)" in str(caught.value)
        assert ("--model_args dtype=float32" in str(caught.value)) == (dtype == "bfloat16")
    else:
        bench.run_lossless(args)
    assert (
        f"1 of 2 answers of native_token_recycling equal those of native_ar, {1 - fails} diff"
        in (capsys.readouterr().out)
    )


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("model", "model_args", "message"),
    [
        ("native_ar", "", "name two or more"),
        ("native_ar,tss_ar", "skip_layers=1", "native_ar and tss_ar run different sparse targets"),
        ("tss_ar,tss_token_recycling", "temperature=1.0", "specbench_qa is sampled"),
    ],
)
def test_lossless_compares_greedy_answers_of_one_target(
    model_dir: Path, model: str, model_args: str, message: str
) -> None:
    words = ("--tasks", "specbench_qa", "--model", model)
    with pytest.raises(ValueError, match=message):
        bench.run_lossless(arguments(model_dir, *words, model_args=model_args))


@pytest.mark.usefixtures("no_loading")
def test_an_all_dense_map_is_the_dense_target(model_dir: Path) -> None:
    text = f"pretrained={model_dir},skip_layers=dense"
    native, sparse = prepare_adapters(["native_ar", "tss_ar"], text).values()
    assert bench._target_of(native) == bench._target_of(sparse)


@pytest.mark.usefixtures("no_loading")
def test_lossless_leaves_the_lossy_members_of_a_group_out(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def before_loading(adapters: Any) -> None:
        seen.update(adapters)
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "load_adapters", before_loading)
    words = ("--tasks", "specbench_qa", "--model")
    with pytest.raises(KeyboardInterrupt):
        bench.run_lossless(arguments(model_dir, *words, "native"))
    assert {"native_ar", "native_token_recycling"} <= set(seen)
    assert "early_exit" not in seen
    with pytest.raises(ValueError, match="native_ar and early_exit run different sparse targets"):
        bench.run_lossless(arguments(model_dir, *words, "native_ar,early_exit"))


@pytest.mark.usefixtures("no_loading")
def test_adapters_that_route_in_another_way_have_other_targets(
    model_dir: Path, tmp_path: Path
) -> None:
    domains = {"qa": DomainConfig(SkipSet.of([2], 4)), "mmlu": DomainConfig(SkipSet.dense(4))}
    DomainMap("tiny-chat", "none", 4, domains=domains).save(tmp_path / "map.json")
    text = f"pretrained={model_dir},domain_map={tmp_path / 'map.json'}"

    def targets(more: str) -> list[object]:
        made = prepare_adapters(["tss_ar", "tss_token_recycling"], text + more)
        return [bench._target_of(adapter) for adapter in made.values()]

    one, two = targets(",router=knn,router_k=1")
    assert one == two
    one, two = targets(",tss_ar.router=knn")
    assert one != two
    one, two = targets(",router=knn,tss_ar.router_k=2")
    assert one != two
    one, two = targets(",skip_layers=1,tss_ar.router=knn")
    assert one == two


def test_hub_generate_is_timed_and_counted_as_ours() -> None:
    stats = bench.hub_generate(tiny.model(), [5, 6, 7], 6)
    assert stats.new_tokens <= 6
    assert stats.verify_steps == stats.new_tokens - 1
    assert 0 < stats.prefill_s < stats.wall_s


def test_the_hub_s_clock_starts_on_an_idle_device(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append("synchronize"))
    monkeypatch.setattr("time.perf_counter", lambda: order.append("read") or 0.0)
    clock = bench._FirstToken(torch.device("cuda"))
    clock.elapsed()
    assert order == ["synchronize", "read"] * 2
