"""`tss-bench bench layerskip`: our self-speculation against `generate(assistant_early_exit=E)`.

Hugging Face (transformers 5.24) drafts with the first E blocks of the same model, but gives the
draft a cache of its own and runs all blocks at verification. Both get the same prompts and the same
constant number of drafts, without a confidence threshold, taking turns in one process.

**Two counting rules.** Ours: prefill yields the first id and belongs to no step; accept_len is the
ids emitted a step. Hugging Face has no prefill: it drafts behind the prompt's last id, and its
first pass reads the prompt and verifies those drafts, so its passes emit all ids of an answer, each
the accepted drafts and one id of the target's. (A pass has no more drafts than fit into the limit
beside that id; drafting stops at an end of text; a pass ends with the answer.) Its passes begin at
other places of the text than our steps, so the two accept lengths differ. What must be equal is how
*our drafts* fare under *its rule*: `hub_rule` drafts along the known answer with our drafter from
where its passes begin. Where both texts are the same, the passes are compared one by one.

May import: torch, tabulate, transformers, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate
from transformers.generation.streamers import BaseStreamer

from model_adapters.answering import Job
from model_adapters.arguments import split_arguments
from model_adapters.base import SpeculativeLM
from model_adapters.layerskip import NUM_SPECULATIONS
from tss_bench.bench import (
    DOMAIN_TASKS,
    divergence_line,
    hub_greedy,
    hub_model,
    machine,
    refuse_other_work,
)
from tss_bench.decoding.answer import Clock
from tss_bench.decoding.divergence import Divergence, find_divergence
from tss_bench.decoding.drafters.layerskip import LayerSkip
from tss_bench.decoding.target import Target
from tss_bench.harness import (
    TaskRequests,
    interleave,
    load_adapters,
    load_tasks,
    prepare_adapters,
    split_names,
)
from tss_bench.scoring.pooled import ratio
from tss_bench.scoring.statistics import Interval, ratio_interval
from tss_bench.types import SkipSet

ADAPTER = "native_layerskip"
_FLAGS = {
    "exit_layer": "--exit-layer",
    "num_speculations": "--num-speculations",
    "draft_confidence": "neither side with a confidence threshold",
    "protocol": "neither side with another protocol",
    "temperature": "greedy decoding on both sides",
}


@dataclass(frozen=True)
class Timed:
    """One answer: its ids, what each verification emitted of them, and its seconds."""

    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class Compared:
    """Both answers to one prompt, and what our drafts would give by the hub's rule (`hub_rule`)."""

    ours: Timed
    hub: Timed
    by_hub_rule: tuple[int, ...]
    divergence: Divergence | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench bench layerskip`."""
    parser.epilog = (
        "In float32 both must give the same text, and the command fails where they do not; in "
        "16-bit formats it tells where they part. Speed-up and interval are about whole answers, "
        "prefill included."
    )
    parser.add_argument("--exit-layer", type=int, help="blocks that draft (default: as the model)")
    parser.add_argument(
        "--num-speculations",
        type=int,
        default=NUM_SPECULATIONS,
        help=f"drafts a verification, on both sides (default {NUM_SPECULATIONS})",
    )
    parser.add_argument("--tasks", default=",".join(DOMAIN_TASKS), help="comma-separated tasks")
    parser.add_argument("--model_args", default="", help="other arguments, as in lm_eval")
    parser.add_argument("--limit", type=int, default=8, help="rows a task (default 8)")
    parser.add_argument("--split", default="test", help="test, calibration or all")
    parser.add_argument("--threads", type=int, help="torch CPU threads (default: torch's own)")


def run(args: argparse.Namespace) -> None:
    """Measure and print. Raises ValueError for bad input before any weight is loaded, and at the
    end where texts differ in float32."""
    adapter, tasks = _prepare(args)
    load_adapters({ADAPTER: adapter})
    model = hub_model(adapter)
    print(machine({ADAPTER: adapter}), flush=True)
    drafts = {name: adapter.drafter_record()[name] for name in ("exit_layer", "num_speculations")}
    print(", ".join(f"{name} {value}" for name, value in drafts.items()), flush=True)
    rows: list[dict[str, Any]] = []
    differ = []
    for task in tasks:
        compared = _compare(adapter, model, task)
        rows.append({"task": task.label, **figures(compared)})
        print(table(rows), flush=True)
        for place, one in enumerate(compared):
            if one.divergence is not None:
                found = divergence_line(adapter, one.divergence)
                line = f"row {place} of {task.label}, id {one.divergence.position}: {found}"
                print(f"  ours against generate in {line}", flush=True)
                differ.append(line)
    print(json.dumps({"bench": "layerskip", **_setting(args, adapter), **drafts, "results": rows}))
    if differ and adapter.dtype == "float32":
        raise ValueError(
            f"{len(differ)} answers are not those of Hugging Face's generate, and in float32 they "
            f"must be; {differ[0]}"
        )


def figures(compared: Sequence[Compared]) -> dict[str, Any]:
    """What `table` shows of one task.

    `ratio` is ours over theirs: generate's seconds over ours for the same number of ids, pooled,
    with a 95 % bootstrap interval over rows (None for a single one).
    """
    same = [one for one in compared if one.divergence is None]
    pairs = [
        (one.hub.seconds * len(one.ours.ids) / len(one.hub.ids), one.ours.seconds)
        for one in compared
    ]
    return {
        "rows": len(compared),
        "same_text": len(same),
        "rounding": sum(one.divergence.is_rounding for one in compared if one.divergence),
        "same_counts": sum(one.by_hub_rule == one.hub.lengths for one in same),
        "hub_ids_per_pass": _per_pass([one.hub.lengths for one in compared]),
        "our_ids_per_pass": _per_pass([one.by_hub_rule for one in compared]),
        "accept_len": _per_pass([one.ours.lengths for one in compared]),
        "hub_tokens_per_second": _speed([one.hub for one in compared]),
        "our_tokens_per_second": _speed([one.ours for one in compared]),
        "ratio": ratio(pairs),
        "interval": ratio_interval(pairs),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """In Markdown. `same counts`: of the answers with the same text, those whose every pass emitted
    by the hub's rule as many ids with our drafts as with its own."""
    shown = [
        {
            "task": row["task"],
            "same text": f"{row['same_text']}/{row['rows']}",
            "same counts": f"{row['same_counts']}/{row['same_text']}",
            "ids a pass, HF": _cell(row["hub_ids_per_pass"]),
            "ours by its rule": _cell(row["our_ids_per_pass"]),
            "our accept_len": _cell(row["accept_len"]),
            "tokens/s, HF": _cell(row["hub_tokens_per_second"], 1),
            "ours": _cell(row["our_tokens_per_second"], 1),
            "ratio": _cell(row["ratio"]) + _bounds(row["interval"]),
        }
        for row in rows
    ]
    return tabulate(shown, headers="keys", tablefmt="github", disable_numparse=True)


@torch.inference_mode()
def hub_rule(
    target: Target, drafter: LayerSkip, prompt: Sequence[int], answer: Sequence[int], limit: int
) -> tuple[int, ...]:
    """Ids that each pass of Hugging Face's would emit of `answer`, had it the drafts of `drafter`.

    `answer` is what the dense target says to `prompt` in at most `limit` ids. Only the blocks that
    draft are run.
    """
    dense = SkipSet.dense(target.num_layers)
    cache = target.new_cache(len(prompt) + len(answer) + drafter.max_nodes)
    if len(prompt) > 1:
        ids = torch.tensor([list(prompt[:-1])], device=target.device)
        positions = torch.arange(ids.shape[1], device=target.device)[None]
        target.forward_to(drafter.exit_layer, ids, positions, cache, dense)
        cache.advance(ids.shape[1])
    drafter.attach(target, cache, dense)
    lengths: list[int] = []
    emitted, root = 0, prompt[-1]
    while emitted < len(answer):
        tree = drafter.propose(root, limit - emitted - 1)
        drafter.entering(tree)
        known = answer[emitted:]
        pairs = zip(tree.tokens[1:], known, strict=False)
        right = next(
            (place for place, (draft, wanted) in enumerate(pairs) if draft != wanted),
            min(len(tree) - 1, len(known)),
        )
        lengths.append(min(right + 1, len(known)))
        cache.advance(lengths[-1])
        emitted += lengths[-1]
        root = answer[emitted - 1]
    return tuple(lengths)


def hub_assisted(
    model: Any, ids: Sequence[int], limit: int, drafter: LayerSkip, eos_ids: Sequence[int]
) -> Timed:
    """One greedy answer by `generate(assistant_early_exit=E)` with the sizes of `drafter`."""
    # The candidate generator reads these from the model, not from the arguments.
    settings = model.generation_config
    settings.num_assistant_tokens = drafter.max_nodes - 1
    settings.num_assistant_tokens_schedule = "constant"
    settings.assistant_confidence_threshold = 0.0
    passes = _Passes()
    clock = Clock(model.device)
    new = hub_greedy(
        model,
        ids,
        limit,
        eos_token_id=list(eos_ids) or None,
        assistant_early_exit=drafter.exit_layer,
        streamer=passes,
    )
    return Timed(tuple(new), tuple(passes.lengths), clock.wall())


class _Passes(BaseStreamer):
    """Notes how many ids each verification emits; `generate` puts the prompt first."""

    def __init__(self) -> None:
        self._puts: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self._puts.append(value.numel())

    def end(self) -> None:
        pass

    @property
    def lengths(self) -> list[int]:
        return self._puts[1:]


def _prepare(args: argparse.Namespace) -> tuple[SpeculativeLM, list[TaskRequests]]:
    """The adapter, checked but not loaded, and the tasks. Raises ValueError for bad input."""
    for name in ("limit", "threads", "num_speculations"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    given = split_arguments(args.model_args)
    for name in given.keys() & _FLAGS.keys():
        raise ValueError(f"--model_args may not hold {name}; this command has {_FLAGS[name]}")
    given |= {"exit_layer": args.exit_layer, "num_speculations": args.num_speculations}
    adapter = prepare_adapters([ADAPTER], given)[ADAPTER]
    tasks = load_tasks(split_names(args.tasks), args.limit, {"split": args.split})
    refuse_other_work(adapter, tasks)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    return adapter, tasks


def _compare(adapter: SpeculativeLM, model: Any, task: TaskRequests) -> list[Compared]:
    """Both answers to the first turn of every row."""
    jobs = adapter.jobs(task.requests)
    drafter = adapter.drafter
    assert isinstance(drafter, LayerSkip)
    ends = sorted(adapter.loaded.eos_ids)

    def ours(job: Job) -> Timed:
        answer = adapter.answer(job)
        stats = answer.stats[0]
        return Timed(answer.ids[0], stats.accept_lengths, stats.wall_s)

    def hub(job: Job) -> Timed:
        ids = adapter.prompt_ids(job)
        return hub_assisted(model, ids, _limit(adapter, job, ids), drafter, ends)

    methods: dict[str, Callable[[Job], Timed]] = {"hf": hub, "ours": ours}
    found = interleave(methods, jobs, task.label, lambda: adapter.begin_run(jobs))
    adapter.end_run()
    compared = []
    for job, one, other in zip(jobs, found["ours"], found["hf"], strict=True):
        ids = adapter.prompt_ids(job)
        counts = hub_rule(adapter.target, drafter, ids, one.ids, _limit(adapter, job, ids))
        skip, scope = job.choice.skip, adapter.scope
        parted = find_divergence(adapter.target, ids, one.ids, other.ids, skip, scope)
        compared.append(Compared(one, other, counts, parted))
    return compared


def _limit(adapter: SpeculativeLM, job: Job, ids: Sequence[int]) -> int:
    return min(job.options.max_gen_toks, adapter.max_length - len(ids))


def _setting(args: argparse.Namespace, adapter: SpeculativeLM) -> dict[str, Any]:
    place = machine({ADAPTER: adapter}).splitlines()[0]
    shared = {name: getattr(args, name) for name in ("limit", "split", "model_args")}
    return {"machine": place, **shared}


def _per_pass(lengths: Sequence[Sequence[int]]) -> float | None:
    return ratio([(sum(one), len(one)) for one in lengths])


def _speed(answers: Sequence[Timed]) -> float | None:
    return ratio([(len(one.ids), one.seconds) for one in answers])


def _cell(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _bounds(interval: Interval | None) -> str:
    return "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]"
