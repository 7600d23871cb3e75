"""Figures and tables of `tss-bench domains route-test`: pure functions of what was routed where.

May import: tabulate, tss_bench.{scoring,types} (layer L3 of the design).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from tss_bench.scoring.statistics import wilson_interval
from tss_bench.types import GeneratedText, SkipSet

DENSE = "dense"
SAME_KIND = (("qa", "nq_open"),)
"""Domains whose rows are of one kind, so that confusing them is no fault of a router."""


@dataclass(frozen=True)
class Routed:
    """A test row of a domain: the domain that the vote chose, where the threshold let it go
    (None: dense), and, with its own domain taken out of the index, whether it went to dense
    (None: the other domains have too few prompts for a rule)."""

    domain: str
    nearest: str
    chosen: str | None
    left_out_dense: bool | None


@dataclass(frozen=True)
class Timed:
    """One request, routed and under the same set given by hand; `router_s` are the seconds of the
    choice alone."""

    router_s: float
    routed: GeneratedText
    given: GeneratedText


def accuracy(rows: Sequence[Routed], sets: Mapping[str, SkipSet]) -> dict[str, Any]:
    """Shares of all rows with 95 % Wilson intervals, by name.

    `right_set` are the rows that get their domain's skip set, wherever they go: a share that
    says nothing, and is left out, where `sets` are all dense.
    """
    kinds = {name: group[0] for group in SAME_KIND for name in group}

    def kind(name: str | None) -> str | None:
        return None if name is None else kinds.get(name, name)

    counts = {
        "right": sum(row.chosen == row.domain for row in rows),
        "right_kind": sum(kind(row.chosen) == kind(row.domain) for row in rows),
        "nearest_right": sum(row.nearest == row.domain for row in rows),
        "dense": sum(row.chosen is None for row in rows),
    }
    if any(sets.values()):
        layers = {name: frozenset(skip) for name, skip in sets.items()}
        counts["right_set"] = sum(
            layers[row.domain] == layers.get(row.chosen or DENSE, frozenset()) for row in rows
        )
    return {name: _share(count, len(rows)) for name, count in counts.items()}


def by_domain(rows: Sequence[Routed]) -> dict[str, dict[str, Any]]:
    """Of each domain: where its rows went, the share that went home (`recall`), and the share
    that went to dense while its domain was not in the index (`left_out`)."""
    found: dict[str, dict[str, Any]] = {}
    for domain in dict.fromkeys(row.domain for row in rows):
        own = [row for row in rows if row.domain == domain]
        strangers = [row.left_out_dense for row in own if row.left_out_dense is not None]
        found[domain] = {
            "rows": len(own),
            "went": dict(Counter(row.chosen or DENSE for row in own)),
            "recall": _share(sum(row.chosen == domain for row in own), len(own)),
            "left_out": _share(sum(strangers), len(strangers)) if strangers else None,
        }
    return found


def table(found: dict[str, dict[str, Any]]) -> str:
    """`by_domain` as a markdown table: a row a domain, a column for each place to go."""
    places = [*found, DENSE]
    body = [
        [
            domain,
            *(one["went"].get(place, "") for place in places),
            shown(one["recall"]),
            shown(one["left_out"]),
        ]
        for domain, one in found.items()
    ]
    headers = ["test rows of", *places, "recall", "dense if not in the index"]
    return tabulate(body, headers, tablefmt="github", disable_numparse=True)


def shown(share: dict[str, Any] | None) -> str:
    """`81 % [71, 88]`; nothing for a share that there is not."""
    if share is None:
        return ""
    low, high = share["interval"]
    return f"{share['share']:.0%}".replace("%", " %") + f" [{low * 100:.0f}, {high * 100:.0f}]"


def cost(requests: Sequence[Timed]) -> dict[str, float]:
    """What routing costs, in milliseconds a request and as a share of the requests' seconds.

    `router_ms` is the choice alone; `prefill_more_ms` is how much longer the first prefill took
    than that of the same requests under a given set: with scope `all` it holds one prefill more.
    """
    count = len(requests)
    wall = sum(_seconds(one.routed, "wall_s") for one in requests)
    router = sum(one.router_s for one in requests)
    more = sum(one.routed.stats[0].prefill_s - one.given.stats[0].prefill_s for one in requests)
    return {
        "requests": count,
        "request_ms": 1000 * wall / count,
        "router_ms": 1000 * router / count,
        "router_share": router / wall,
        "prefill_more_ms": 1000 * more / count,
        "prefill_more_share": more / wall,
    }


def cost_line(found: dict[str, float]) -> str:
    """`cost` in words."""
    return (
        f"routing takes {found['router_ms']:.2f} ms, {found['router_share']:.3%} of a request of "
        f"{found['request_ms']:.0f} ms; interleaved with the same set given by hand, the first "
        f"prefill took {found['prefill_more_ms']:+.1f} ms ({found['prefill_more_share']:+.2%} of "
        f"the request; {found['requests']} requests)"
    )


def _share(hits: int, rows: int) -> dict[str, Any]:
    return {"share": hits / rows, "interval": wilson_interval(hits, rows), "rows": rows}


def _seconds(answer: GeneratedText, name: str) -> float:
    return float(sum(getattr(stats, name) for stats in answer.stats))
