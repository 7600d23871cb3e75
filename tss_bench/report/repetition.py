"""How much of an accept length comes from text that an answer repeats.

A drafter guesses best where the target goes round in circles, and a target that lost blocks does
so more often: its accept length rises because its answers got worse. Here steps that begin in
repeated text are left out. A step begins there if its first id lies in an n-gram that began
earlier in the answer, too. Which places those are, the text alone tells, and under greedy decoding
that is the same whatever was drafted: the rule favours no drafter.

May import: tss_bench.{types,scoring} (layer L2 of the design).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tss_bench.report.board import Board, Change
from tss_bench.report.entries import Entry
from tss_bench.report.main_table import identity
from tss_bench.report.samples import Sample, Turn
from tss_bench.scoring.pooled import Pair, ratio

NGRAM = 5
SIGNIFICANT_P = 0.05

FEWEST_ROWS = 6
"""Rows below which no gain is judged: of five pairs not even a sign test can be significant."""


def steps_in_new_text(turn: Turn) -> Pair | None:
    """(emitted ids, steps) of the steps that do not begin in repeated text.

    None where ids or accept lengths are not recorded, or do not belong together.
    """
    if len(turn.ids) != 1 + sum(turn.accept_lengths):
        return None
    repeated = _repeated_places(turn.ids)
    place, emitted, steps = 1, 0, 0
    for length in turn.accept_lengths:
        if place not in repeated:
            emitted, steps = emitted + length, steps + 1
        place += length
    return float(emitted), float(steps)


def _repeated_places(ids: Sequence[int]) -> set[int]:
    """The places of all n-grams that began before, too."""
    seen: set[tuple[int, ...]] = set()
    found: set[int] = set()
    for start in range(len(ids) - NGRAM + 1):
        gram = tuple(ids[start : start + NGRAM])
        if gram in seen:
            found.update(range(start, start + NGRAM))
        seen.add(gram)
    return found


def repetition_record(board: Board, entry: Entry) -> dict[str, Any] | None:
    """A sparse row beside its native one, with and without steps in repeated text.

    None without a native row, where the sparse one skips nothing, or without recorded ids.
    """
    native = board.native_of(entry) if entry.sparse and entry.skip != () else None
    if native is None:
        return None
    known = [
        (one, two)
        for key in native.rows
        if (one := _pair(native.rows[key])) and (two := _pair(entry.rows.get(key, ())))
    ]
    whole = board.change(native, entry, "accept_len")
    new = board.compare([one for one, _ in known], [two for _, two in known])
    if whole is None or not known:
        return None
    sides = {"native": native.rows.values(), "tss": entry.rows.values()}
    found: dict[str, Any] = {**identity(entry), "requests": len(known)}
    for name, rows in sides.items():
        found[f"repeated_steps_{name}"] = _repeated_share(rows)
    for place, name in enumerate(sides):
        found[f"accept_len_new_{name}"] = ratio([both[place] for both in known])
    for name, gain in (("all", whole), ("new", new)):
        found[f"gain_{name}"] = gain.value if gain else None
        found[f"gain_{name}_p"] = gain.p if gain else None
    found["verdict"] = lost_gain(whole, new, "without repeated text")
    return found


def lost_gain(before: Change | None, after: Change | None, where: str) -> str | None:
    """What becomes of a gain in accept length once something is taken away; None if it stays."""
    if before is None or after is None or before.value <= 0:
        return None
    if min(before.rows, after.rows) < FEWEST_ROWS:
        return None
    if after.value <= 0:
        return f"gain gone {where}"
    sure = before.p is not None and before.p < SIGNIFICANT_P
    if sure and after.p is not None and after.p >= SIGNIFICANT_P:
        return f"gain not shown {where}"
    return None


def _pair(samples: Sequence[Sample]) -> Pair | None:
    """`steps_in_new_text` of all turns and repeats of a request; None if one is not known."""
    pairs = [steps_in_new_text(turn) for sample in samples for turn in sample.turns]
    known = [pair for pair in pairs if pair is not None]
    if not known or len(known) < len(pairs):
        return None
    return sum(pair[0] for pair in known), sum(pair[1] for pair in known)


def _repeated_share(rows: Iterable[Sequence[Sample]]) -> float | None:
    """Share of the verification steps that begin in repeated text."""
    turns = [turn for samples in rows for sample in samples for turn in sample.turns]
    known = [(found[1], len(t.accept_lengths)) for t in turns if (found := steps_in_new_text(t))]
    steps = sum(count for _, count in known)
    return 1 - sum(new for new, _ in known) / steps if steps else None
