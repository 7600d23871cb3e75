"""Figures of `bench skips`: what a skip set costs in metric and accept length, paired by row.

Pure functions of recorded answers. The rule is that of the search (definitions.md): a set holds
where metric and accept length keep 95 % of the dense values.

May import: tabulate, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from tss_bench.scoring.pooled import PRIMARY_METRICS, Pair, ratio
from tss_bench.scoring.statistics import (
    Interval,
    Pairs,
    difference_interval,
    paired_ratio_p_value,
    ratio_interval,
)
from tss_bench.skip_plots import Panel
from tss_bench.types import SkipSet

TOLERANCE = 0.05
"""Share of the dense value that may be lost; of a dense value of zero, the amount."""

Records = Sequence[Mapping[str, Any]]


def keeps(value: float, dense: float, tolerance: float = TOLERANCE) -> bool:
    """Whether `value` passes the floor of `dense`: relative, but absolute for a zero."""
    return value >= ((1 - tolerance) * dense if dense else -tolerance)


def primary_metric(records: Records) -> str | None:
    """The task's metric that is a mean over rows, if it has one."""
    return next((m for m in PRIMARY_METRICS if any(m in r["metrics"] for r in records)), None)


def accept_pairs(records: Records) -> list[Pair]:
    """Emitted ids and steps of each row, its turns added up."""
    return [
        (float(sum(map(sum, r["accept_lengths"]))), float(sum(r["verify_steps"]))) for r in records
    ]


def metric_pairs(records: Records, metric: str | None) -> list[Pair]:
    """The metric of each row as a pair over 1; a row without a reference is (0, 0)."""
    return [
        (float(r["metrics"][metric]), 1.0) if metric in r["metrics"] else (0.0, 0.0)
        for r in records
    ]


def figures(records: Records) -> dict[str, Any]:
    """Accept length and primary metric of one configuration, with 95 % bootstrap intervals."""
    metric = primary_metric(records)
    lengths, values = accept_pairs(records), metric_pairs(records, metric)
    return {
        "rows": len(records),
        "scored": int(sum(below for _, below in values)),
        "metric_name": metric,
        "metric": ratio(values),
        "accept_len": ratio(lengths),
        "intervals": {"metric": ratio_interval(values), "accept_len": ratio_interval(lengths)},
    }


def compare(dense: Records, records: Records) -> dict[str, Any]:
    """Paired differences to `dense`, row i of both being the same request, and the verdict.

    `holds` is None where nothing can be compared. Raises ValueError for different lengths.
    """
    metric = primary_metric(dense)
    found = {
        "metric": difference(metric_pairs(dense, metric), metric_pairs(records, metric)),
        "accept_len": difference(accept_pairs(dense), accept_pairs(records)),
    }
    verdicts = [each["holds"] for each in found.values() if each is not None]
    return {**found, "holds": all(verdicts) if verdicts else None}


def difference(first: Pairs, second: Pairs) -> dict[str, Any] | None:
    """`second` against `first`, two pooled ratios over the same rows; None where one is not there.

    `value` is relative, or absolute where the first ratio is zero; `interval` is its 95 %
    bootstrap interval, `p` the paired bootstrap p-value of the difference. Raises ValueError for
    different numbers of rows.
    """
    before, after = ratio(first), ratio(second)
    if before is None or after is None:
        return None
    relative = before != 0
    p_value = paired_ratio_p_value(first, second)
    return {
        "value": after / before - 1 if relative else after - before,
        "relative": relative,
        "interval": difference_interval(first, second, relative=relative),
        "p": p_value,
        "holds": keeps(after, before),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Result rows as a markdown table; the columns of a reference only where there is one."""
    kinds = [kind for kind in ("reference", "own") if any(kind in row["against"] for row in rows)]
    headers = ["task", "role", "target", "skips", "|S|/L", "drafter", "accept_len", "metric"]
    for kind in kinds:
        headers += [f"metric vs {kind} dense", f"accept_len vs {kind} dense", f"vs {kind}"]
    headers += ["scored", "data, split, scope, protocol"]
    body = [
        [
            row["task"],
            row["role"],
            row["target"],
            "{" + ",".join(map(str, row["skip"])) + "}",
            f"{row['sparsity']:.3f}",
            row["drafter"],
            figure_text(row["accept_len"], row["intervals"]["accept_len"], 2),
            f"{row['metric_name'] or 'none'} "
            + figure_text(row["metric"], row["intervals"]["metric"], 3),
            *(cell for kind in kinds for cell in _against(row["against"].get(kind))),
            f"{row['scored']} of {row['rows']}",
            " ".join((row["data"], row["split"], row["scope"], row["protocol"])),
        ]
        for row in rows
    ]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


def ablation_panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """Relative change of accept length and metric by skipped layer: two panels a task.

    Only sets of one layer count. Plain decoding has no accept length to change, and a dense
    metric of zero no relative change.
    """
    singles = [row for row in rows if len(row["skip"]) == 1]
    panels = []
    for task in dict.fromkeys(row["task"] for row in singles):
        for name, label in (("accept_len", "accept length A"), ("metric", "metric M")):
            curves: dict[str, tuple[list[int], list[float]]] = {}
            for row in singles:
                found = row["against"]["own"][name]
                plain = name == "accept_len" and row["drafter"] == "ar"
                if row["task"] != task or found is None or not found["relative"] or plain:
                    continue
                key = f"{row['role']} {row['target']}, {row['drafter']}"
                layers, values = curves.setdefault(key, ([], []))
                layers.append(row["skip"][0])
                values.append(100 * found["value"])
            panels.append(Panel(f"{task}: {label}", "change to own dense, %", curves, 0.0))
    return panels


def parse_sets(text: str, num_layers: int) -> list[SkipSet]:
    """The sets of `--sets`, the dense one first, each once.

    Sets are separated by commas, the layers of one by plus signs; `singles` stands for every set
    of one layer. Raises ValueError for anything else and for a layer that is not there.
    """
    sets = [SkipSet.dense(num_layers)]
    for piece in filter(None, map(str.strip, text.split(","))):
        try:
            sets += (
                singles(num_layers) if piece == "singles" else [SkipSet.parse(piece, num_layers)]
            )
        except ValueError as error:
            raise ValueError(
                f"--sets: {error} (write for example 3+10,3+10+13+25 or singles)"
            ) from None
    return list(dict.fromkeys(sets))


def singles(num_layers: int) -> list[SkipSet]:
    """Every set of one layer."""
    return [SkipSet.of([layer], num_layers) for layer in range(num_layers)]


def _against(found: Mapping[str, Any] | None) -> Iterable[str]:
    if found is None:
        return ("", "", "")
    verdict = {True: "holds", False: "lost", None: "nothing to compare"}[found["holds"]]
    return difference_text(found["metric"]), difference_text(found["accept_len"]), verdict


def difference_text(found: Mapping[str, Any] | None) -> str:
    """`-1.2 % [-3.0, +0.5] p 0.41`, or the plain difference behind a dense value of zero."""
    if found is None:
        return ""
    scale, digits, unit = (100, 1, " %") if found["relative"] else (1, 3, " absolute")
    text = f"{scale * found['value']:+.{digits}f}{unit}"
    if found["interval"] is not None:
        low, high = (scale * end for end in found["interval"])
        text += f" [{low:+.{digits}f}, {high:+.{digits}f}]"
    return text if found["p"] is None else f"{text} p {found['p']:.2g}"


def figure_text(value: float | None, interval: Interval | None, digits: int) -> str:
    """`2.05 [1.90, 2.21]`; empty where there is no value."""
    if value is None:
        return ""
    text = f"{value:.{digits}f}"
    if interval is None:
        return text
    return f"{text} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
