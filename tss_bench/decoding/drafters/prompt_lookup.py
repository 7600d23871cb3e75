"""Prompt lookup: drafts what followed the last words the last time they stood in the text.

May import: decoding.tree, drafters.base. Source: prompt-lookup decoding
(github.com/apoorvumang/prompt-lookup-decoding), whose argument names are kept. Needs no weights.
"""

from __future__ import annotations

import copy

from tss_bench.decoding.drafters.base import Prompt, Step
from tss_bench.decoding.tree import DraftTree


class PromptLookup:
    """Drafts a chain of at most `num_pred_tokens` ids from prompt and answer.

    The last `max_ngram_size` ids of the text are looked for at an earlier place, then one id less,
    down to a single one; the latest place of the longest match wins, and the ids behind it are
    the draft. Without a match, nothing is drafted. An index of all n-grams makes an id cost
    `max_ngram_size` entries, however long the text is.

    Raises ValueError for a size below 1.
    """

    replayable = True
    feature_layers: tuple[int, ...] = ()

    def __init__(self, max_ngram_size: int = 3, num_pred_tokens: int = 10) -> None:
        sizes = {"max_ngram_size": max_ngram_size, "num_pred_tokens": num_pred_tokens}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self._sizes = range(max_ngram_size, 0, -1)
        self._length = num_pred_tokens
        self.max_nodes = 1 + num_pred_tokens
        self.reset()

    def reset(self) -> None:
        self._text: list[int] = []
        # Where the text goes on behind the latest place of each n-gram; the text's end itself,
        # which nothing follows yet, is not in it.
        self._behind: dict[tuple[int, ...], int] = {}

    def begin(self, prompt: Prompt) -> None:
        self.reset()
        for token in (*prompt.ids, prompt.first):
            self._append(token)

    def propose(self, root: int, max_depth: int) -> DraftTree:
        start = self._match()
        if start is None:
            return DraftTree.root(root)
        count = max(0, min(self._length, max_depth))
        return DraftTree.chain(root, self._text[start : start + count])

    def observe(self, step: Step) -> None:
        for token in step.accepted:
            self._append(token)

    def fork(self) -> PromptLookup:
        forked = copy.copy(self)
        forked._text, forked._behind = [*self._text], dict(self._behind)
        return forked

    def _append(self, token: int) -> None:
        """Enter the n-grams that end the text: from now on something follows them."""
        for gram in self._last_grams():
            self._behind[gram] = len(self._text)
        self._text.append(token)

    def _match(self) -> int | None:
        places = (self._behind.get(gram) for gram in self._last_grams())
        return next((place for place in places if place is not None), None)

    def _last_grams(self) -> list[tuple[int, ...]]:
        """The n-grams that the text ends with, longest first."""
        return [tuple(self._text[-n:]) for n in self._sizes if n <= len(self._text)]
