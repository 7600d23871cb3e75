"""Documents of our lm-eval tasks: rows, split, prompt; and the class that names their source.

lm-eval loads this file by its path, so it cannot import its neighbours. No scoring here beyond
the figures that come out of an answer's statistics.

May import: the standard library, datasets, lm_eval, tss_bench.data, tss_bench.scoring (layer
L2 of the design).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, Value
from lm_eval.api.task import ConfigurableTask

from tss_bench.data.resolve import DataSource, read_rows, resolve
from tss_bench.data.rows import LETTERS, Row
from tss_bench.data.split import check_split, split_rows
from tss_bench.scoring.pooled import POOLED_NAMES, Pair, ratio, request_pairs

_TEXTS = [Value("string")]
_FEATURES = Features(
    {
        "id": Value("string"),
        "domain": Value("string"),
        "prompt_style": Value("string"),
        "turns": _TEXTS,
        "references": _TEXTS,
        "choices": _TEXTS,
        "content_hash": Value("string"),
        "data_source": Value("string"),
    }
)
_LOWER_IS_BETTER = frozenset({"verify_ms"})


class TssTask(ConfigurableTask):
    """A task over our rows; the YAML file gives prompt, limits and the metrics of an answer.

    `--metadata split=calibration|test|all` chooses the split (default test). Every task also
    reports `scored` (rows with a reference) and, where answers carry `.stats`, the pooled
    figures of `tss_bench.scoring.pooled`. What data was used is printed once, shown in the
    task's alias unless it is the official test split, and stored in the results under the
    task's metadata. Raises DataError for an unknown split or data that cannot be had.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = {key: value for key, value in config.items() if key != "class"}
        settings["metric_list"] = [*(settings.get("metric_list") or []), *_shared_metrics()]
        super().__init__(config=settings)

    def download(self, dataset_kwargs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Load the rows; called by lm-eval's constructor with `dataset_kwargs` of the YAML.

        `rows` names their domain; `file` is a file of one's own (`read_rows`); the others are
        those of `documents`.
        """
        options = dict(dataset_kwargs or {})
        metadata = self.config.metadata
        split = check_split(metadata.get("split", "test"))
        domain, file = options.pop("rows"), options.pop("file", None)
        rows, source = resolve(domain) if file is None else read_rows(file, domain)
        chosen = split_rows(rows, split)
        self.dataset = {"rows": documents(chosen, source, **options)}
        self.config.task_alias = _alias(self.config.task, source, split)
        metadata["split"] = split
        metadata["data"] = {
            "kind": source.kind,
            "sha256": source.sha256,
            "revision": source.revision,
            "rows": len(chosen),
        }
        _print_once(_description(self.config.task, source, split, len(chosen), len(rows)))

    def process_results(self, doc: Mapping[str, Any], results: Sequence[Any]) -> dict[str, Any]:
        """The YAML's metrics (none without a reference), `scored`, and pairs of the statistics."""
        quality: dict[str, Any] = super().process_results(doc, results)
        if "bypass" in quality:
            return quality
        stats = getattr(results[0], "stats", ())
        pairs = {name: pair for name, pair in request_pairs(stats).items() if pair[1] > 0}
        return {**quality, "scored": int(bool(quality)), **pairs}

    def fewshot_context(self, doc: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The prompt; a completion prompt stays as it is under `--apply_chat_template`."""
        if doc["prompt_style"] == "completion":
            kwargs |= {"apply_chat_template": False, "chat_template": None}
        return super().fewshot_context(doc, *args, **kwargs)

    def construct_requests(self, doc: Mapping[str, Any], ctx: Any, **kwargs: Any) -> Any:
        if doc["prompt_style"] == "completion":
            kwargs |= {"apply_chat_template": False, "chat_template": None}
        return super().construct_requests(doc, ctx, **kwargs)


def documents(
    rows: Sequence[Row],
    source: DataSource,
    *,
    template: str = "{turn}",
    prompt_style: str = "chat",
    examples: Sequence[Mapping[str, Any]] = (),
) -> Dataset:
    """One document a row, in the given order.

    `template` makes a prompt of a turn: `{turn}` is its text, `{options}` the choices as lines
    "A. …". `examples` (turn, answer, perhaps choices) stand before the first turn, each with
    its answer, blank lines between them.
    """
    shots = "".join(
        f"{_prompt(template, shot['turn'], shot.get('choices', ()))} {shot['answer']}\n\n"
        for shot in examples
    )
    return Dataset.from_list(
        [
            {
                "id": row.id,
                "domain": row.domain,
                "prompt_style": prompt_style,
                "turns": [
                    (shots if index == 0 else "") + _prompt(template, turn, row.choices)
                    for index, turn in enumerate(row.turns)
                ],
                "references": list(row.references),
                "choices": list(row.choices),
                "content_hash": row.content_hash,
                "data_source": source.kind,
            }
            for row in rows
        ],
        features=_FEATURES,
    )


def first_turn(doc: Mapping[str, Any]) -> str:
    """lm-eval's `doc_to_text`. Adapters that speak several turns read `doc["turns"]`."""
    turn: str = doc["turns"][0]
    return turn


def first_reference(doc: Mapping[str, Any]) -> str:
    """lm-eval's `doc_to_target`, for its records only; empty for a row without a reference."""
    return doc["references"][0] if doc["references"] else ""


def pooled(pairs: Sequence[Pair]) -> float:
    """sum of numerators / sum of denominators of (numerator, denominator) pairs."""
    value = ratio(pairs)
    if value is None:
        raise ValueError("no pair with a denominator; such pairs are left out, not pooled")
    return value


def total(counts: Sequence[int]) -> int:
    """The sum; lm-eval averages by default."""
    return sum(counts)


def _prompt(template: str, turn: str, choices: Sequence[str]) -> str:
    options = "\n".join(f"{letter}. {text}" for letter, text in zip(LETTERS, choices, strict=False))
    return template.format(turn=turn, options=options)


def _shared_metrics() -> list[dict[str, Any]]:
    """Entries of `metric_list` that every task has; lm-eval shows those that were emitted."""
    return [
        _metric("scored", total, None),
        *(_metric(name, pooled, name not in _LOWER_IS_BETTER) for name in POOLED_NAMES),
    ]


def _metric(
    name: str, aggregation: Callable[[Sequence[Any]], Any], higher_is_better: bool | None
) -> dict[str, Any]:
    return {"metric": name, "aggregation": aggregation, "higher_is_better": higher_is_better}


def _alias(task: str, source: DataSource, split: str) -> str:
    marks = [mark for mark in (source.kind, split) if mark not in ("official", "test")]
    return f"{task} ({', '.join(marks)})" if marks else task


def _description(task: str, source: DataSource, split: str, count: int, of: int) -> str:
    place = "the packaged mini set" if source.kind == "mini" else f"{source.kind} {source.path}"
    note = f"; {source.note}" if source.note else ""
    return f"tss_bench: {task} uses {place}, split {split}, {count} of {of} rows{note}"


@functools.cache
def _print_once(message: str) -> None:
    print(message, file=sys.stderr)
