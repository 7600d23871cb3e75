"""Figures and tables of the speed measurements: pure functions of recorded answers.

May import: tabulate, tss_bench.{scoring,types} (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from tss_bench.scoring.pooled import PRIMARY_METRICS, Pair, ratio, request_pairs
from tss_bench.scoring.statistics import (
    Interval,
    mean_interval,
    mean_ratio_interval,
    ratio_interval,
)
from tss_bench.types import GeneratedText, GenerationStats

HUB, PLAIN = "hf_generate", "native_ar"

MEAN = "mean"

TaskPairs = Mapping[str, Mapping[str, Sequence[Pair]]]
"""By adapter and figure (`accept_len`, `tokens_per_second`): the pair of each row of one task."""

_SPEEDS = ("accept_len", "decode_tokens_per_second", "tokens_per_second")


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
            for key, base in (("over_hub", HUB), ("over_plain", PLAIN)):
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
        [task, method, *(figure_text(figures.get(key)) for key, _ in columns)]
        for task, methods in report.items()
        for method, figures in methods.items()
    ]
    return tabulate(rows, ["task", "method", *(title for _, title in columns)], tablefmt="github")


def domains_row(
    answers: Sequence[GeneratedText],
    samples: Mapping[str, Sequence[Any]],
    metrics: Mapping[str, float],
) -> dict[str, Any]:
    """Figures of one adapter on one task, with 95 % bootstrap intervals over its requests.

    `samples` are the metric values by request, `metrics` their aggregates. `skip` lists the skip
    sets that were used, as `scope` and `protocol` do; there is one of each but for a task
    whose documents have domains of their own.
    """
    pairs = [request_pairs(answer.stats) for answer in answers]
    row: dict[str, Any] = {
        key: _distinct(answer.config[key] for answer in answers)
        for key in ("skip", "scope", "protocol")
    }
    intervals: dict[str, Interval | None] = {}
    for name in _SPEEDS:
        column = [pair[name] for pair in pairs]
        value = ratio(column)
        if value is not None:
            row[name] = value
            intervals[name] = ratio_interval(column)
    row |= metrics
    metric = _primary(row)
    if metric is not None:
        values = samples[metric]
        row["scored"] = len(values)
        if all(isinstance(value, int | float) for value in values):
            intervals[metric] = mean_interval(values)
    return {**row, "intervals": intervals}


def domains_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows of `domains_row`, with `task` and `model`, as a markdown table."""
    headers = ["task", "model", "skips, scope, protocol", "accept_len", "metric", "tokens/s"]
    body = [
        [
            row["task"],
            row["model"],
            _setting(row),
            figure_text(row.get("accept_len"), row["intervals"].get("accept_len")),
            _metric_cell(row),
            figure_text(row.get("tokens_per_second"), row["intervals"].get("tokens_per_second"), 1),
        ]
        for row in rows
    ]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


def answer_pairs(answers: Sequence[GeneratedText]) -> dict[str, list[Pair]]:
    """What the summary needs of one adapter's answers to a task, a pair a row."""
    pairs = [request_pairs(answer.stats) for answer in answers]
    names = ("accept_len", "tokens_per_second")
    return {name: [pair[name] for pair in pairs] for name in names}


def summarize(tasks: Mapping[str, TaskPairs]) -> dict[str, dict[str, dict[str, Any]]]:
    """By adapter and task, then `mean`: accept length, speed-up over `native_ar`, 95 % intervals.

    `speed_up` is the ratio of tokens/s on the same rows; without `native_ar` there is none. The
    mean is that of the tasks, each counting once. A figure without a value is None.
    """
    methods = list(next(iter(tasks.values())))
    return {
        method: {
            **{label: _summary_cell([by_method], method) for label, by_method in tasks.items()},
            MEAN: _summary_cell(list(tasks.values()), method),
        }
        for method in methods
    }


def summary_table(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """The summary as a markdown table: a row a method, a column a task."""
    first = next(iter(summary.values()))
    headers = ["method", *(label.removeprefix("specbench_") for label in first)]
    rows = [
        [method, *(_summary_text(cell, method == PLAIN) for cell in cells.values())]
        for method, cells in summary.items()
    ]
    return tabulate(rows, headers, tablefmt="github", disable_numparse=True)


def _summary_cell(tasks: Sequence[TaskPairs], method: str) -> dict[str, Any]:
    def pairs(name: str, of: str) -> list[Sequence[Pair]]:
        return [by_method[of][name] for by_method in tasks]

    lengths, speeds = pairs("accept_len", method), pairs("tokens_per_second", method)
    cell = {
        "accept_len": _mean_ratio(lengths),
        "accept_len_interval": mean_ratio_interval(lengths),
        "speed_up": None,
        "speed_up_interval": None,
    }
    if PLAIN in tasks[0]:
        plain = pairs("tokens_per_second", PLAIN)
        cell["speed_up"] = _mean_ratio(speeds, plain)
        cell["speed_up_interval"] = mean_ratio_interval(speeds, plain)
    return cell


def _mean_ratio(
    groups: Sequence[Sequence[Pair]], base: Sequence[Sequence[Pair]] | None = None
) -> float | None:
    ratios = [ratio(pairs) for pairs in groups]
    bases = [ratio(pairs) for pairs in base] if base is not None else [1.0] * len(ratios)
    quotients = [
        above / below for above, below in zip(ratios, bases, strict=True) if above and below
    ]
    return sum(quotients) / len(quotients) if len(quotients) == len(groups) else None


def _summary_text(cell: Mapping[str, Any], plain: bool) -> str:
    """`1.62 [1.41, 1.86], 1.13x [1.02, 1.25]`; plain decoding's speed-up is one by definition."""
    parts = [figure_text(cell["accept_len"], cell["accept_len_interval"])]
    if cell["speed_up"] is not None:
        interval = None if plain else cell["speed_up_interval"]
        figure, *spread = figure_text(cell["speed_up"], interval).split(" ", 1)
        parts.append(" ".join([f"{figure}x", *spread]))
    return ", ".join(part for part in parts if part)


def _pooled(stats: Sequence[GenerationStats]) -> dict[str, float]:
    pairs = [request_pairs([record]) for record in stats]
    figures = {name: ratio([pair[name] for pair in pairs]) for name in _SPEEDS}
    return {name: value for name, value in figures.items() if value is not None}


def _primary(row: Mapping[str, Any]) -> str | None:
    return next((name for name in PRIMARY_METRICS if name in row), None)


def _distinct(values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _setting(row: Mapping[str, Any]) -> str:
    skips = " or ".join("{" + ",".join(map(str, skip)) + "}" for skip in row["skip"])
    return " ".join([skips, *row["scope"], *row["protocol"]])


def _metric_cell(row: Mapping[str, Any]) -> str:
    metric = _primary(row)
    if metric is None:
        return "no metric"
    figure = figure_text(row[metric], row["intervals"].get(metric), digits=3)
    return f"{metric} {figure} ({row['scored']} rows)"


def figure_text(value: float | None, interval: Interval | None = None, digits: int = 2) -> str:
    """`1.52 [1.44, 1.61]`; without an interval the figure alone."""
    if value is None:
        return ""
    figure = f"{value:.{digits}f}"
    if interval is None:
        return figure
    return f"{figure} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
