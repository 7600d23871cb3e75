"""Speed measurements: everything compared is interleaved request by request in one process.

May import: torch, transformers, model_adapters, tss_bench (layer L3 of the design). A figure is
a ratio of two things measured side by side; the last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tabulate import tabulate
from tqdm import tqdm
from transformers.generation.streamers import BaseStreamer

from model_adapters.base import SpeculativeLM
from tss_bench import __version__, weights
from tss_bench.harness import (
    Instance,
    load_tasks,
    make_adapters,
    requests_of,
    run_interleaved,
)
from tss_bench.scoring.pooled import ratio, request_pairs
from tss_bench.types import GenerationStats

DOMAIN_TASKS = (
    "specbench_translation",
    "specbench_summarization",
    "specbench_qa",
    "specbench_rag",
    "specbench_math_reasoning",
)
ADAPTERS = ("native_ar", "native_eagle", "native_token_recycling")
PRIMARY_METRICS = ("sentence_bleu", "rougeL", "f1", "acc")
HUB = "hf_generate"

Answer = Callable[[Instance], GenerationStats]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that `bench engine` and `bench domains` share."""
    parser.add_argument("--tasks", default=",".join(DOMAIN_TASKS), help="comma-separated tasks")
    parser.add_argument("--model", default=",".join(ADAPTERS), help="comma-separated adapters")
    parser.add_argument(
        "--model_args", default="", help="arguments for every adapter, as in lm_eval"
    )
    parser.add_argument("--limit", type=int, default=8, help="rows a task (default 8)")
    parser.add_argument("--split", default="test", help="test, calibration or all")
    parser.add_argument("--threads", type=int, help="torch CPU threads (default: torch's own)")


def run_engine(args: argparse.Namespace) -> None:
    """Decode speed of Hugging Face's `generate` and of each adapter on the same prompts."""
    adapters, tasks = _prepare(args)
    first = next(iter(adapters.values()))
    print(machine(first), flush=True)
    answers: dict[str, Answer] = {HUB: _hub_answer(first)}
    answers |= {name: _adapter_answer(adapter) for name, adapter in adapters.items()}
    records: dict[str, dict[str, list[GenerationStats]]] = {}
    for name, task in tasks.items():
        records[name] = _interleave(answers, requests_of(task, args.limit), name)
    report = engine_report(records)
    print(engine_table(report))
    print(json.dumps({"bench": "engine", **_setting(args, first), "results": report}))


def run_domains(args: argparse.Namespace) -> None:
    """Accept length, metric and throughput of each adapter on each task."""
    adapters, tasks = _prepare(args)
    first = next(iter(adapters.values()))
    print(machine(first), flush=True)
    rows: list[dict[str, Any]] = []
    for name, task in tasks.items():
        outcomes = run_interleaved(adapters, task, args.limit)
        label = task.config.task_alias or name
        rows += [
            {"task": label, "model": adapter, **outcome.aggregate(task)}
            for adapter, outcome in outcomes.items()
        ]
        print(domains_table(rows), flush=True)
    print(json.dumps({"bench": "domains", **_setting(args, first), "results": rows}))


def engine_report(
    records: Mapping[str, Mapping[str, Sequence[GenerationStats]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Pooled figures by task and method: decode and whole tokens/s, accept length, speed-ups.

    `over_hub` and `over_plain` are ratios of decode tokens/s to `hf_generate` and `native_ar` on
    the same requests; the row `mean` averages the ratios over the tasks.
    """
    report: dict[str, dict[str, dict[str, float]]] = {}
    for task, by_method in records.items():
        pooled = {method: _pooled(stats) for method, stats in by_method.items()}
        for figures in pooled.values():
            speed = figures["decode_tokens_per_second"]
            for key, base in (("over_hub", HUB), ("over_plain", "native_ar")):
                if base in pooled:
                    figures[key] = speed / pooled[base]["decode_tokens_per_second"]
        report[task] = pooled
    methods = next(iter(report.values()))
    report["mean"] = {
        method: {
            key: sum(report[task][method][key] for task in records) / len(records)
            for key in ("over_hub", "over_plain", "accept_len")
            if all(key in report[task][method] for task in records)
        }
        for method in methods
    }
    return report


def _pooled(stats: Sequence[GenerationStats]) -> dict[str, float]:
    names = ("accept_len", "decode_tokens_per_second", "tokens_per_second")
    pairs = [request_pairs([record]) for record in stats]
    figures = {name: ratio([pair[name] for pair in pairs]) for name in names}
    return {name: value for name, value in figures.items() if value is not None}


def engine_table(report: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """The report as a markdown table."""
    columns = (
        ("accept_len", "accept_len"),
        ("decode_tokens_per_second", "decode tokens/s"),
        ("tokens_per_second", "tokens/s"),
        ("over_hub", "decode vs HF generate"),
        ("over_plain", "decode vs native_ar"),
    )
    rows = [
        [task, method, *(_shown(figures.get(key)) for key, _ in columns)]
        for task, methods in report.items()
        for method, figures in methods.items()
    ]
    return tabulate(rows, ["task", "method", *(title for _, title in columns)], tablefmt="github")


def domains_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of `run_domains` as a markdown table."""
    body = []
    for row in rows:
        metric = next((name for name in PRIMARY_METRICS if name in row), None)
        shown = f"{metric} {row[metric]:.3f} ({row['scored']} rows)" if metric else "no metric"
        speeds = [_shown(row.get(key)) for key in ("accept_len", "tokens_per_second")]
        body.append([row["task"], row["model"], speeds[0], shown, speeds[1]])
    headers = ["task", "model", "accept_len", "metric", "tokens/s"]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


def machine(adapter: SpeculativeLM) -> str:
    """One line on where a figure comes from."""
    return (
        f"tss_bench {__version__}, {adapter.info.id} in {adapter.arguments.dtype} on "
        f"{adapter.device}, {platform.processor() or platform.machine()}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _prepare(args: argparse.Namespace) -> tuple[dict[str, SpeculativeLM], dict[str, Any]]:
    if args.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {args.limit}")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    tasks = load_tasks(args.tasks.split(","), {"split": args.split})
    return make_adapters(args.model.split(","), args.model_args), tasks


def _setting(args: argparse.Namespace, adapter: SpeculativeLM) -> dict[str, Any]:
    return {"machine": machine(adapter), "limit": args.limit, "split": args.split,
            "model_args": args.model_args}  # fmt: skip


def _interleave(
    answers: Mapping[str, Answer], instances: Sequence[Instance], label: str
) -> dict[str, list[GenerationStats]]:
    """Every request by every method, the order rotating; the first round is a warm-up."""
    records: dict[str, list[GenerationStats]] = {name: [] for name in answers}
    names = list(answers)
    for name in names:
        answers[name](instances[0])
    for turn, instance in enumerate(tqdm(instances, desc=label)):
        shift = turn % len(names)
        for name in (*names[shift:], *names[:shift]):
            records[name].append(answers[name](instance))
    return records


def _adapter_answer(adapter: SpeculativeLM) -> Answer:
    def answer(instance: Instance) -> GenerationStats:
        (text,) = adapter.generate_until([instance], disable_tqdm=True)
        return text.stats[0]

    return answer


def _hub_answer(adapter: SpeculativeLM) -> Answer:
    """Greedy `generate` of an untouched copy of the adapter's model, on the adapter's prompts."""
    arguments = adapter.arguments
    model, _, _ = weights.load_model(
        arguments.pretrained,
        dtype=arguments.dtype,
        device=str(adapter.device),
        revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
    )

    def answer(instance: Instance) -> GenerationStats:
        ids = adapter.prompt_ids(instance)
        return hub_generate(model, ids, instance.args[1]["max_gen_toks"])

    return answer


def hub_generate(model: Any, ids: Sequence[int], limit: int) -> GenerationStats:
    """One greedy answer by Hugging Face's `generate`, timed as ours are."""
    prompt = torch.tensor([list(ids)], device=model.device)
    clock = _FirstToken(model.device)
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=limit,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            streamer=clock,
        )
    wall = clock.elapsed()
    new_tokens = output.shape[1] - len(ids)
    return GenerationStats(
        prompt_tokens=len(ids),
        new_tokens=new_tokens,
        verify_steps=new_tokens - 1,
        drafted=0,
        accepted=0,
        accept_lengths=(1,) * (new_tokens - 1),
        prefill_s=clock.first_s,
        draft_s=0.0,
        verify_s=wall - clock.first_s,
        wall_s=wall,
        stop="length" if new_tokens == limit else "eos",
    )


class _FirstToken(BaseStreamer):
    """Notes when the first new id came; `generate` puts the prompt first, then each id."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._puts = 0
        self.first_s = 0.0
        self._start = time.perf_counter()

    def put(self, value: torch.Tensor) -> None:
        self._puts += 1
        if self._puts == 2:
            self.first_s = self.elapsed()

    def end(self) -> None:
        pass

    def elapsed(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - self._start
