"""The steps of one answer: which ids were accepted drafts, which the target's own, and their text.

May import: transformers (tokenizer type), tss_bench.types (layer L3 of the design).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from transformers import PreTrainedTokenizerBase

from tss_bench.types import GenerationStats

Source = Literal["prefill", "draft", "bonus"]

_TORN = "\ufffd"


@dataclass(frozen=True)
class Piece:
    """One id of an answer and the text it adds.

    `source` is `draft` for an accepted draft, `bonus` for the id that the target adds to each
    step, `prefill` for the answer's first id. A letter whose bytes lie in several ids comes with
    the last of them; an end of text has no text.
    """

    id: int
    text: str
    source: Source


@dataclass(frozen=True)
class AnswerStep:
    """What one verification step adds to an answer; the first step is the prefill's one id.

    As a string it is its text. A step that the end of the answer cuts may lack its bonus.
    """

    pieces: tuple[Piece, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids that the step emits."""
        return tuple(piece.id for piece in self.pieces)

    @property
    def text(self) -> str:
        """The text that the step adds."""
        return "".join(piece.text for piece in self.pieces)

    @property
    def drafts(self) -> tuple[int, ...]:
        """The accepted drafts among the ids."""
        return tuple(piece.id for piece in self.pieces if piece.source == "draft")

    @property
    def bonus(self) -> int | None:
        """The target's own id; None in a last step that was cut before it, and in the prefill."""
        return next((piece.id for piece in self.pieces if piece.source == "bonus"), None)

    @property
    def verified(self) -> bool:
        """Whether this is a verification step; False for the prefill."""
        return all(piece.source != "prefill" for piece in self.pieces)

    def __str__(self) -> str:
        return self.text


class StepReader:
    """Makes the steps of one answer from its ids while it grows.

    The texts of the steps join to the answer's text: what may yet change is held back, an
    unfinished letter and the beginning of a stop string. That needs a tokenizer whose text of
    some ids begins with its text of fewer; where a text changes all the same, nothing more is
    shown before the end.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop_strings: Sequence[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._stop_strings = tuple(stop_strings)
        self._ids: list[int] = []
        self._shown = ""
        self._steps = 0
        self._drafts = 0

    def step(self, ids: Sequence[int]) -> AnswerStep:
        """The step that made the answer grow to `ids`, which is not its last one."""
        new = ids[len(self._ids) :]
        return self._step(new, [self._add(token) for token in new], drafts=len(new) - 1)

    def last(self, ids: Sequence[int], text: str, stats: GenerationStats) -> AnswerStep:
        """The last step of an answer that came to these ids and this text."""
        new = ids[len(self._ids) :]
        shown = new[:-1] if stats.stop == "eos" else new
        texts = [self._add(token) for token in shown]
        rest = text[len(self._shown) :]
        if len(shown) < len(new):
            texts.append("")
        # What was held back belongs to the last id that has a text.
        texts[max(0, len(shown) - 1)] += rest
        return self._step(new, texts, drafts=stats.accepted - self._drafts)

    def _step(self, ids: Sequence[int], texts: Sequence[str], drafts: int) -> AnswerStep:
        sources: list[Source] = ["draft"] * drafts
        sources += ["bonus" if self._steps else "prefill"] * (len(ids) - drafts)
        self._steps += 1
        self._drafts += drafts
        return AnswerStep(tuple(map(Piece, ids, texts, sources)))

    def _add(self, token: int) -> str:
        """What this id adds to the text that will not change any more."""
        self._ids.append(token)
        text = str(self._tokenizer.decode(self._ids, skip_special_tokens=True))
        if not text.startswith(self._shown):
            return ""
        piece = text[len(self._shown) : self._firm(text)]
        self._shown += piece
        return piece

    def _firm(self, text: str) -> int:
        """How much of `text` stands, whatever ids follow."""
        whole = text.rstrip(_TORN)
        ends = [len(whole)]
        for stop in self._stop_strings:
            if stop in whole:
                ends.append(whole.index(stop))
            sizes = range(1, min(len(stop), len(whole) + 1))
            ends += [len(whole) - size for size in sizes if whole.endswith(stop[:size])]
        return min(ends)
