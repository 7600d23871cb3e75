"""Speed measurements: everything compared is interleaved request by request in one process.

May import: torch, transformers, model_adapters, tss_bench (layer L3 of the design). A figure is
a ratio of two things measured side by side; the last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer

from model_adapters.answering import Job
from model_adapters.arguments import ROUTER_SHAPE
from model_adapters.base import SpeculativeLM
from tss_bench import __version__, weights
from tss_bench.bench_report import HUB, engine_report, engine_table
from tss_bench.decoding.answer import Clock
from tss_bench.decoding.divergence import Divergence
from tss_bench.harness import (
    TaskRequests,
    load_adapters,
    load_tasks,
    prepare_runnable,
    run_interleaved,
    split_names,
)
from tss_bench.machine import processor
from tss_bench.run_divergences import first_divergence
from tss_bench.types import GeneratedText, GenerationStats

DOMAIN_TASKS = (
    "specbench_translation",
    "specbench_summarization",
    "specbench_qa",
    "specbench_rag",
    "specbench_math_reasoning",
)
ADAPTERS = ("native_ar", "native_eagle", "native_token_recycling")
_COMPARE_EXACTLY = (
    "16-bit errors of many layers can add up to more than is allowed for here; in float32 "
    "(--model_args dtype=float32) no answer may differ"
)

Adapters = Mapping[str, SpeculativeLM]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that all `bench` commands share."""
    parser.add_argument("--tasks", default=",".join(DOMAIN_TASKS), help="comma-separated tasks")
    parser.add_argument(
        "--model",
        default=",".join(ADAPTERS),
        help="comma-separated adapters; native, tss and all are those that can run",
    )
    parser.add_argument(
        "--model_args",
        default="",
        help="arguments as in lm_eval; each adapter gets those that it takes, and "
        "ADAPTER.name=value goes to that one alone",
    )
    parser.add_argument("--limit", type=int, default=8, help="rows a task (default 8)")
    parser.add_argument("--split", default="test", help="test, calibration or all")
    parser.add_argument("--threads", type=int, help="torch CPU threads (default: torch's own)")


def run_engine(args: argparse.Namespace) -> None:
    """Decode speed of Hugging Face's `generate` and of each adapter on the same prompts.

    Raises ValueError for tasks on which `generate` would do other work than ours.
    """
    adapters, tasks, left_out = prepare(args)
    first = next(iter(adapters.values()))
    refuse_other_work(first, tasks)
    load_adapters(adapters)
    print(machine(adapters, left_out), flush=True)
    hub = {HUB: _hub_answer(first)}
    records: dict[str, dict[str, list[GenerationStats]]] = {}
    for task in tasks:
        answers = run_interleaved(adapters, task.requests, task.label, hub)
        labels = {method: adapters[method].label for method in adapters}
        records[task.label] = {
            labels.get(method, method): [answer.stats[0] for answer in given]
            for method, given in answers.items()
        }
    report = engine_report(records)
    print(engine_table(report))
    print(json.dumps({"bench": "engine", **setting(args, adapters, left_out), "results": report}))


def run_lossless(args: argparse.Namespace) -> None:
    """Whether every adapter emits the ids of the first one.

    In 16-bit formats two ids whose logits are closer than rounding may change places: such
    answers are counted apart. Raises ValueError naming the first answer that differs by more.
    """
    adapters, tasks, left_out = prepare(args)
    for name in [name for name in adapters if "lossy" in adapters[name].drafter_id]:
        if name not in split_names(args.model):
            del adapters[name]
            left_out[name] = "it is lossy by design, so its answers are not those of the target"
    _refuse_other_targets(adapters, tasks)
    load_adapters(adapters)
    print(machine(adapters, left_out), flush=True)
    first, *others = adapters
    results, failures = [], []
    for task in tasks:
        plain = adapters[first].generate_until(task.requests)
        for other in others:
            answers = adapters[other].generate_until(task.requests)
            found = list(_divergences(adapters[first], task, plain, answers))
            failed = [line for line, divergence in found if not divergence.is_rounding]
            equal = len(plain) - len(found)
            print(f"{task.label}: {equal} of {len(plain)} answers of {other} equal those of "
                  f"{first}, {len(found) - len(failed)} differ within rounding, {len(failed)} by "
                  f"more", flush=True)  # fmt: skip
            for line, _ in found:
                print(f"  {line}", flush=True)
            failures += [f"{other} differs from {first} in {line}" for line in failed]
            results.append({"task": task.label, "model": other, "answers": len(plain),
                            "equal": equal, "rounding": len(found) - len(failed),
                            "different": len(failed)})  # fmt: skip
    print(
        json.dumps({"bench": "lossless", **setting(args, adapters, left_out), "results": results})
    )
    if failures:
        hint = "" if adapters[first].dtype == "float32" else f"; {_COMPARE_EXACTLY}"
        raise ValueError(f"{len(failures)} answers differ; {failures[0]}{hint}")


def machine(adapters: Adapters, left_out: Mapping[str, str] | None = None) -> str:
    """Where a figure comes from: a line on the machine, a line on the setting of each adapter;
    a line on each that was left out and why, by name."""
    first = next(iter(adapters.values()))
    place = (
        f"tss_bench {__version__}, {first.info.id} in {first.dtype} on "
        f"{first.device}, {processor()}, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    lines = [place, *(_adapter_line(one) for one in adapters.values())]
    lines += [f"{name} is left out: {reason}" for name, reason in (left_out or {}).items()]
    return "\n".join(lines)


def _adapter_line(adapter: SpeculativeLM) -> str:
    rest = adapter.controller.sets["*"]
    named = [f"{key} {skip}" for key, skip in adapter.controller.sets.items() if skip != rest]
    sets = f"{', '.join(named)}, else {rest}" if named else str(rest)
    protocol = adapter.arguments.protocol
    return f"{adapter.label}: protocol {protocol}, scope {adapter.scope}, skips {sets}"


def prepare(
    args: argparse.Namespace,
) -> tuple[dict[str, SpeculativeLM], list[TaskRequests], dict[str, str]]:
    """Adapters, checked but not loaded, tasks, and why an adapter of a group was left out, by
    name. Raises ValueError for bad input."""
    for name in ("limit", "threads"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name} must be at least 1, got {value}")
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    adapters, left_out = prepare_runnable(split_names(args.model), args.model_args)
    tasks = load_tasks(split_names(args.tasks), args.limit, {"split": args.split})
    arguments = next(iter(adapters.values())).arguments
    for task in tasks:
        task.options(arguments)
    return adapters, tasks, left_out


def setting(
    args: argparse.Namespace, adapters: Adapters, left_out: Mapping[str, str]
) -> dict[str, Any]:
    """What the JSON line of a measurement says of how it was made."""
    return {
        "machine": machine(adapters).splitlines()[0],
        "limit": args.limit,
        "split": args.split,
        "model_args": args.model_args,
        "adapters": {
            name: {
                "protocol": adapter.arguments.protocol,
                "scope": adapter.scope,
                "skip_sets": {key: list(skip) for key, skip in adapter.controller.sets.items()},
            }
            for name, adapter in adapters.items()
        },
        "left_out": dict(left_out),
    }


def refuse_other_work(adapter: SpeculativeLM, tasks: Sequence[TaskRequests]) -> None:
    """Refuse all but greedy answers that end at end of text or at their limit."""
    for task in tasks:
        for options in task.options(adapter.arguments):
            if options.stop_strings:
                problem = f"stops at {', '.join(map(repr, options.stop_strings))}"
            elif options.temperature > 0:
                problem = f"samples at temperature {options.temperature}"
            elif options.max_gen_toks < 1:
                problem = "asks for no new token"
            else:
                continue
            raise ValueError(
                f"{task.name} {problem}, where Hugging Face's generate would do other work than "
                f"ours; take greedy tasks without stop strings, such as {DOMAIN_TASKS[0]}"
            )


def _refuse_other_targets(adapters: Adapters, tasks: Sequence[TaskRequests]) -> None:
    """`bench lossless` compares greedy answers of one sparse target."""
    if len(adapters) < 2:
        raise ValueError("bench lossless compares adapters; name two or more with --model")
    (first, one), *others = ((name, _target_of(adapter)) for name, adapter in adapters.items())
    for name, other in others:
        if other != one:
            raise ValueError(
                f"{first} and {name} run different sparse targets, so their answers differ; "
                f"compare adapters of the same skip sets and scope, such as tss_ar and tss_eagle"
            )
    for task in tasks:
        if any(options.temperature > 0 for options in task.options(adapters[first].arguments)):
            raise ValueError(f"{task.name} is sampled; bench lossless compares greedy answers")


def _target_of(adapter: SpeculativeLM) -> object:
    sets = adapter.controller.sets
    named = {key: skip for key, skip in sets.items() if key == "*" or skip != sets["*"]}
    scope = adapter.scope if any(named.values()) else None
    arguments = adapter.arguments
    routed = arguments.router != "none" and len(sets) > 1
    # What a router chooses depends on its own arguments and on all domains, dense ones too.
    router = [getattr(arguments, name) for name in ("router", *ROUTER_SHAPE)], sets
    return named, scope, router if routed else None


def _divergences(
    adapter: SpeculativeLM,
    task: TaskRequests,
    plain: Sequence[GeneratedText],
    others: Sequence[GeneratedText],
) -> Iterator[tuple[str, Divergence]]:
    """Where answers part from the plain ones of `adapter`, each with a line that tells it."""
    jobs = adapter.jobs(task.requests)
    for row, (job, one, other) in enumerate(zip(jobs, plain, others, strict=True)):
        parted = first_divergence(adapter, job, one, other)
        if parted is not None:
            turn, found = parted
            place = f"row {row} of {task.label}, turn {turn + 1}, id {found.position}"
            yield f"{place}: {divergence_line(adapter, found)}", found


def divergence_line(adapter: SpeculativeLM, found: Divergence) -> str:
    """The two ids at which answers part, and how close their logits are."""

    def shown(token: int | None) -> str:
        return "the end" if token is None else repr(adapter.tokenizer.decode([token]))

    pair = f"{shown(found.first)} against {shown(found.second)}"
    if found.gap is None:
        return pair
    return f"{pair}, logits {found.gap:.2g} apart ({adapter.dtype} rounds {found.rounding:.2g})"


def hub_model(adapter: SpeculativeLM) -> Any:
    """An untouched copy of the adapter's model, for Hugging Face's `generate`."""
    arguments = adapter.arguments
    model, _, _ = weights.load_model(
        arguments.pretrained,
        dtype=arguments.dtype,
        device=str(adapter.device),
        revision=arguments.revision,
        trust_remote_code=arguments.trust_remote_code,
    )
    return model


def _hub_answer(adapter: SpeculativeLM) -> Callable[[Job], GeneratedText]:
    """Greedy `generate` of the adapter's model, on the adapter's prompts."""
    model = hub_model(adapter)

    def answer(job: Job) -> GeneratedText:
        ids = adapter.prompt_ids(job)
        limit = min(job.options.max_gen_toks, adapter.max_length - len(ids))
        return GeneratedText("", (hub_generate(model, ids, limit),))

    return answer


def hub_generate(model: Any, ids: Sequence[int], limit: int) -> GenerationStats:
    """One greedy answer by Hugging Face's `generate`, timed as ours are; `limit` new ids."""
    clock = _FirstToken(model.device)
    new_tokens = len(hub_greedy(model, ids, limit, streamer=clock))
    wall = clock.elapsed()
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


def hub_greedy(model: Any, ids: Sequence[int], limit: int, **given: Any) -> list[int]:
    """The new ids of Hugging Face's greedy `generate`, which also gets what is `given`."""
    prompt = torch.tensor([list(ids)], device=model.device)
    with torch.inference_mode():
        output = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=limit,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            **given,
        )
    new: list[int] = output[0, len(ids) :].tolist()
    return new


class _FirstToken(BaseStreamer):
    """Notes when the first new id came; `generate` puts the prompt first, then each id."""

    def __init__(self, device: torch.device) -> None:
        self._puts = 0
        self.first_s = 0.0
        self._clock = Clock(device)

    def put(self, value: torch.Tensor) -> None:
        self._puts += 1
        if self._puts == 2:
            self.first_s = self.elapsed()

    def end(self) -> None:
        pass

    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return self._clock.wall()
