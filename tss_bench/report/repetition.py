"""How much of an accept length comes from text that an answer repeats.

A drafter guesses best where the target goes round in circles, and a target that lost blocks does
so more often: its accept length rises because its answers got worse. Here repeated text is left
out: every place in an n-gram that began earlier in the answer, too, or in one of its earlier turns.
What remains is the ids at other places over the steps that begin at one. It needs the ids and
accept lengths that `tss-bench run` records.

May import: tss_bench.{types,scoring} (layer L2 of the design).
"""

from __future__ import annotations

from collections.abc import Sequence
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


def new_text(turns: Sequence[Turn]) -> Pair | None:
    """(ids in new text, steps that begin there) of an answer, the id of each prefill left out.

    None where ids or accept lengths are not recorded, or do not belong together.
    """
    seen: set[tuple[int, ...]] = set()
    emitted, steps = 0, 0
    for turn in turns:
        if len(turn.ids) != 1 + sum(turn.accept_lengths):
            return None
        repeated = _repeated_places(turn.ids, seen)
        begin = 1
        for length in turn.accept_lengths:
            if begin not in repeated:
                steps += 1
                emitted += sum(place not in repeated for place in range(begin, begin + length))
            begin += length
    return float(emitted), float(steps)


def _repeated_places(ids: Sequence[int], seen: set[tuple[int, ...]]) -> set[int]:
    """The places of all n-grams that are in `seen` or began before; all go into `seen`."""
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
    keys = [key for key in native.rows if _known(native, key) and _known(entry, key)]
    if not keys:
        return None
    found: dict[str, Any] = {**identity(entry), "requests": len(keys)}
    whole, new = [], []
    for name, side in (("native", native), ("tss", entry)):
        whole.append(side.pairs("accept_len", keys))
        new.append([_pair(side.rows[key]) for key in keys])
        steps = sum(pair[1] for pair in whole[-1])
        found[f"repeated_steps_{name}"] = 1 - sum(p[1] for p in new[-1]) / steps if steps else None
        found[f"accept_len_new_{name}"] = ratio(new[-1])
    all_text, new_text_alone = board.compare(*whole), board.compare(*new)
    for name, gain in (("all", all_text), ("new", new_text_alone)):
        found[f"gain_{name}"] = gain.value if gain else None
        found[f"gain_{name}_p"] = gain.p if gain else None
    found["verdict"] = lost_gain(all_text, new_text_alone, "without repeated text")
    return found


def lost_gain(before: Change | None, after: Change | None, where: str) -> str | None:
    """What becomes of a gain in accept length once something is taken away; None if it stays.

    Only a significant gain can be lost. Where nothing or too few rows are left, it is not shown.
    """
    if before is None or before.value <= 0 or not _significant(before):
        return None
    if after is not None and after.value <= 0:
        return f"gain gone {where}"
    shown = after is not None and _significant(after)
    return None if shown else f"gain not shown {where}"


def _significant(change: Change) -> bool:
    return change.rows >= FEWEST_ROWS and change.p is not None and change.p < SIGNIFICANT_P


def _known(entry: Entry, key: str) -> bool:
    samples = entry.rows.get(key, ())
    return bool(samples) and all(new_text(sample.turns) is not None for sample in samples)


def _pair(samples: Sequence[Sample]) -> Pair:
    """`new_text` of all repeats of a request, which are known."""
    pairs = [pair for sample in samples if (pair := new_text(sample.turns))]
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)
