"""What speaks against a figure: text after the end, repetition, cut answers, changed answers.

Only recorded answers are looked at. Under protocol `paper` text after an end-of-text id stays in
an answer and in all counts; what of a gain comes from there shows beside the same requests under
`strict`. Losslessness is a matter of `strict` and of temperature 0: an answer of a drafter against
that of plain decoding of the same target. In 16-bit formats two ids whose logits are equal up to
rounding may change places there; the logit gap is told where the run recorded it.

May import: tss_bench.scoring (layer L2 of the design).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tss_bench.report.board import Board, Change, answers
from tss_bench.report.entries import Entry
from tss_bench.report.main_table import identity
from tss_bench.report.repetition import NGRAM, lost_gain, repetition_record
from tss_bench.report.samples import Divergence, Sample
from tss_bench.report.tables import Record


@dataclass(frozen=True)
class Audit:
    """The records of each kind of check, and the flags that the main table shows."""

    texts: Mapping[Entry, Record]
    repetition: Mapping[Entry, Record]
    protocols: Mapping[Entry, Record]
    lossless: Mapping[Entry, Record]
    divergences: Sequence[Record]
    flags: Mapping[Entry, Sequence[str]]


def audit(board: Board) -> Audit:
    """All checks of all entries."""
    texts = {entry: text_record(board, entry) for entry in board.entries}
    repetition = {e: found for e in board.entries if (found := repetition_record(board, e))}
    protocols = {e: found for e in board.entries if (found := protocol_record(board, e))}
    divergences: list[Record] = []
    lossless = {}
    for entry in board.entries:
        compared = _divergences(board, entry)
        if compared is not None:
            divergences += [one for one in compared if one["position"] is not None]
            lossless[entry] = {**identity(entry), **_lossless(compared)}
    flags = {
        entry: [
            *_verdicts(protocols.get(entry), repetition.get(entry)),
            *_flags(board, entry, texts[entry], lossless.get(entry)),
        ]
        for entry in board.entries
    }
    return Audit(texts, repetition, protocols, lossless, divergences, flags)


def distinct_2(tokens: Sequence[Any]) -> float | None:
    """Different bigrams over all bigrams of one answer (Li et al. 2016); None for none."""
    bigrams = list(itertools.pairwise(tokens))
    return len(set(bigrams)) / len(bigrams) if bigrams else None


def longest_repeat(tokens: Sequence[Any], n: int = NGRAM) -> float | None:
    """Share of an answer in its longest stretch that only repeats what stood before.

    The stretch is the longest run of consecutive n-grams each of which began earlier in the
    answer, its share counted in tokens. None for an answer shorter than one n-gram.
    """
    if len(tokens) < n:
        return None
    seen: set[tuple[Any, ...]] = set()
    longest = run = 0
    for start in range(len(tokens) - n + 1):
        gram = tuple(tokens[start : start + n])
        run = run + 1 if gram in seen else 0
        seen.add(gram)
        longest = max(longest, run)
    return (longest + n - 1) / len(tokens) if longest else 0.0


def text_record(board: Board, entry: Entry) -> dict[str, Any]:
    """Repetition, cut answers, cut prompts, and agreement with the dense target."""
    samples = [row[0] for row in entry.rows.values()]
    turns = [turn for sample in samples for turn in sample.turns]
    units: list[Sequence[Any]] = [turn.ids or turn.text.split() for turn in turns]
    stops = [turn.stop for turn in turns if turn.stop is not None]
    truncated = [turn.truncated for turn in turns if turn.truncated is not None]
    dense = board.native_of(entry)
    both = [] if dense is None else answers(dense, entry)
    both = [(one, two) for one, two in both if one.turns and two.turns]
    return {
        **identity(entry),
        "answers": len(turns),
        "distinct_2": _mean(map(distinct_2, units)),
        "longest_repeat": _mean(map(longest_repeat, units)),
        "cut_by_limit": stops.count("length") / len(stops) if stops else None,
        "cut_by_context": stops.count("context") / len(stops) if stops else None,
        "prompts_truncated": sum(truncated) if truncated else None,
        "compared_with_dense": len(both) or None,
        "same_as_dense": _mean(float(_parts(*pair)[0] is None) for pair in both),
        "same_start_as_dense": _mean(_common_share(*pair) for pair in both),
    }


def protocol_record(board: Board, entry: Entry) -> dict[str, Any] | None:
    """A row under `paper` beside itself under `strict`; None without such a pair."""
    strict = board.under("strict", entry) if entry.run.protocol == "paper" else None
    if strict is None:
        return None
    change = board.change(entry, strict, "accept_len")
    known = change is not None and change.relative
    found: dict[str, Any] = {**identity(entry), "requests": len(answers(entry, strict))}
    for name, one in (("paper", entry), ("strict", strict)):
        figure = board.figure(one, "accept_len")
        found[f"accept_len_{name}"] = figure.value if figure else None
    found["after_end"] = -change.value if change and known else None
    found["after_end_low"] = _minus(change.high) if change and known else None
    found["after_end_high"] = _minus(change.low) if change and known else None
    found["ids_after_end"] = _ids_after_end(entry, strict)
    for name, one in (("paper", entry), ("strict", strict)):
        gain = _gain(board, one)
        found[f"gain_{name}"] = gain.value if gain else None
        found[f"gain_{name}_p"] = gain.p if gain else None
    gain = _gain(board, strict)
    found["verdict"] = lost_gain(_gain(board, entry), gain, "under strict") if gain else None
    return found


def _gain(board: Board, entry: Entry) -> Change | None:
    native = board.native_of(entry)
    return None if native is None else board.change(native, entry, "accept_len")


def _ids_after_end(paper: Entry, strict: Entry) -> float | None:
    """Share of the ids emitted under `paper` that `strict` did not emit for the same requests."""
    counts = [0, 0]
    for pair in answers(paper, strict):
        for place, sample in enumerate(pair):
            counts[place] += sum(turn.new_tokens or 0 for turn in sample.turns)
    return 1 - counts[1] / counts[0] if all(counts) else None


def _divergences(board: Board, entry: Entry) -> list[dict[str, Any]] | None:
    """Each request's first divergence from plain decoding; None where nothing can be compared."""
    plain = board.plain_of(entry)
    sampled = entry.run.of_target.get("temperature", "0") not in ("0", "0.0")
    if plain is None or sampled or entry.run.protocol != "strict":
        return None
    native = board.native_of(entry)
    native = native if native is not None and native.skip == entry.skip else None
    found = []
    for one, two in answers(plain, entry):
        if one.turns and two.turns:
            turn, position = _parts(one, two)
            told = two.divergence or _told_of_the_same(native, two)
            found.append(
                {
                    **identity(entry),
                    "against": plain.run.adapter,
                    "row": two.row,
                    "turn": turn,
                    "position": position,
                    "gap": told.gap if told else None,
                    "rounding": told.rounding if told else None,
                }
            )
    return found or None


def _told_of_the_same(native: Entry | None, sample: Sample) -> Divergence | None:
    """What the native run of the same target recorded of an answer with the same ids."""
    same = native.rows.get(sample.key) if native is not None else None
    if not same or [turn.ids for turn in same[0].turns] != [turn.ids for turn in sample.turns]:
        return None
    return same[0].divergence


def _lossless(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    parted = [one for one in found if one["position"] is not None]
    positions = [one["position"] for one in parted]
    # Where one answer has ended there are no two logits, and rounding explains nothing.
    known = [one for one in parted if one["rounding"] is not None]
    beyond = [one for one in known if one["gap"] is None or one["gap"] > one["rounding"]]
    return {
        "against": found[0]["against"],
        "requests": len(found),
        "equal": len(found) - len(parted),
        "first_divergence": min(positions, default=None),
        "median_divergence": float(statistics.median(positions)) if positions else None,
        "gaps_known": len(known),
        "largest_gap": max((one["gap"] for one in known if one["gap"] is not None), default=None),
        "beyond_rounding": len(beyond) if known else None,
    }


def _verdicts(*records: Record | None) -> list[str]:
    return [record["verdict"] for record in records if record and record["verdict"]]


def _flags(board: Board, entry: Entry, texts: Record, lossless: Record | None) -> list[str]:
    flags = []
    if entry.failed:
        flags.append(f"failed: {entry.failed}")
    if not entry.rows:
        flags.append("no answered rows")
    bad = sorted({name for row in entry.rows.values() for one in row for name in one.not_finite})
    if bad:
        flags.append(f"not a number in some rows: {', '.join(bad)}")
    if texts["prompts_truncated"]:
        flags.append(f"prompts truncated: {texts['prompts_truncated']}")
    native = board.native_of(entry)
    if native is not None and (shared := len(answers(native, entry))) < len(entry.rows):
        flags.append(f"paired on {shared} of {len(entry.rows)} rows")
    if lossless:
        exact = dict(entry.run.arguments).get("dtype") == "float32"
        wrong = lossless["requests"] - lossless["equal"] if exact else lossless["beyond_rounding"]
        if wrong:
            decided = "" if exact else "; float32 decides"
            flags.append(f"beyond rounding other than {lossless['against']}: {wrong}{decided}")
        unknown = lossless["requests"] - lossless["equal"] - lossless["gaps_known"]
        if unknown and not exact:
            flags.append(f"other than {lossless['against']}, logit gaps not recorded: {unknown}")
    return flags


def _units(one: Sample, two: Sample) -> list[tuple[Sequence[Any], Sequence[Any]]]:
    """Both answers turn by turn: as ids where both have them, else as words."""
    by_ids = all(turn.ids for turn in (*one.turns, *two.turns))
    return [
        (a.ids, b.ids) if by_ids else (a.text.split(), b.text.split())
        for a, b in zip(one.turns, two.turns, strict=False)
    ]


def _parts(one: Sample, two: Sample) -> tuple[int, int] | tuple[None, None]:
    """Turn and place in it of the first difference; (None, None) for equal answers."""
    units = _units(one, two)
    for turn, (first, second) in enumerate(units):
        place = _common(first, second)
        if place < max(len(first), len(second)):
            return turn, place
    return (None, None) if len(one.turns) == len(two.turns) else (len(units), 0)


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Length of the common start."""
    pairs = zip(first, second, strict=False)
    return next(
        (place for place, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second))
    )


def _common_share(one: Sample, two: Sample) -> float:
    """Length of the common start of the first turn over that of the longer answer."""
    first, second = _units(one, two)[0]
    longer = max(len(first), len(second))
    return _common(first, second) / longer if longer else 1.0


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _minus(value: float | None) -> float | None:
    return None if value is None else -value
