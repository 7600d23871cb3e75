"""Figures of `bench fidelity`: pooled over positions, with intervals over answers.

May import: tabulate, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from tss_bench.fidelity_measure import Readings, Role
from tss_bench.scoring.pooled import ratio
from tss_bench.scoring.statistics import Interval, ratio_interval
from tss_bench.skip_plots import Curve, Panel
from tss_bench.types import SkipSet

Rows = Sequence[Mapping[str, Any]]


def fidelity_rows(readings: Readings) -> list[dict[str, Any]]:
    """One row a variant: what it is, its figures, their 95 % bootstrap intervals over answers.

    `kl` in nats a position, `agreement` 0 … 1, `perplexity` of the answers' ids and, of dense
    variants, `prompt_perplexity`.
    """
    answers, prompts = readings.answer_positions.tolist(), readings.prompt_positions.tolist()
    rows = []
    for variant, agreement in readings.agreement.items():
        row = _row(variant.role, list(variant.skip), variant.exit)
        _put(row, "agreement", agreement.tolist(), answers)
        if variant in readings.divergence:
            _put(row, "kl", readings.divergence[variant].tolist(), answers)
            surprise = readings.surprise[variant].tolist()
            _put(row, "perplexity", surprise, answers, exponential=True)
        if variant in readings.prompt_surprise:
            surprise = readings.prompt_surprise[variant].tolist()
            _put(row, "prompt_perplexity", surprise, prompts, exponential=True)
        rows.append(row)
    return rows


def mean_of_singles(readings: Readings) -> dict[Role, dict[str, Any]]:
    """Mean divergence and agreement over all sets of one layer, by target."""
    roles: list[Role] = ["reference", "target"]
    positions = readings.answer_positions.tolist()
    found = {}
    for role in roles:
        chosen = [v for v in readings.divergence if v.role == role and len(v.skip) == 1]
        found[role] = _row(role, [], None)
        for name, sums in (("kl", readings.divergence), ("agreement", readings.agreement)):
            by_answer = zip(*(sums[variant].tolist() for variant in chosen), strict=True)
            mean = [sum(values) / len(chosen) for values in by_answer]
            _put(found[role], name, mean, positions)
    return found


def full_depth_table(rows: Rows, names: Mapping[Role, str]) -> str:
    """Both targets with no layer skipped; `names` by role."""
    headers = ["target", "KL to reference dense", "top-1 agreement", "perplexity of answers"]
    body = [
        [
            f"{names[row['role']]} ({row['role']})",
            *(_figure(row, name, digits) for name, digits in _HEADLINE),
        ]
        for row in rows
        if row["exit"] is None and not row["skip"]
    ]
    return tabulate(
        body, [*headers, "perplexity of prompts"], tablefmt="github", disable_numparse=True
    )


def layers_table(rows: Rows, means: Mapping[Role, Mapping[str, Any]]) -> str:
    """By layer and target: skipping it alone, and an exit after it."""
    found = {(row["role"], tuple(row["skip"]), row["exit"]): row for row in rows}
    layers = sorted({row["exit"] for row in rows if row["exit"] is not None})
    headers = ["layer", *(f"{name}, {role}" for name in _BY_LAYER for role in means)]
    body = []
    for layer in layers:
        single = [found.get((role, (layer,), None)) for role in means]
        left = [found.get((role, (), layer)) for role in means]
        cells = [_plain(row, name) for name in ("kl", "agreement") for row in single]
        body.append([str(layer), *cells, *(_plain(row, "agreement") for row in left)])
    mean = [_figure(means[role], name, 3) for name in ("kl", "agreement") for role in means]
    body.append(["mean", *mean, *("" for _ in means)])
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


def sets_table(rows: Rows, sets: Sequence[SkipSet]) -> str:
    """The skip sets asked for."""
    wanted = {tuple(skip): skip for skip in sets}
    headers = ["skips", "|S|/L", "target", "KL to reference dense", "top-1 agreement"]
    body = [
        [
            str(wanted[tuple(row["skip"])]),
            f"{wanted[tuple(row['skip'])].sparsity:.3f}",
            row["role"],
            _figure(row, "kl", 4),
            _figure(row, "agreement", 3),
        ]
        for row in rows
        if row["exit"] is None and tuple(row["skip"]) in wanted
    ]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


def ablation_panels(rows: Rows, names: Mapping[Role, str]) -> list[Panel]:
    """Divergence and agreement by skipped layer, a curve a target."""
    singles = [row for row in rows if len(row["skip"]) == 1]
    return [
        Panel("one layer skipped", "KL to reference dense, nats", _curves(singles, "kl", names)),
        Panel("one layer skipped", "top-1 agreement", _curves(singles, "agreement", names)),
    ]


def exit_panels(rows: Rows, names: Mapping[Role, str]) -> list[Panel]:
    """Agreement of an exit by its layer, a curve a target."""
    exits = [row for row in rows if row["exit"] is not None]
    return [Panel("exit after a layer", "top-1 agreement", _curves(exits, "agreement", names))]


_HEADLINE = (("kl", 4), ("agreement", 3), ("perplexity", 2), ("prompt_perplexity", 2))
_BY_LAYER = ("KL skipped", "agreement skipped", "agreement of exit")


def _row(role: Role, skip: list[int], exit: int | None) -> dict[str, Any]:
    return {"role": role, "skip": skip, "exit": exit, "intervals": {}}


def _put(
    row: dict[str, Any],
    name: str,
    sums: Sequence[float],
    counts: Sequence[float],
    *,
    exponential: bool = False,
) -> None:
    """Add the pooled mean of `sums` over `counts`, one entry an answer; omitted without any."""
    pairs = list(zip(sums, counts, strict=True))
    value, interval = ratio(pairs), ratio_interval(pairs)
    if value is None:
        return
    if exponential:
        value = math.exp(value)
        interval = interval and (math.exp(interval[0]), math.exp(interval[1]))
    row[name] = value
    row["intervals"][name] = interval


def _curves(rows: Rows, name: str, names: Mapping[Role, str]) -> dict[str, Curve]:
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        layers, values = curves.setdefault(f"{names[row['role']]} ({row['role']})", ([], []))
        layers.append(row["skip"][0] if row["exit"] is None else row["exit"])
        values.append(row[name])
    return dict(curves)


def _plain(row: Mapping[str, Any] | None, name: str) -> str:
    return "" if row is None else f"{row[name]:.3f}"


def _figure(row: Mapping[str, Any], name: str, digits: int) -> str:
    if name not in row:
        return ""
    interval: Interval | None = row["intervals"][name]
    text = f"{row[name]:.{digits}f}"
    if interval is None:
        return text
    return f"{text} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
