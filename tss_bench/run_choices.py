"""Which skip sets the answers of a run used, from what the answers themselves say.

An answer may come from an earlier process of the run, so no adapter is asked.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tss_bench.domains import SkipChoice
from tss_bench.run_records import Record

_ROUTED = "router: "
"""How the reason of a choice begins that a router made."""


def skip_sets(records: Iterable[Record], planned: SkipChoice | None) -> Any:
    """The set of a task's answers as {"skip", "domain", "why", "requests"}.

    A list of those where the answers used several; `why` is None where it differs by answer.
    Without an answer it is the `planned` one, which a routed task does not have: then [].
    """
    found: dict[tuple[tuple[int, ...], str | None], list[str]] = {}
    for config in _configs(records):
        found.setdefault((tuple(config["skip"]), config["domain"]), []).append(config["why"])
    sets = [
        {
            "skip": list(skip),
            "domain": domain,
            "why": reasons[0] if len(set(reasons)) == 1 else None,
            "requests": len(reasons),
        }
        for (skip, domain), reasons in found.items()
    ]
    if not sets and planned is not None:
        told = {"skip": list(planned.skip), "domain": planned.domain, "why": planned.why}
        sets = [{**told, "requests": 0}]
    return sets[0] if len(sets) == 1 else sets


def routes(records: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, Any]]:
    """By task and domain (`dense` for strangers): the set, and how many requests got it.

    The form of `PromptRouter.summary`, which knows the requests of one process only.
    """
    found: dict[str, dict[str, Any]] = {}
    for task, own in records.items():
        for config in _configs(own):
            if config["why"].startswith(_ROUTED):
                entry = found.setdefault(task, {}).setdefault(
                    config["domain"] or "dense", {"skip": list(config["skip"]), "requests": 0}
                )
                entry["requests"] += 1
    return found


def _configs(records: Iterable[Record]) -> list[Mapping[str, Any]]:
    return [record.answer.config for record in records if record.answer is not None]
