"""From a request to prompt ids: chat template once, begin-of-text once, conversations, overflow.

May import: jinja2, transformers, tss_bench.domains, model_adapters.arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from model_adapters.arguments import AdapterError
from tss_bench.domains import UNNAMED_TASK

_PROBE = "tss-bench probe"
_SHOWN = 40


@dataclass(frozen=True)
class Request:
    """The parts of an lm-eval request that its prompt depends on.

    `style` is `chat` or `completion` for a row of our own tasks and None for foreign ones,
    whose prompts are never changed. `name` is that of the row, empty for a request without one.
    """

    context: str
    task: str
    name: str
    turns: tuple[str, ...]
    style: str | None = None
    domain: str | None = None

    @classmethod
    def of(cls, context: str, doc: object, task: str | None, doc_id: int | None) -> Request:
        task = task or UNNAMED_TASK
        row: Mapping[str, Any] = doc if isinstance(doc, Mapping) and "prompt_style" in doc else {}
        turns = tuple(row.get("turns") or (context,))
        name = row.get("id", doc_id)
        name = "" if name is None else str(name)
        return cls(context, task, name, turns, row.get("prompt_style"), row.get("domain"))

    @property
    def where(self) -> str:
        return f"document {self.name} of {self.task}" if self.name else "this request"

    def check_texts(self) -> None:
        """Raises AdapterError naming the document: nothing to answer, or what is no UTF-8."""
        for text in (self.context, *self.turns):
            check_utf8(text, f"the prompt of {self.where}")
        if not all(text.strip() for text in (self.context, *self.turns)):
            raise AdapterError(f"{self.where} has an empty prompt; mend the row or leave it out")


def check_utf8(text: str, what: str) -> None:
    """Raises AdapterError for half a surrogate pair: bytes that were no UTF-8 when they were read.

    `what` names the text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AdapterError(
            f"{what} is no UTF-8: its character {error.start + 1} is {text[error.start]!r}, half a "
            f"surrogate pair; mend its encoding"
        ) from None


class Prompter:
    """Renders and encodes prompts for one tokenizer; `chat` turns the chat template on.

    Raises AdapterError where `chat` is asked for and the tokenizer has no template.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: bool) -> None:
        if chat and not tokenizer.chat_template:
            raise AdapterError(
                "chat_template=true, but the tokenizer of this model has no chat template; "
                "leave chat_template out"
            )
        self._tokenizer = tokenizer
        self.chat = chat

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerBase, chat: bool | None, is_chat_model: bool
    ) -> Prompter:
        """With `chat` None the template is used where model and tokenizer are made for it."""
        if chat is None:
            chat = is_chat_model and bool(tokenizer.chat_template)
        return cls(tokenizer, chat)

    def render(self, messages: Sequence[Mapping[str, str]], open_turn: bool = True) -> str:
        """The text of a conversation; `open_turn` begins the assistant's next turn.

        Raises AdapterError for messages that the template refuses, such as two turns of a user.
        """
        try:
            text = self._tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=open_turn,
                continue_final_message=not open_turn,
            )
        except (TemplateError, ValueError) as error:
            raise AdapterError(f"the chat template refuses the messages: {error}") from error
        return str(text)

    def first(self, request: Request) -> str:
        """The prompt of turn 1."""
        if request.style != "chat" or not self.chat or self.is_templated(request.context):
            return request.context
        return self.render([{"role": "user", "content": request.context}])

    def following(self, request: Request, first: str, answers: Sequence[str]) -> str:
        """The prompt of the turn after `answers`; `first` is the prompt of turn 1."""
        questions = request.turns[1 : len(answers) + 1]
        pairs = list(zip(answers, questions, strict=True))
        if not self.is_templated(first):
            return first + "".join(f"{answer}\n\n{question}" for answer, question in pairs)
        opening = [{"role": "user", "content": request.turns[0]}]
        messages = list(opening)
        for answer, question in pairs:
            messages.append({"role": "assistant", "content": answer})
            messages.append({"role": "user", "content": question})
        conversation, start = self.render(messages), self.render(opening)
        # lm-eval may have put a system instruction in front of turn 1: only what follows is ours.
        if conversation.startswith(start):
            return first + conversation[len(start) :]
        return conversation

    def is_templated(self, text: str) -> bool:
        """Whether the chat template stands around this text, put there by us or by lm-eval."""
        return bool(self._marker) and self._marker in text

    @cached_property
    def _marker(self) -> str:
        """What the template writes around a user's turn: its end, or else its beginning."""
        if not self._tokenizer.chat_template:
            return ""
        before, _, after = self.render([{"role": "user", "content": _PROBE}]).partition(_PROBE)
        return after.strip() or before.strip()

    def encode(self, text: str, add_special_tokens: bool | None = None) -> list[int]:
        """Ids of a text; begin-of-text is added unless the text already starts with it.

        Raises AdapterError for a text that is no UTF-8.
        """
        check_utf8(text, f"the text {_begin(text)}")
        if add_special_tokens is None:
            bos = self._tokenizer.bos_token
            add_special_tokens = not (isinstance(bos, str) and bos and text.startswith(bos))
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))


def _begin(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def fit_prompt(
    ids: Sequence[int], max_new_tokens: int, context: int, on_overflow: str, where: str
) -> tuple[list[int], bool]:
    """A prompt that leaves room for an answer in the context, and whether it had to be cut.

    A prompt that leaves no room for one new token is an overflow: `flag` keeps its end and
    leaves room for the answer, but never more than half the context; `error` raises
    AdapterError naming the document.
    """
    kept = list(ids)
    if len(kept) < context:
        return kept, False
    if on_overflow == "error":
        raise AdapterError(
            f"the prompt of {where} has {len(kept)} tokens, which leaves no room in the "
            f"context of {context}; shorten it, or cut it with on_overflow=flag"
        )
    room = max(1, min(max_new_tokens, context // 2))
    return kept[len(kept) - (context - room) :], True
