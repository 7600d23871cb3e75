"""Result files as `tss-bench run` and plain lm-eval write them, made by hand.

May import: the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DATE = "2026-11-30T06-44-50.002134"
TASK = "specbench_qa"


def stats(accept_lengths: Sequence[int] = (2, 2), **given: Any) -> dict[str, Any]:
    """The statistics of one turn: the id of the prefill and the given steps, 1 s in all."""
    emitted, steps = sum(accept_lengths), len(accept_lengths)
    return {
        "prompt_tokens": 5,
        "new_tokens": 1 + emitted,
        "verify_steps": steps,
        "drafted": 4 * steps,
        "accepted": emitted - steps,
        "accept_lengths": list(accept_lengths),
        "prefill_s": 0.2,
        "draft_s": 0.1,
        "verify_s": 0.5,
        "wall_s": 1.0,
        "stop": "eos",
        "prompt_truncated": False,
        "limit_clamped": False,
        **given,
    }


def pairs(turns: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """What our tasks emit of the turns' statistics, by the definitions."""

    def total(name: str) -> float:
        return sum(turn[name] for turn in turns)

    steps = total("verify_steps")
    return {
        "accept_len": [sum(sum(turn["accept_lengths"]) for turn in turns), steps],
        "accepted_per_step": [total("accepted"), steps],
        "accept_rate": [total("accepted"), total("drafted")],
        "tokens_per_second": [total("new_tokens"), total("wall_s")],
        "decode_tokens_per_second": [total("new_tokens"), total("wall_s") - total("prefill_s")],
        "steps_per_second": [steps, total("verify_s") + total("draft_s")],
        "verify_ms": [1000 * total("verify_s"), steps],
    }


def line(
    number: int,
    metrics: Mapping[str, Any],
    *,
    answer: str = "an answer",
    ids: Sequence[int] = (7, 8, 9, 2),
    turns: Sequence[Mapping[str, Any]] | None = None,
    config: Mapping[str, Any] | None = None,
    failed: str | None = None,
    docs: bool = True,
    ours: bool = True,
    **told: Any,
) -> dict[str, Any]:
    """One line of a samples file; `ours` adds the key `tss`, `docs` the text of the data."""
    content = f"hash-{number}"
    turns = [stats()] if turns is None else list(turns)
    doc: dict[str, Any] = {"id": f"row-{number}", "content_hash": content, "data_source": "mini"}
    found: dict[str, Any] = {"doc_id": number, "doc": doc, "filter": "none", "doc_hash": content}
    if docs:
        doc |= {"turns": [f"question {number}?"], "references": [f"reference {number}"]}
        found |= {"target": f"reference {number}", "arguments": {}}
    if failed is None:
        values = {**metrics, "scored": 1, **(pairs(turns) if turns else {})}
        found |= {"resps": [[answer]], "filtered_resps": [answer]}
        found |= {"metrics": list(values), **values}
    if ours:
        found["tss"] = {
            "row": f"row-{number}",
            "content_hash": content,
            "ids": [list(ids)] * len(turns),
            "turns": [answer] * len(turns),
            "stats": turns,
            "config": dict(config or {}),
            "first_token_s": [0.25] * len(turns),
            "repeat": 0,
            "failed": failed,
            **told,
        }
    return found


def write_run(
    folder: Path,
    adapter: str,
    lines: Sequence[Mapping[str, Any]],
    *,
    task: str = TASK,
    skip: Sequence[int] = (),
    protocol: str = "strict",
    date: str = DATE,
    data: str = "mini",
    split: str = "test",
    ours: bool = True,
    higher_is_better: Mapping[str, bool] | None = None,
    config: Mapping[str, Any] | None = None,
    **told: Any,
) -> Path:
    """The two files of one adapter and task below `folder`; `told` goes into key `tss_bench`."""
    place = folder / adapter
    place.mkdir(parents=True, exist_ok=True)
    drafter = adapter.partition("_")[2]
    record = {
        "adapter": adapter,
        "drafter": "none" if drafter == "ar" else drafter,
        "model": "four-layers",
        "num_layers": 4,
        "scope": "verify",
        "protocol": protocol,
        **({"native": f"native_{drafter}"} if adapter.startswith("tss_") else {}),
    }
    metadata = {"split": split, "data": {"kind": data, "sha256": "x", "revision": None, "rows": 9}}
    results: dict[str, Any] = {
        "results": {task: {"alias": task}},
        "configs": {task: {"task": task, "metadata": metadata}},
        "config": {
            "model": adapter,
            "model_args": {"skip_layers": list(skip)},
            **(config or {}),
        },
        "higher_is_better": {task: dict(higher_is_better or {})},
    }
    used = {task: {"skip": list(skip), "domain": "qa", "why": "a test"}}
    if ours:
        results["tss_bench"] = {"schema": 1, **record, "skip_sets": used, **told}
    else:
        results["config"]["tss_bench"] = {**record, "used": used, **told}
    name = f"results_{date}.json"
    (place / name).write_text(json.dumps(results), encoding="utf-8")
    samples = "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in lines)
    (place / f"samples_{task}_{date}.jsonl").write_bytes(samples.encode("utf-8", "surrogatepass"))
    return place
