"""`tss-bench bench heads` on a tiny model with random heads.

May import: pytest, torch, tss_bench, tests.
"""

from __future__ import annotations

import argparse
import gc
import json
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.model_adapters.conftest import TEMPLATE, make_tokenizer, save_model
from tss_bench import bench_heads
from tss_bench.decoding.batch_cache import Prefix
from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.decoding.lockstep import ReadPrompt
from tss_bench.harness import load_adapters, load_tasks, prepare_adapters
from tss_bench.scoring.pooled import ratio, request_pairs
from tss_bench.types import GenerationStats
from tss_bench.weights import save_eagle_head

TASKS = ["specbench_qa", "specbench_translation"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("heads")
    save_model(folder / "model", TEMPLATE)
    for seed in (8, 9):
        torch.manual_seed(seed)
        head = EagleHead(EagleConfig(32, 64, 4, 2, 8, vocab_size=len(make_tokenizer())))
        save_eagle_head(head, folder / f"head{seed}", {"source": "random"})
    return folder


@pytest.fixture(autouse=True)
def mini(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")


def arguments(files: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench_heads.add_arguments(parser)
    text = f"pretrained={files / 'model'},dtype=float32,device=cpu,max_length=160"
    heads = f"{files / 'head8'},{files / 'head9'}"
    base = ["--heads", heads, "--tasks", ",".join(TASKS), "--limit", "3", "--model_args", text]
    return parser.parse_args([*base, *words])


def generated(files: Path) -> dict[str, dict[str, list[GenerationStats]]]:
    """What `native_eagle` counts with each head when it decodes the same rows one by one."""
    tasks = load_tasks(TASKS, 3, {"split": "test"})
    found = {}
    for head in ("head8", "head9"):
        given = {
            "pretrained": str(files / "model"),
            "draft": str(files / head),
            "dtype": "float32",
            "device": "cpu",
            "max_length": 160,
        }
        adapters = prepare_adapters(["native_eagle"], given)
        load_adapters(adapters)
        found[head] = {
            task.label: [
                stats
                for answer in adapters["native_eagle"].generate_until(task.requests)
                for stats in answer.stats
            ]
            for task in tasks
        }
    return found


def test_counts_are_those_of_decoding_row_by_row(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_heads.run(arguments(files))
    lines = capsys.readouterr().out.splitlines()
    results = json.loads(lines[-1])["results"]
    means = []
    for name, expected in generated(files).items():
        found = results[str(files / name)]
        assert sum(one.accepted for rows in expected.values() for one in rows) > 0
        lengths = []
        for label, rows in expected.items():
            length = ratio([request_pairs([one])["accept_len"] for one in rows])
            assert found["tasks"][label]["accept_len"] == length
            lengths.append(length)
        means.append(sum(lengths) / len(lengths))
        assert found["mean"]["accept_len"] == pytest.approx(means[-1])
    assert results[str(files / "head8")]["against_first"] is None
    gain = results[str(files / "head9")]["against_first"]
    assert gain["interval"][0] <= gain["value"] <= gain["interval"][1]
    assert str(files / "head9") in lines[-2]


def test_acceptance_by_depth() -> None:
    # Lengths count the bonus: three steps accepted 0, 1 and 3 drafts.
    assert bench_heads.acceptance_by_depth([steps(1, 2, 4)], 4) == [2 / 3, 1 / 2, 1, 0]
    assert bench_heads.acceptance_by_depth([steps(1, 1)], 3) == [0, None, None]
    assert bench_heads.acceptance_by_depth([steps()], 2) == [None, None]


def test_a_step_that_ends_inside_its_drafts_is_not_asked_deeper() -> None:
    # Accepted 0 and 2 in one answer; 1 and, up to an end of text without a bonus, 2 in the other.
    ended = replace(steps(2, 2), accepted=1 + 2)
    assert bench_heads.acceptance_by_depth([steps(1, 3), ended], 3) == [3 / 4, 2 / 3, 0]


def steps(*lengths: int) -> GenerationStats:
    return GenerationStats(
        prompt_tokens=1,
        new_tokens=sum(lengths) + 1,
        verify_steps=len(lengths),
        drafted=0,
        accepted=sum(lengths) - len(lengths),
        accept_lengths=lengths,
        prefill_s=0,
        draft_s=0,
        verify_s=0,
        wall_s=0,
        stop="eos",
    )


def test_the_gain_is_the_mean_of_the_tasks_gains() -> None:
    found = bench_heads.report(
        {
            "one": {"a": [steps(1, 1), steps(1, 1)], "b": [steps(2, 2), steps(2)]},
            "two": {"a": [steps(2), steps(2)], "b": [steps(2, 2), steps(2)]},
        }
    )
    assert found["one"]["mean"]["accept_len"] == 1.5
    assert found["two"]["mean"]["accept_len"] == 2
    # Twice as long on one task, as long on the other; every row says so.
    assert found["two"]["against_first"] == {"value": 0.5, "interval": (0.5, 0.5)}


def test_a_task_of_answers_without_a_step_has_no_figure_and_costs_no_gain() -> None:
    rows = {"a": [steps(), steps()], "b": [steps(1), steps(1)]}
    found = bench_heads.report({"one": rows, "two": rows})
    assert found["two"]["tasks"]["a"] == {"accept_len": None, "interval": None}
    assert found["two"]["mean"] == {"accept_len": None, "interval": None}
    assert found["two"]["against_first"] is None
    assert "%" not in bench_heads.table(found)


def test_the_keys_of_a_prompt_are_let_go_with_its_answer(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read, replayed = bench_heads.read_prompt, bench_heads._replayed
    keys: list[weakref.ref[Prefix]] = []

    def seen(*given: Any) -> ReadPrompt:
        prompt = read(*given)
        keys.append(weakref.ref(prompt.prefix))
        return prompt

    def check(*given: Any) -> list[GenerationStats]:
        gc.collect()
        assert keys
        assert [key() for key in keys] == [None] * len(keys)
        return replayed(*given)

    monkeypatch.setattr(bench_heads, "read_prompt", seen)
    monkeypatch.setattr(bench_heads, "_replayed", check)
    bench_heads.run(arguments(files))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--limit", "0"), "--limit must be at least 1"),
        (("--heads", ","), "--heads names no head"),
        (("--heads", "a,b,a"), "--heads names a twice"),
        (("--heads", "/nowhere/head"), "/nowhere/head"),
        (("--model_args", "pretrained=MODEL,protocol=paper"), "counts under protocol strict"),
        (("--model_args", "draft=a"), "names one head; name heads with --heads"),
    ],
)
def test_bad_input_is_refused_before_loading(
    files: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.setattr("tss_bench.weights.load_model", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(ValueError, match=message):
        bench_heads.run(
            arguments(files, *(word.replace("MODEL", str(files / "model")) for word in words))
        )


def test_prompts_that_were_cut_are_told(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = f"pretrained={files / 'model'},dtype=float32,device=cpu,max_length=100"
    bench_heads.run(arguments(files, "--model_args", short, "--heads", str(files / "head8")))
    printed = capsys.readouterr().out
    cut = json.loads(printed.splitlines()[-1])["prompts_cut"]
    assert cut > 0
    assert f"{cut} prompts did not fit the context" in printed


def test_what_cannot_be_run_along_an_answer_is_refused(files: Path) -> None:
    with pytest.raises(ValueError, match="has requests of several turns"):
        bench_heads.run(arguments(files, "--tasks", "specbench_mt_bench"))
    fixed = f"pretrained={files / 'model'},tree=eagle_mc_sim_7b_63"
    with pytest.raises(ValueError, match="drafts with a fixed tree"):
        bench_heads.run(arguments(files, "--model_args", fixed))
