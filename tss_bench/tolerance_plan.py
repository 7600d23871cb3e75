"""What `bench skips` is going to do: both targets, their drafters and skip sets, all checked.

Nothing is loaded here, and nothing is known of rows or answers.

May import: transformers, model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from model_adapters.adapters import ADAPTERS
from model_adapters.arguments import split_arguments
from model_adapters.base import SpeculativeLM
from model_adapters.loaded import load_tokenizer
from tss_bench import __version__, weights
from tss_bench.harness import TaskRequests, prepare_adapters, split_names
from tss_bench.skip_plots import check_plot
from tss_bench.tolerance_report import parse_sets, singles
from tss_bench.types import SkipSet
from tss_bench.weights.loading import resolve_device

_PREFIX = "tss_"
DRAFTERS = tuple(name.removeprefix(_PREFIX) for name in ADAPTERS if name.startswith(_PREFIX))

# Arguments of an adapter that have a flag of their own here, with that flag.
_FLAGS = {
    "pretrained": "--pretrained",
    "draft": "--draft",
    "scope": "--scope",
    "skip_layers": "--sets",
    "domain_map": "--sets",
}
# Arguments that an answer does not depend on, or that the settings hold in another form.
_NOT_SETTINGS = frozenset(_FLAGS) | {
    "batch_size",
    "device",
    "draft_revision",
    "revision",
    "seed",
    "temperature",
    "trust_remote_code",
}

Adapters = dict[str, SpeculativeLM]
"""Adapters of one target by drafter."""


@dataclass(frozen=True)
class Side:
    """One target, called `reference` or `target`, and the sets that each of its drafters runs.

    `settings` holds all that an answer depends on beside its row, by drafter and set; the dense
    set comes first.
    """

    role: str
    info: weights.ModelInfo
    sets: Sequence[SkipSet]
    settings: Mapping[tuple[str, SkipSet], dict[str, Any]]


def prepare(args: argparse.Namespace) -> tuple[list[Side], dict[str, Adapters]]:
    """The sides, a reference first, and their adapters by role, checked and not loaded.

    Raises ValueError for whatever in `args` cannot be run.
    """
    if args.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {args.limit}")
    if args.reference is None and args.reference_draft is not None:
        raise ValueError("--reference-draft is the head of --reference, which is not given")
    drafters = split_names(args.drafters)
    for name in drafters:
        if name not in DRAFTERS:
            raise ValueError(f"--drafters: no drafter {name!r}; there is {', '.join(DRAFTERS)}")
    given = _given(args)
    adapters = {"target": _adapters(drafters, given, args.pretrained, args.draft)}
    if args.reference is not None:
        reference = _adapters(drafters, given, args.reference, args.reference_draft)
        adapters = {"reference": reference, **adapters}
        _require_same_prompts(*(next(iter(each.values())) for each in adapters.values()))
    sides = [_side(args, role, each) for role, each in adapters.items()]
    if args.plot is not None:
        check_plot(args.plot)
        if not set(singles(sides[-1].info.num_layers)) <= set(sides[-1].sets):
            raise ValueError("--plot draws the ablation layer by layer; add singles to --sets")
    return sides, adapters


def require_greedy(tasks: Sequence[TaskRequests], adapters: Mapping[str, Adapters]) -> None:
    """Raises ValueError for a task whose answers are drawn at random."""
    arguments = next(iter(adapters["target"].values())).arguments
    for task in tasks:
        if any(options.temperature > 0 for options in task.options(arguments)):
            raise ValueError(f"{task.name} is sampled; bench skips compares greedy answers")


def require_same_tokenizer(
    reference: str, first: PreTrainedTokenizerBase, target: str, second: PreTrainedTokenizerBase
) -> None:
    """Raises ValueError unless both targets, named by the user, give every token the same id."""
    if not weights.same_tokenizer(first, second):
        raise ValueError(
            f"--reference {reference} has another tokenizer than --pretrained {target}; only "
            f"targets with the same ids can be compared, such as a model and its adapted form"
        )


def _given(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of all adapters but those that name a model."""
    given = split_arguments(args.model_args)
    for name in given.keys() & _FLAGS.keys():
        raise ValueError(f"--model_args may not hold {name}; use {_FLAGS[name]}")
    if given.get("state", "request") != "request":
        raise ValueError("state=run makes answers depend on their order; use state=request")
    return {**given, "scope": args.scope, "skip_layers": "dense"}


def _adapters(
    drafters: Sequence[str], given: Mapping[str, Any], pretrained: str, draft: str | None
) -> Adapters:
    own = {"pretrained": pretrained, **({} if draft is None else {"draft": draft})}
    made = prepare_adapters([_PREFIX + name for name in drafters], {**given, **own})
    return {name.removeprefix(_PREFIX): adapter for name, adapter in made.items()}


def _require_same_prompts(reference: SpeculativeLM, target: SpeculativeLM) -> None:
    first, second = reference.arguments, target.arguments
    if first.pretrained == second.pretrained:
        return
    tokenizers = load_tokenizer(first), load_tokenizer(second)
    require_same_tokenizer(first.pretrained, tokenizers[0], second.pretrained, tokenizers[1])
    templates = {tokenizer.chat_template for tokenizer in tokenizers}
    if second.chat_template is not False and len(templates) > 1:
        raise ValueError(
            f"--reference {first.pretrained} has another chat template than --pretrained "
            f"{second.pretrained}, so their prompts differ; compare them with --model_args "
            f"chat_template=false"
        )


def _side(args: argparse.Namespace, role: str, adapters: Adapters) -> Side:
    info = next(iter(adapters.values())).info
    text = args.sets
    if role == "reference" and not args.sets_on_reference:
        text = "" if args.plot is None else "singles"
    sets = parse_sets(text, info.num_layers)
    settings = {
        (drafter, skip): {**_settings(adapter), "skip": list(skip)}
        for drafter, adapter in adapters.items()
        for skip in sets
    }
    return Side(role, info, sets, settings)


def _settings(adapter: SpeculativeLM) -> dict[str, Any]:
    """All that an answer depends on beside its row and the skip set; known before loading."""
    told = sorted(adapter.allowed_arguments() - _NOT_SETTINGS)
    return {
        **{name: getattr(adapter.arguments, name) for name in told},
        "version": __version__,
        "model": adapter.info.id,
        "revision": adapter.info.revision,
        "drafter": adapter.drafter_id,
        "scope": adapter.scope,
        # Answers side by side are rounded differently from answers one by one.
        "decoding": "batched" if adapter.side_by_side else "sequential",
        # The default size of a tree depends on it, and so does rounding.
        "device": resolve_device(adapter.arguments.device).partition(":")[0],
        **adapter.drafter_record(),
    }
