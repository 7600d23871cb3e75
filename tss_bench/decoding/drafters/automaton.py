"""An online suffix automaton: the longest end of a text that occurred earlier, and where.

May import: the standard library only. The automaton is that of Blumer et al. (1985), used for
drafting as in SAM-Decoding (arXiv 2411.10666). n ids make at most 2n states and 3n transitions;
each id costs amortised O(1) whatever the size of the vocabulary.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

SEPARATOR = -1
"""Stands between two documents in `SuffixAutomaton.text`; no id."""

NONE = -1
"""No state, no id, no position."""

ROOT = 0


@dataclass(frozen=True)
class Match:
    """The last `length` ids of a text also end at position `end` of what was seen earlier.

    Length 0: nothing matches, and `end` is `NONE`.
    """

    length: int
    end: int


class SuffixAutomaton:
    """Of ids (0 or more) that arrive one by one, in one document or several.

    A state stands for the strings with the same end positions. Most states have a single
    transition, which lies in two arrays; only branching states own a dict: some 150 bytes an id of
    text (`tss-bench bench sam` measures it). `work` counts the transitions written, copied or
    redirected so far: the cost, less a constant an id.
    """

    def __init__(self) -> None:
        self.text = array("i")
        # Per state: length of its longest string, suffix link, end of its first occurrence.
        self.lengths = array("i", [0])
        self.links = array("i", [NONE])
        self.ends = array("i", [NONE])
        # Per state: its first transition; the others are in `branches`.
        self.ids = array("i", [NONE])
        self.targets = array("i", [NONE])
        self.branches: dict[int, dict[int, int]] = {}
        self.work = 0
        self._last = ROOT
        self._matched = ROOT

    def __len__(self) -> int:
        """Number of states."""
        return len(self.lengths)

    def extend(self, ids: Iterable[int]) -> None:
        """`append` one after the other."""
        for token in ids:
            self.append(token)

    def append(self, token: int) -> None:
        """The text goes on with `token`."""
        self.text.append(token)
        last = self._last
        known = self.step(last, token)
        if known != NONE:
            # Only in a second document: all of it so far occurred in an earlier one.
            self._last = self._matched = self._exact(last, token, known)
            return
        new = self._add(self.lengths[last] + 1, len(self.text) - 1)
        state = last
        while state != NONE and (known := self.step(state, token)) == NONE:
            self._put(state, token, new)
            state = self.links[state]
        # The longest end of the text that is no string of the new state has occurred before.
        self._matched = ROOT if state == NONE else self._exact(state, token, known)
        self.links[new] = self._matched
        self._last = new

    def separate(self) -> None:
        """A new document begins: no match runs over its beginning."""
        self.text.append(SEPARATOR)
        self._last = self._matched = ROOT

    def match(self) -> Match:
        """The longest end of the current document that occurred earlier, its first place.

        The two may overlap. The first place has the longest continuation.
        """
        return Match(self.lengths[self._matched], self.ends[self._matched])

    def following(self, end: int, count: int) -> list[int]:
        """At most `count` ids behind position `end`, none of another document."""
        ids = self.text[end + 1 : end + 1 + count].tolist()
        return ids[: ids.index(SEPARATOR)] if SEPARATOR in ids else ids

    def step(self, state: int, token: int) -> int:
        """Where `token` leads from `state`, or `NONE`."""
        if self.ids[state] == token:
            return self.targets[state]
        branches = self.branches.get(state)
        return NONE if branches is None else branches.get(token, NONE)

    def fork(self) -> SuffixAutomaton:
        """A copy that goes its own way."""
        forked = copy.copy(self)
        for name in ("text", "lengths", "links", "ends", "ids", "targets"):
            setattr(forked, name, getattr(self, name)[:])
        forked.branches = {state: dict(more) for state, more in self.branches.items()}
        return forked

    def _add(self, length: int, end: int) -> int:
        self.lengths.append(length)
        self.ends.append(end)
        for values in (self.links, self.ids, self.targets):
            values.append(NONE)
        return len(self.lengths) - 1

    def _put(self, state: int, token: int, target: int) -> None:
        self.work += 1
        if self.ids[state] in (NONE, token):
            self.ids[state], self.targets[state] = token, target
        else:
            self.branches.setdefault(state, {})[token] = target

    def _exact(self, state: int, token: int, target: int) -> int:
        """The state whose longest string is that of `state` with `token` behind it.

        It is split off `target` where that has longer strings.
        """
        length = self.lengths[state] + 1
        if self.lengths[target] == length:
            return target
        clone = self._add(length, self.ends[target])
        self.ids[clone], self.targets[clone] = self.ids[target], self.targets[target]
        if target in self.branches:
            self.branches[clone] = dict(self.branches[target])
            self.work += len(self.branches[clone])
        self.links[clone], self.links[target] = self.links[target], clone
        while state != NONE and self.step(state, token) == target:
            self._put(state, token, clone)
            state = self.links[state]
        return clone
