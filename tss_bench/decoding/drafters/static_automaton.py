"""A suffix automaton of a corpus as flat arrays, in a file that tells which tokenizer it is for.

May import: numpy, safetensors, tss_bench.files and drafters.automaton. The transitions of a state
lie side by side, sorted by id, so following one is a binary search. 16 bytes a state, 8 a
transition and 4 an id: some 45 bytes an id of natural text, at most 60.
"""

from __future__ import annotations

import contextlib
import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tss_bench.decoding.drafters.automaton import NONE, ROOT, SEPARATOR, Match, SuffixAutomaton
from tss_bench.files import replace

FORMAT = "tss_bench static suffix automaton 1"
COMMAND = "tss-bench data build-sam"

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class _Arrays:
    """int32 each; n ids and separators, s states, t transitions.

    text [n]: the documents, `SEPARATOR` between them. links, lengths [s]: as in
    `SuffixAutomaton`. ends [s]: where a string of the state ends first with an id behind it, or
    `NONE`. starts [s + 1]: the transitions of state i are ids and targets [t] from starts[i] to
    starts[i + 1].
    """

    text: Ints
    links: Ints
    lengths: Ints
    ends: Ints
    starts: Ints
    ids: Ints
    targets: Ints

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))


class StaticAutomaton:
    """Read-only; any number of `Cursor`s walk it. `source` says what it was made from.

    `fingerprint` is the SHA-256 of its text, which decides all that it ever proposes.
    """

    def __init__(self, arrays: _Arrays, source: dict[str, str]) -> None:
        _check(arrays)
        self.source = source
        self.nbytes = arrays.nbytes
        self.states = len(arrays.links)
        self.transitions = len(arrays.ids)
        self.tokens = int(np.count_nonzero(arrays.text != SEPARATOR))
        self.largest_id = int(arrays.text.max())
        self.fingerprint = hashlib.sha256(arrays.text.tobytes()).hexdigest()
        self._arrays = arrays
        # Plain indexing of a memoryview is four times as fast as that of an array.
        self._text = arrays.text.data
        self.links, self.lengths = arrays.links.data, arrays.lengths.data
        self.ends, self._starts = arrays.ends.data, arrays.starts.data
        self._ids, self._targets = arrays.ids.data, arrays.targets.data

    @classmethod
    def build(cls, documents: Iterable[Iterable[int]], source: dict[str, str]) -> StaticAutomaton:
        """Of the ids of `documents`; no match and no draft runs over the end of one.

        Takes some 4 microseconds and 200 bytes an id. Raises ValueError where there is no id.
        """
        growing = SuffixAutomaton()
        for ids in documents:
            if growing.text and growing.text[-1] != SEPARATOR:
                growing.separate()
            growing.extend(ids)
        if not any(token != SEPARATOR for token in growing.text):
            raise ValueError("the corpus holds no text; name a file with some")
        return cls(_flatten(growing), source)

    def step(self, state: int, token: int) -> int:
        """Where `token` leads from `state`, or `NONE`."""
        end = self._starts[state + 1]
        place = bisect_left(self._ids, token, self._starts[state], end)
        return self._targets[place] if place < end and self._ids[place] == token else NONE

    def is_leaf(self, state: int) -> bool:
        """Whether nothing ever follows the strings of `state`."""
        return self.ends[state] == NONE

    def following(self, end: int, count: int) -> list[int]:
        """At most `count` ids behind position `end`, none of another document."""
        ids = self._text[end + 1 : end + 1 + count].tolist()
        return ids[: ids.index(SEPARATOR)] if SEPARATOR in ids else ids

    def save(self, path: Path) -> None:
        """Write the file whole or not at all. Raises OSError where it cannot be written."""
        arrays = {field.name: getattr(self._arrays, field.name) for field in fields(_Arrays)}
        record = {"format": FORMAT, **self.source}
        try:
            replace(path, lambda part: save_file(arrays, part, record))
        except SafetensorError as error:
            raise OSError(f"cannot write {path}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> StaticAutomaton:
        """Read what `save` wrote. Raises ValueError for a file that is torn or something else."""
        if not path.is_file():
            raise ValueError(
                f"there is no file {path}; make one with `{COMMAND} CORPUS --out FILE`"
            )
        with _reading(path), safe_open(path, framework="np") as file:
            source = dict(file.metadata() or {})
            if source.pop("format", None) != FORMAT:
                raise ValueError(f"its format is not {FORMAT!r}")
            names = [field.name for field in fields(_Arrays)]
            if sorted(file.keys()) != sorted(names):
                raise ValueError(f"it holds {', '.join(file.keys())}, not {', '.join(names)}")
            return cls(_Arrays(**{name: file.get_tensor(name) for name in names}), source)


class Cursor:
    """Where a text stands in a `StaticAutomaton`: the longest end of it that something follows.

    `hops` counts the suffix links followed: never more than ids.
    """

    def __init__(self, automaton: StaticAutomaton) -> None:
        self._automaton = automaton
        self._state, self._length = ROOT, 0
        self.hops = 0

    def extend(self, ids: Iterable[int]) -> None:
        """The text goes on with `ids`; each costs amortised O(1) links."""
        for token in ids:
            while (target := self._automaton.step(self._state, token)) == NONE and self._state:
                self._hop()
            if target != NONE:
                self._state, self._length = target, self._length + 1
            # What nothing follows is of no use, and no id leads on from there.
            while self._state and self._automaton.is_leaf(self._state):
                self._hop()

    def match(self) -> Match:
        """The longest end of the text that occurs in the corpus with an id behind it."""
        if not self._length:
            return Match(0, NONE)
        return Match(self._length, self._automaton.ends[self._state])

    def following(self, end: int, count: int) -> list[int]:
        """See `StaticAutomaton.following`."""
        return self._automaton.following(end, count)

    def _hop(self) -> None:
        self.hops += 1
        self._state = self._automaton.links[self._state]
        self._length = self._automaton.lengths[self._state]


def is_automaton(path: Path) -> bool:
    """Whether a file says of itself that `StaticAutomaton.save` wrote it."""
    try:
        with safe_open(path, framework="np") as file:
            return (file.metadata() or {}).get("format") == FORMAT
    except (SafetensorError, OSError):
        return False


def _flatten(growing: SuffixAutomaton) -> _Arrays:
    links, lengths, ids, targets, text = (
        np.array(values, dtype=np.int32)
        for values in (
            growing.links,
            growing.lengths,
            growing.ids,
            growing.targets,
            growing.text,
        )
    )
    more = np.fromiter(_branches(growing), dtype=np.int32).reshape(-1, 3)
    alone = np.flatnonzero(ids != NONE).astype(np.int32)
    states = np.concatenate((alone, more[:, 0]))
    all_ids = np.concatenate((ids[alone], more[:, 1]))
    all_targets = np.concatenate((targets[alone], more[:, 2]))
    order = np.lexsort((all_ids, states))
    states, all_ids, all_targets = states[order], all_ids[order], all_targets[order]
    starts = np.searchsorted(states, np.arange(len(links) + 1)).astype(np.int32)
    # A string is followed by an id where the string with that id behind it ends.
    inner = np.flatnonzero(starts[1:] > starts[:-1])
    ends = np.full(len(links), NONE, dtype=np.int32)
    first = np.array(growing.ends, dtype=np.int32)[all_targets] - 1
    ends[inner] = np.minimum.reduceat(first, starts[inner])
    return _Arrays(text, links, lengths, ends, starts, all_ids, all_targets)


def _branches(growing: SuffixAutomaton) -> Iterator[int]:
    """State, id and target of all transitions but the first of each state, one after the other."""
    for state, more in growing.branches.items():
        for token, target in more.items():
            yield from (state, token, target)


def _check(arrays: _Arrays) -> None:
    """Raises ValueError where following the arrays could leave them."""
    for field in fields(arrays):
        values: Any = getattr(arrays, field.name)
        if values.dtype != np.int32 or values.ndim != 1 or not len(values):
            raise ValueError(f"{field.name} is no list of int32")
    states, transitions, tokens = len(arrays.links), len(arrays.ids), len(arrays.text)
    sizes = {"lengths": states, "ends": states, "starts": states + 1, "targets": transitions}
    for name, size in sizes.items():
        if len(getattr(arrays, name)) != size:
            raise ValueError(f"{name} has {len(getattr(arrays, name))} entries, not {size}")
    sound = (
        _within(arrays.links[1:], 0, states)
        and bool((arrays.lengths[arrays.links[1:]] < arrays.lengths[1:]).all())
        and _within(arrays.targets, 1, states)
        and _within(arrays.ends, NONE, tokens)
        and _within(arrays.text, SEPARATOR, 2**31 - 1)
        and bool((np.diff(arrays.starts) >= 0).all())
        and (arrays.starts[0], arrays.starts[-1]) == (0, transitions)
    )
    if not sound:
        raise ValueError("its arrays point outside themselves")


def _within(values: Ints, low: int, end: int) -> bool:
    return not len(values) or bool(low <= values.min() and values.max() < end)


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What is wrong with a file becomes one ValueError that names it."""
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(
            f"{path} is torn or no static suffix automaton ({error}); build it again with "
            f"`{COMMAND}`"
        ) from error
