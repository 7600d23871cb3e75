"""Every way into the installed package, each as a process of its own, with the real lm-eval.

The package under test is the one installed where pytest runs, editable or from a wheel: the
processes start in another folder and do not see this checkout. Only the tiny model is made here.

May import: pytest, the standard library, tests.model_adapters.conftest.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

SCRIPTS = Path(sysconfig.get_path("scripts"))
MODELS = importlib.metadata.entry_points(group="lm_eval.models")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("tss_ar" not in MODELS.names, reason="tss-bench is not installed here"),
]

TASK = "specbench_translation"
RUN = f"--model tss_ar --model_args pretrained=MODEL,skip_layers=[1,2] --tasks {TASK} --limit 1"
SIMPLE_EVALUATE = f"""
from lm_eval import simple_evaluate
from lm_eval.utils import make_table
arguments = "pretrained=MODEL,skip_layers=[1,2]"
print(make_table(simple_evaluate("tss_ar", model_args=arguments, tasks=["{TASK}"], limit=1)))
"""
FOUND = f"""
import lm_eval.models
from lm_eval.api.registry import model_registry
from lm_eval.tasks import TaskManager
print("tss_ar" in model_registry, "{TASK}" in TaskManager().all_tasks)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty place to start from, with a tiny model and a map that was cut off."""
    from tests.model_adapters.conftest import TEMPLATE, save_model

    place = tmp_path_factory.mktemp("elsewhere")
    save_model(place / "tiny", TEMPLATE)
    (place / "torn.json").write_text('{"schema": 1, "mo', encoding="utf-8")
    return place


def run(folder: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Start a program of this environment; MODEL among the words is the tiny model."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "TSS_BENCH", "HF_"))
    }
    fixed = {
        "TSS_BENCH_DATA": "mini",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hf"),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    program = sys.executable if words[0] == "python" else str(SCRIPTS / words[0])
    arguments = [word.replace("MODEL", str(folder / "tiny")) for word in words[1:]]
    return subprocess.run(
        [program, *arguments],
        cwd=folder,
        env={**kept, **fixed, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["lm_eval", *RUN.split()],
        ["lm-eval", "run", *RUN.split()],
        ["python", "-m", "lm_eval", *RUN.split()],
        ["accelerate", "launch", "-m", "lm_eval", *RUN.split()],
        ["python", "-c", SIMPLE_EVALUATE],
    ],
    ids=["lm_eval", "lm-eval run", "python -m lm_eval", "accelerate launch", "simple_evaluate"],
)
def test_a_model_of_ours_runs_a_task_of_ours(folder: Path, words: list[str]) -> None:
    done = run(folder, *words)
    assert done.returncode == 0, done.stderr
    assert f"{TASK} (mini)" in done.stdout
    for metric in ("accept_len", "tokens_per_second", "sentence_bleu"):
        assert f"|{metric} " in done.stdout
    assert "skips {1,2} of 4 layers" in done.stderr


def test_lm_eval_lists_our_tasks(folder: Path) -> None:
    done = run(folder, "lm_eval", "ls", "tasks")
    assert done.returncode == 0, done.stderr
    listed = {line.split("|")[1].strip() for line in done.stdout.splitlines() if "|" in line}
    assert {TASK, "tss_mmlu_ll", "specbench", "tss_paper"} <= listed


def test_lm_eval_validates_our_tasks(folder: Path) -> None:
    done = run(folder, "lm_eval", "validate", "--tasks", f"{TASK},tss_mmlu_ll,specbench,tss_paper")
    assert done.returncode == 0, done.stderr
    assert "All tasks found and valid" in done.stdout


@pytest.mark.parametrize(("switch", "found"), [("1", "True True"), ("0", "False False")])
def test_the_switch_decides_whether_lm_eval_finds_us(folder: Path, switch: str, found: str) -> None:
    done = run(folder, "python", "-c", FOUND, TSS_BENCH_AUTOLOAD=switch)
    assert done.stdout.splitlines()[-1:] == [found], done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["skip_layers=99"], "skip layer 99 does not exist"),
        (["skiplayers=[1]"], "tss_eagle has no argument 'skiplayers'; did you mean 'skip_layers'"),
        (["domain_map=torn.json"], "torn.json"),
        (["draft=no-such-head"], "no-such-head"),
        (["dtype=float32", "--batch_size", "2"], "batch_size must be 1 or auto"),
    ],
    ids=["layer", "argument", "map", "draft", "batch size"],
)
def test_bad_input_ends_lm_eval_with_one_clear_last_line(
    folder: Path, arguments: list[str], told: str
) -> None:
    words = ["--model", "tss_eagle", "--model_args", f"pretrained=MODEL,{arguments[0]}"]
    done = run(folder, "lm_eval", *words, *arguments[1:], "--tasks", TASK, "--limit", "1")
    assert done.returncode != 0
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("model_adapters.arguments.AdapterError: ")
    assert told in last


def test_bad_input_ends_tss_bench_with_two_and_one_line(folder: Path) -> None:
    words = ["--model", "native_eagle", "--model_args", "pretrained=MODEL,draft=no-such-head"]
    done = run(folder, "tss-bench", "bench", "domains", *words, "--tasks", TASK)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.rstrip().splitlines()[-1]
    assert last.startswith("tss-bench: error: ")
    assert "no-such-head" in last
