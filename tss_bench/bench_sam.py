"""`tss-bench bench sam`: microseconds a token of the suffix automata, by length of the text.

May import: tabulate, tqdm, tss_bench (layer L3 of the design). No model plays a part. The last line
printed is JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from tabulate import tabulate
from tqdm import tqdm

from tss_bench import __version__
from tss_bench.decoding.drafters.automaton import SuffixAutomaton
from tss_bench.decoding.drafters.static_automaton import Cursor, StaticAutomaton
from tss_bench.machine import processor

SIZES = (1_000, 4_000, 16_000, 64_000)
VOCABULARY = 49_152

_PHRASE = 12
_STOCK = 1_000
_REPEATS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench bench sam`."""
    parser.epilog = (
        "Texts: `words` draws ids by Zipf's law, `phrases` repeats up to 12 of them at a time, "
        "`periodic` is one phrase over and over. Static: another text is followed through the "
        "automaton of one as long. Lengths take turns; figures are medians over the rounds."
    )
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--sizes", default=sizes, help=f"lengths of text (default {sizes})")
    parser.add_argument("--rounds", type=int, default=7, help="of each length (default 7)")


def run(args: argparse.Namespace) -> None:
    """Measure and print. Raises ValueError for bad input."""
    if args.rounds < 1:
        raise ValueError(f"--rounds must be at least 1, got {args.rounds}")
    words = [word.strip() for word in args.sizes.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise ValueError(f"--sizes must be whole numbers of at least 1, got {args.sizes!r}")
    sizes = [int(word) for word in words]
    machine = f"tss_bench {__version__}, {processor()}, Python {platform.python_version()}"
    print(machine, flush=True)
    rows = [row for name in TEXTS for row in measure(name, sizes, args.rounds)]
    print(table(rows))
    setting = {"bench": "sam", "machine": machine, "rounds": args.rounds}
    print(json.dumps({**setting, "results": rows}))


def measure(name: str, sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """One row a size for the text called `name`, see `table`."""
    texts = [TEXTS[name](size, random.Random(f"text {size}")) for size in sizes]
    others = [TEXTS[name](size, random.Random(f"other {size}")) for size in sizes]
    corpora = [StaticAutomaton.build([text], {}) for text in texts]
    dynamic: list[list[float]] = [[] for _ in sizes]
    static: list[list[float]] = [[] for _ in sizes]
    for _ in tqdm(range(rounds), desc=name, unit="round", leave=False):
        for place, text in enumerate(texts):
            # Short texts are read again and again, lest their figures be noisier.
            times = min(_REPEATS, max(sizes) // len(text))
            grow = [SuffixAutomaton().extend for _ in range(times)]
            walk = [Cursor(corpora[place]).extend for _ in range(times)]
            dynamic[place].append(_seconds(grow, text))
            static[place].append(_seconds(walk, others[place]))
    rows = []
    for place, (text, corpus) in enumerate(zip(texts, corpora, strict=True)):
        grown, size = _memory(text)
        rows.append(
            {
                "text": name,
                "ids": len(text),
                "dynamic_us": statistics.median(dynamic[place]) / len(text) * 1e6,
                "static_us": statistics.median(static[place]) / len(text) * 1e6,
                "states": len(grown) / len(text),
                "work": grown.work / len(text),
                "dynamic_bytes": size / len(text),
                "static_bytes": corpus.nbytes / len(text),
            }
        )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """All per id of text, in Markdown; `work`: transitions written, copied or redirected."""
    shown = [
        {
            "text": row["text"],
            "ids": row["ids"],
            "dynamic, µs": f"{row['dynamic_us']:.2f}",
            "static, µs": f"{row['static_us']:.2f}",
            "states": f"{row['states']:.2f}",
            "work": f"{row['work']:.2f}",
            "dynamic, bytes": f"{row['dynamic_bytes']:.0f}",
            "static, bytes": f"{row['static_bytes']:.0f}",
        }
        for row in rows
    ]
    return tabulate(shown, headers="keys", tablefmt="github", disable_numparse=True)


def _seconds(readers: Sequence[Callable[[list[int]], None]], text: list[int]) -> float:
    """Mean of reading `text`; the collector, whose pauses depend on what else is alive, waits."""
    gc.disable()
    try:
        start = time.perf_counter()
        for read in readers:
            read(text)
        return (time.perf_counter() - start) / len(readers)
    finally:
        gc.enable()


def _memory(text: list[int]) -> tuple[SuffixAutomaton, int]:
    """The automaton of `text` and the bytes it takes."""
    tracemalloc.start()
    try:
        grown = SuffixAutomaton()
        grown.extend(text)
        return grown, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def _words(size: int, draw: random.Random) -> list[int]:
    return [min(int(draw.paretovariate(0.8)), VOCABULARY) - 1 for _ in range(size)]


def _phrases(size: int, draw: random.Random) -> list[int]:
    # The phrases are those of every text, so that texts share them.
    stock = _words(_PHRASE * _STOCK, random.Random("phrases"))
    text: list[int] = []
    while len(text) < size:
        start = draw.randrange(_STOCK) * _PHRASE
        text += stock[start : start + draw.randint(1, _PHRASE)]
    return text[:size]


def _periodic(size: int, draw: random.Random) -> list[int]:
    phrase = _words(_PHRASE, random.Random("phrases"))
    return [phrase[place % _PHRASE] for place in range(size)]


TEXTS: dict[str, Callable[[int, random.Random], list[int]]] = {
    "words": _words,
    "phrases": _phrases,
    "periodic": _periodic,
}
