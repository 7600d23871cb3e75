"""SAM-Decoding (arXiv 2411.10666): what followed the longest match of the text's own end.

May import: decoding.tree, drafters.{automaton, base, static_automaton}. Matches
are looked for in the request itself (prompt and answer) and in a corpus; where both are short,
another drafter proposes a tree.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from tss_bench.decoding.drafters.automaton import Match, SuffixAutomaton
from tss_bench.decoding.drafters.base import Drafter, Prompt, Step
from tss_bench.decoding.drafters.static_automaton import Cursor, StaticAutomaton
from tss_bench.decoding.tree import DraftTree


@dataclass(frozen=True)
class MatchRules:
    """When a match drafts: its length, less `len_bias` in the corpus, reaches `len_threshold`.

    `n_predicts` ids are drafted at most. Raises ValueError for values below 1 (`len_bias`: 0).
    """

    n_predicts: int = 40
    len_threshold: int = 5
    len_bias: int = 5

    def __post_init__(self) -> None:
        for name, least in (("n_predicts", 1), ("len_threshold", 1), ("len_bias", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


class SamDecoding:
    """Drafts from matches; takes over `fallback`, which learns from every step.

    Keeps nothing from one request to the next but what `fallback` keeps. `corpus` is shared, not
    changed.
    """

    def __init__(
        self,
        fallback: Drafter,
        rules: MatchRules | None = None,
        corpus: StaticAutomaton | None = None,
    ) -> None:
        self._fallback = fallback
        self._rules = rules or MatchRules()
        self._corpus = corpus
        self.max_nodes = max(self._rules.n_predicts + 1, fallback.max_nodes)
        # A match depends on the accepted ids alone.
        self.replayable = fallback.replayable
        self.feature_layers = fallback.feature_layers
        self._forget()

    def begin(self, prompt: Prompt) -> None:
        self._forget()
        self._read([*prompt.ids, prompt.first])
        self._fallback.begin(prompt)

    def propose(self, root: int, max_depth: int) -> DraftTree:
        """The continuation of the longest match as a chain, else the tree of the fallback.

        No padding: a chain is shorter than `n_predicts` where the text or the document ends.
        """
        drafts = self._continuation(min(max_depth, self._rules.n_predicts))
        if drafts is None:
            return self._fallback.propose(root, max_depth)
        return DraftTree.chain(root, drafts)

    def observe(self, step: Step) -> None:
        self._read(list(step.accepted))
        self._fallback.observe(step)

    def fork(self) -> SamDecoding:
        forked = copy.copy(self)
        forked._fallback = self._fallback.fork()
        forked._own = self._own.fork()
        forked._cursor = copy.copy(self._cursor)
        return forked

    def reset(self) -> None:
        self._forget()
        self._fallback.reset()

    def _forget(self) -> None:
        self._own = SuffixAutomaton()
        self._cursor = None if self._corpus is None else Cursor(self._corpus)

    def _read(self, ids: list[int]) -> None:
        self._own.extend(ids)
        if self._cursor is not None:
            self._cursor.extend(ids)

    def _continuation(self, count: int) -> list[int] | None:
        """At most `count` ids behind the match that drafts, None where there is none."""
        own = self._own.match()
        corpus = Match(0, -1) if self._cursor is None else self._cursor.match()
        biased = corpus.length - self._rules.len_bias
        if max(own.length, biased) < self._rules.len_threshold:
            return None
        if own.length >= biased or self._cursor is None:
            return self._own.following(own.end, max(count, 0))
        return self._cursor.following(corpus.end, max(count, 0))
