"""`tss-bench bench skips` on two tiny targets.

May import: pytest, torch, transformers, model_adapters, tss_bench and the standard library.
"""

from __future__ import annotations

import argparse
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from model_adapters.base import SpeculativeLM
from tests.model_adapters.conftest import LAYERS, TEMPLATE, make_tokenizer, save_model
from tss_bench import cli, tolerance
from tss_bench.answer_records import FILE
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.target import Target
from tss_bench.harness import (
    TaskRequests,
    load_adapters,
    load_tasks,
    prepare_adapters,
    run_interleaved,
)
from tss_bench.scoring.pooled import request_pairs
from tss_bench.weights import save_eagle_head

ROWS = 3
TASK = "specbench_summarization"


def changed(directory: Path, place: Path, template: str | None = TEMPLATE) -> Path:
    """A copy of a model with other weights, and perhaps another chat template."""
    model = LlamaForCausalLM.from_pretrained(directory)
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(place)
    make_tokenizer(template).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "untouched", TEMPLATE)


@pytest.fixture(scope="module")
def adapted(untouched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return changed(untouched, tmp_path_factory.mktemp("models") / "adapted")


@pytest.fixture(scope="module")
def loaded_tasks() -> dict[tuple[Any, ...], list[TaskRequests]]:
    """Tasks that a test of this module has loaded; indexing all of lm-eval takes seconds."""
    return {}


@pytest.fixture(autouse=True)
def mini_set(
    monkeypatch: pytest.MonkeyPatch, loaded_tasks: dict[tuple[Any, ...], list[TaskRequests]]
) -> None:
    """Rows of the mini set, answers of at most eight ids.

    Random models never score: the metric here is a number between 0.1 and 1 made of the answer.
    """
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")

    def load(names: list[str], limit: int, metadata: dict[str, str]) -> list[TaskRequests]:
        key = (*names, metadata["split"])
        if key not in loaded_tasks:
            loaded_tasks[key] = load_tasks(names, ROWS + 1, metadata)
            for task in loaded_tasks[key]:
                for request in task.requests:
                    request.args[1]["max_gen_toks"] = 8
                task.task.process_results = lambda doc, results: {
                    "rougeL": 0.1 + sum(map(ord, results[0])) % 10 / 10,
                    "accept_len": request_pairs(results[0].stats)["accept_len"],
                }
        return [TaskRequests(t.name, t.task, t.requests[:limit]) for t in loaded_tasks[key]]

    monkeypatch.setattr(tolerance, "load_tasks", load)


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*args: Any, **kwargs: Any) -> None:
        pytest.fail("weights were loaded")

    monkeypatch.setattr("tss_bench.weights.load_model", load)
    monkeypatch.setattr("tss_bench.weights.load_eagle_head", load)


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Model and drafter of every answer that is computed."""
    seen: list[tuple[str, str]] = []
    answer = SpeculativeLM.put_together

    def counted(self: SpeculativeLM, job: Any, turns: Any) -> Any:
        seen.append((self.info.id, self.drafter_id))
        return answer(self, job, turns)

    monkeypatch.setattr(SpeculativeLM, "put_together", counted)
    return seen


SETTING = "dtype=float32,device=cpu,max_length=128"


def arguments(model: Path, out: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tolerance.add_arguments(parser)
    base = ["--pretrained", str(model), "--out", str(out), "--tasks", TASK, "--limit", str(ROWS)]
    return parser.parse_args([*base, "--drafters", "ar", "--model_args", SETTING, *words])


def run(capsys: pytest.CaptureFixture[str], model: Path, out: Path, *words: str) -> dict[str, Any]:
    """The JSON line of a run."""
    capsys.readouterr()
    tolerance.run(arguments(model, out, *words))
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_every_configuration_is_measured_as_the_harness_does(
    untouched: Path, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--reference", str(untouched), "--drafters", "ar,token_recycling", "--sets", "1+2,3")
    found = run(capsys, adapted, tmp_path, *words)
    rows = found["results"]
    shown = [(row["drafter"], row["role"], row["target"], row["skip"]) for row in rows]
    assert shown == [
        (drafter, role, role_id, skip)
        for drafter in ("ar", "token_recycling")
        for role, role_id, sets in (
            ("reference", "untouched", [[]]),
            ("target", "adapted", [[], [1, 2], [3]]),
        )
        for skip in sets
    ]
    assert [sorted(row["against"]) for row in rows[:4]] == [
        [],
        ["reference"],
        ["own", "reference"],
        ["own", "reference"],
    ]
    adapters = prepare_adapters(
        ["tss_token_recycling"], f"pretrained={adapted},skip_layers=1+2,{SETTING}"
    )
    load_adapters(adapters)
    (task,) = tolerance.load_tasks([TASK], ROWS, {"split": "test"})
    (answers,) = run_interleaved(adapters, task.requests, "x").values()
    expected = task.score(answers).aggregate(task.task)
    assert rows[6]["accept_len"] == pytest.approx(expected["accept_len"])
    assert rows[6]["metric"] == pytest.approx(expected["rougeL"])
    assert (rows[6]["sparsity"], rows[6]["scored"], rows[6]["rows"]) == (2 / LAYERS, ROWS, ROWS)
    assert (rows[6]["data"], rows[6]["split"]) == ("mini", "test")
    assert (rows[6]["scope"], rows[6]["protocol"]) == ("verify", "strict")
    assert found["targets"]["target"]["id"] == "adapted"


def test_a_target_against_itself_differs_in_nothing(
    untouched: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answered: list[tuple[str, str]],
) -> None:
    words = ("--reference", str(untouched), "--drafters", "token_recycling")
    reference, target = run(capsys, untouched, tmp_path, *words)["results"]
    against = target["against"]["reference"]
    assert against["holds"]
    for name in ("metric", "accept_len"):
        assert (against[name]["value"], against[name]["p"]) == (0.0, 1.0)
        assert against[name]["interval"] == [0.0, 0.0]
    assert reference["accept_len"] == target["accept_len"] >= 1
    assert reference["metric"] == target["metric"] > 0
    # One configuration, whatever it is called.
    assert len(answered) == ROWS


def test_a_second_run_computes_and_loads_nothing(
    untouched: Path,
    adapted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answered: list[tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ("--reference", str(untouched), "--sets", "1", "--sets-on-reference")
    first = run(capsys, adapted, tmp_path, *words)
    assert answered == [("untouched", "none")] * 2 * ROWS + [("adapted", "none")] * 2 * ROWS
    monkeypatch.setattr("tss_bench.weights.load_model", lambda *_, **__: pytest.fail("loaded"))
    assert run(capsys, adapted, tmp_path, *words) == first
    assert len(answered) == 4 * ROWS
    own = [row["against"] for row in first["results"] if row["role"] == "reference"]
    assert [list(against) for against in own] == [[], ["own"]]


def test_a_killed_run_goes_on_where_it_was(
    untouched: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    answered: list[tuple[str, str]],
) -> None:
    expected = run(capsys, untouched, tmp_path / "whole", "--sets", "1")
    answered.clear()
    counted = SpeculativeLM.put_together

    def killed(self: SpeculativeLM, job: Any, turns: Any) -> Any:
        if len(answered) == ROWS + 1:
            raise KeyboardInterrupt
        return counted(self, job, turns)

    with monkeypatch.context() as patch:
        patch.setattr(SpeculativeLM, "put_together", killed)
        with pytest.raises(KeyboardInterrupt):
            run(capsys, untouched, tmp_path / "killed", "--sets", "1")
    # The kill tore the last record.
    path = tmp_path / "killed" / FILE
    path.write_bytes(path.read_bytes()[:-3])
    answered.clear()
    tolerance.run(arguments(untouched, tmp_path / "killed", "--sets", "1"))
    captured = capsys.readouterr()
    assert "is torn" in captured.err
    assert json.loads(captured.out.splitlines()[-1]) == expected
    assert len(answered) == ROWS


def test_another_configuration_is_another_key(
    untouched: Path,
    adapted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    answered: list[tuple[str, str]],
) -> None:
    run(capsys, untouched, tmp_path, "--sets", "1")
    before = (tmp_path / FILE).read_bytes()
    recycling = ("--drafters", "token_recycling")
    for words, new in [
        (("--sets", "2"), ROWS),
        (("--sets", "1,2"), 0),
        (("--sets", "1", "--scope", "all"), 2 * ROWS),
        (("--model_args", f"{SETTING},protocol=paper"), ROWS),
        (recycling, ROWS),
        ((*recycling, "--model_args", f"{SETTING},tree=eagle_mc_sim_7b_63"), ROWS),
        (("--limit", str(ROWS + 1)), 1),
    ]:
        answered.clear()
        run(capsys, untouched, tmp_path, *words)
        assert len(answered) == new, words
    answered.clear()
    run(capsys, adapted, tmp_path)
    assert len(answered) == ROWS
    assert (tmp_path / FILE).read_bytes().startswith(before)


def test_one_target_is_in_memory_at_a_time(
    untouched: Path,
    adapted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alive: list[weakref.ref[Target]] = []

    def make(model: Any) -> Target:
        assert not [target for target in alive if target() is not None]
        target = Target(model)
        alive.append(weakref.ref(target))
        return target

    gc.collect()
    monkeypatch.setattr("model_adapters.loaded.Target", make)
    words = ("--reference", str(untouched), "--drafters", "ar,token_recycling", "--sets", "1")
    run(capsys, adapted, tmp_path, *words)
    assert len(alive) == 2


def test_each_target_has_its_own_head(
    untouched: Path, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heads = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        config = EagleConfig(32, 64, 4, 2, 8, vocab_size=len(make_tokenizer()))
        head = EagleHead(config, own_embedding=False)
        heads.append(str(save_head(head, tmp_path / f"head-{seed}")))
    words = ("--reference", str(untouched), "--drafters", "eagle")
    words = (*words, "--draft", heads[0], "--reference-draft", heads[1])
    out = tmp_path / "out"
    found = run(capsys, adapted, out, *words)
    assert [row["drafter"] for row in found["results"]] == ["eagle", "eagle"]
    lines = [json.loads(line) for line in (out / FILE).read_text("utf-8").splitlines()]
    used = [line["settings"] for line in lines if "settings" in line]
    assert [settings["model"] for settings in used] == ["untouched", "adapted"]
    assert len({settings["draft_fingerprint"] for settings in used}) == 2
    # Places of this machine are no part of what an answer depends on.
    assert str(tmp_path) not in json.dumps(used)


def save_head(head: EagleHead, directory: Path) -> Path:
    save_eagle_head(head, directory, {"source": "random"})
    return directory


def test_the_ablation_is_drawn_for_both_targets(
    untouched: Path, adapted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "ablation.svg"
    words = ("--reference", str(untouched), "--sets", "singles,1+2", "--plot", str(picture))
    found = run(capsys, adapted, tmp_path, *words, "--limit", "2")
    on_reference = [row["skip"] for row in found["results"] if row["role"] == "reference"]
    assert on_reference == [[], *([layer] for layer in range(LAYERS))]
    text = picture.read_text("utf-8")
    assert ">target adapted, ar<" in text
    assert ">reference untouched, ar<" in text


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sets", "1+4"), "--sets: skip layer 4 does not exist: the target has 4 layers"),
        (("--sets", "1-2"), "--sets: '1-2' is no layer index"),
        (("--limit", "0"), "--limit must be at least 1, got 0"),
        (("--drafters", "ar,eagl"), "no drafter 'eagl'; there is ar, eagle, token_recycling"),
        (("--drafters", "eagle"), "no EAGLE head is packaged for 'untouched'"),
        (("--drafters", ""), "no adapter was named"),
        (("--draft", "x"), "argument 'draft' has no meaning for tss_ar"),
        (("--reference-draft", "x"), "--reference, which is not given"),
        (("--tasks", "specbench_nothing"), "no task specbench_nothing"),
        (("--model_args", "skip_layers=1"), "--model_args may not hold skip_layers; use --sets"),
        (("--model_args", "pretrained=x"), "may not hold pretrained; use --pretrained"),
        (("--model_args", "temperature=1.0"), "specbench_summarization is sampled"),
        (("--drafters", "token_recycling", "--model_args", "state=run"), "use state=request"),
        (("--plot", "x.png"), "add singles to --sets"),
        (("--plot", "x.pdf", "--sets", "singles"), r"\.png or \.svg files, got x\.pdf"),
        (("--reference", "./nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    untouched: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        tolerance.run(arguments(untouched, tmp_path / "out", *words))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_loading")
def test_targets_of_other_prompts_are_refused(untouched: Path, tmp_path: Path) -> None:
    other = changed(untouched, tmp_path / "other", TEMPLATE.replace("<|end|>", "<|end|>\n"))
    with pytest.raises(ValueError, match=r"another chat template.*chat_template=false"):
        tolerance.run(arguments(untouched, tmp_path / "out", "--reference", str(other)))
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["extra"])
    tokenizer.save_pretrained(other)
    with pytest.raises(ValueError, match="another tokenizer than --pretrained"):
        tolerance.run(arguments(untouched, tmp_path / "out", "--reference", str(other)))


def test_help_says_that_there_is_no_throughput(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["bench", "skips", "--help"])
    assert "gives no throughput" in " ".join(capsys.readouterr().out.split())
