"""Text from Python: `tss_bench.load(...)` gives a decoder, `tss_bench.generate(...)` an answer.

The target, drafter and skip sets are those of the lm-eval models (model_adapters); a prompt goes
through the same checks, templates and decoding loop as a request of a task.

May import: model_adapters, tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack, cast

from model_adapters.adapters import find_adapter
from model_adapters.answering import Job
from model_adapters.arguments import AdapterError, no_skipping
from model_adapters.base import SpeculativeLM
from model_adapters.prompts import Request
from tss_bench.answer_steps import AnswerStep, StepReader
from tss_bench.decoding.generate import finish
from tss_bench.domains import DOMAINS, EVERY_OTHER_TASK, UNNAMED_TASK, SkipChoice, domain_of
from tss_bench.scoring.pooled import ratio, request_pairs
from tss_bench.types import GeneratedText, GenerationStats, Protocol, Scope, SkipSet

DEFAULT_ADAPTER = "tss_eagle"
_SEEDS = 2**63

Messages = Sequence[Mapping[str, str]]


class AnswerOptions(TypedDict, total=False):
    """How one answer is made; what is left out or None is the model's setting.

    `max_new_tokens`: limit in ids (256). `temperature`: 0 is greedy (0). `seed`: of the sampling
    (0); the same seed gives the same answer. `stop`: one text or several that end the answer.
    `task`: a domain (`summarization`) or task name whose skip set is used; without it the rule
    of the map for requests without a task. `skip_layers`: the blocks to skip instead, 0-based:
    `[3, 25]`, `"3+25"` or `"dense"`; for `tss_*` models. `chat`: False gives a chat model the
    prompt as it is, without its chat template.
    """

    max_new_tokens: int | None
    temperature: float | None
    seed: int | None
    task: str | None
    skip_layers: Any
    stop: str | Sequence[str] | None
    chat: bool | None


_OPTION_NAMES = frozenset(AnswerOptions.__annotations__)


@dataclass(frozen=True)
class Answer:
    """A finished answer; as a string it is its text.

    `ids` are the emitted ids, end of text included. `steps` are the prefill's id and then what
    each verification step added, accepted drafts and bonus; their ids and texts join to `ids` and
    `text`. `stats` are the counts and times (README, "Columns"; loading and warm-up are not in
    them). `skip` is the skip set, `domain` the domain it was chosen for, if any, `why` the reason.
    """

    text: str
    ids: tuple[int, ...]
    steps: tuple[AnswerStep, ...]
    stats: GenerationStats
    model: str
    skip: SkipSet
    scope: Scope
    protocol: Protocol
    domain: str | None
    why: str

    @property
    def figures(self) -> dict[str, float]:
        """`accept_len`, `tokens_per_second` and the other columns; those without a value lack."""
        found = {name: ratio([pair]) for name, pair in request_pairs([self.stats]).items()}
        return {name: value for name, value in found.items() if value is not None}

    def __str__(self) -> str:
        return self.text


class Decoder:
    """One model with its drafter, ready to answer; made by `load` or `prepare`.

    Answers are made one at a time, and each is a run of its own: no drafter keeps anything from
    one prompt to the next. `adapter` is the lm-eval model behind it.
    """

    def __init__(self, adapter: SpeculativeLM) -> None:
        self.adapter = adapter
        self._loaded = False
        self._turn = 0

    def load(self, share: Decoder | None = None) -> Decoder:
        """Load target and drafter, unless they are; the target is that of `share`, if given.

        Raises AdapterError for files that cannot be loaded and where `share` has another target.
        """
        if not self._loaded:
            self.adapter.load(share.adapter.loaded if share else None)
            self._loaded = True
        return self

    def generate(self, prompt: str | Messages, **options: Unpack[AnswerOptions]) -> Answer:
        """The answer to one prompt; see `AnswerOptions`.

        A text is one turn of a user, through the chat template where the model has one; a list of
        messages (`{"role": "user", "content": "…"}`) is a conversation, and the answer goes on
        where its last message is the assistant's. Raises AdapterError for an empty prompt, one
        that leaves no room in the context and a bad option, before anything is loaded.
        """
        return finish(self._steps(self._request(prompt, options), options))

    def stream(self, prompt: str | Messages, **options: Unpack[AnswerOptions]) -> Stream:
        """As `generate`, step by step: an iterator of AnswerStep, as they are verified.

        `print(step, end="", flush=True)` for each of them prints the answer as it grows. The time
        between two steps is not counted. Bad input is refused here, not at the first step.
        """
        return Stream(self._steps(self._request(prompt, options), options))

    def _request(self, prompt: str | Messages, options: AnswerOptions) -> Request:
        """The request of a prompt, checked with all its options."""
        unknown = sorted(set(options) - _OPTION_NAMES)
        if unknown:
            raise TypeError(
                f"no option {unknown[0]!r}; there is {', '.join(sorted(_OPTION_NAMES))}"
            )
        style, text = self._text(prompt, options.get("chat") is not False)
        task = _text_or_none("task", options.get("task"))
        row = {"prompt_style": style, "id": ""}
        request = Request.of(text, row, task, None)
        _seed(options, 0)
        self._choice(task, options.get("skip_layers"))
        self.adapter.check_request(request, _generation_arguments(options))
        return request

    def _text(self, prompt: str | Messages, chat: bool) -> tuple[str | None, str]:
        """Style and text of a prompt, a conversation rendered."""
        if isinstance(prompt, str):
            if not prompt.strip():
                raise AdapterError("the prompt is empty; give it some text")
            return ("chat" if chat and self.adapter.prompter.chat else None), prompt
        messages = _messages(prompt)
        if not (chat and self.adapter.prompter.chat):
            raise AdapterError(
                f"a list of messages needs a chat template, which is not in use for "
                f"{self.adapter.info.id}; give the prompt as one text"
            )
        open_turn = messages[-1]["role"] != "assistant"
        return None, self.adapter.prompter.render(messages, open_turn)

    def _choice(self, task: str | None, skip_layers: Any) -> SkipChoice | None:
        """The skip set that the options name; None leaves it to the controller."""
        adapter = self.adapter
        if skip_layers is not None:
            if not adapter.sparse:
                raise AdapterError(no_skipping(adapter.name, "skip_layers"))
            try:
                skip = SkipSet.parse(skip_layers, adapter.info.num_layers)
            except (ValueError, TypeError) as error:
                raise AdapterError(f"skip_layers={skip_layers}: {error}") from None
            name = task or UNNAMED_TASK
            return SkipChoice(name, domain_of(name), skip, f"skip_layers={skip}")
        named = adapter.controller.sets.keys() - {EVERY_OTHER_TASK}
        if task is not None and domain_of(task) is None and task not in named:
            raise AdapterError(
                f"task {task!r} is no domain and has no skip set; leave it out or name one of "
                f"{', '.join(DOMAINS)}"
            )
        return None

    def _steps(
        self, request: Request, options: AnswerOptions
    ) -> Generator[AnswerStep, None, Answer]:
        self.load()
        self._turn += 1
        turn = self._turn
        job = self._job(request, options)
        self.adapter.begin_run([job])
        reader = StepReader(self.adapter.tokenizer, job.options.stop_strings)
        growing = self.adapter.answer_steps(job)
        steps: list[AnswerStep] = []
        while True:
            if turn != self._turn:
                raise RuntimeError(
                    "another answer was begun on this decoder, so this one cannot go on; finish "
                    "a stream before the next prompt, or load a second decoder"
                )
            try:
                answer = next(growing)
            except StopIteration as end:
                text = end.value
                break
            steps.append(reader.step(answer.ids))
            yield steps[-1]
        (ids,), (stats,) = text.ids, text.stats
        if ids:
            steps.append(reader.last(ids, str(text), stats))
            yield steps[-1]
        return self._answer(text, ids, tuple(steps), stats)

    def _job(self, request: Request, options: AnswerOptions) -> Job:
        choice = self._choice(options.get("task"), options.get("skip_layers"))
        self.adapter.quiet = True
        job = self.adapter.job(request, _generation_arguments(options), choice)
        return dataclasses.replace(job, seed=_seed(options, self.adapter.arguments.seed))

    def _answer(
        self,
        text: GeneratedText,
        ids: tuple[int, ...],
        steps: tuple[AnswerStep, ...],
        stats: GenerationStats,
    ) -> Answer:
        config = text.config
        return Answer(
            str(text),
            ids,
            steps,
            stats,
            model=self.adapter.name,
            skip=SkipSet.of(config["skip"], self.adapter.info.num_layers),
            scope=config["scope"],
            protocol=config["protocol"],
            domain=config["domain"],
            why=config["why"],
        )


class Stream(Iterator[AnswerStep]):
    """An answer while it is made: an iterator of its steps; `answer` is there at the end."""

    def __init__(self, steps: Generator[AnswerStep, None, Answer]) -> None:
        self._steps = steps
        self._answer: Answer | None = None

    def __next__(self) -> AnswerStep:
        try:
            return next(self._steps)
        except StopIteration as end:
            self._answer = self._answer or end.value
            raise

    @property
    def answer(self) -> Answer:
        """The whole answer; the steps that are left are made first.

        Raises RuntimeError for a stream that failed or was closed before its end.
        """
        for _ in self:
            pass
        if self._answer is None:
            raise RuntimeError("this stream ended before its answer did")
        return self._answer


def prepare(model: str = DEFAULT_ADAPTER, **arguments: Any) -> Decoder:
    """A decoder whose arguments are checked; it loads with its first prompt, or by `load`.

    `model` is an lm-eval name (`tss_eagle`, `native_ar`, …), `arguments` are its model arguments
    (README, "Models"). A prompt that does not fit is refused unless `on_overflow="flag"`. Raises
    AdapterError for an unknown model, naming the nearest, and for bad arguments.
    """
    given = {"on_overflow": "error", **arguments}
    return Decoder(find_adapter(model).prepare(given))


def load(model: str = DEFAULT_ADAPTER, **arguments: Any) -> Decoder:
    """A decoder with its weights loaded; otherwise as `prepare`."""
    return prepare(model, **arguments).load()


def generate(prompt: str | Messages, model: str = DEFAULT_ADAPTER, **arguments: Any) -> Answer:
    """One answer in one call: `print(tss_bench.generate("Why is the sky blue?"))`.

    `arguments` are answer options (`AnswerOptions`) and model arguments (see `prepare`). The
    decoder is kept until another model or other model arguments are asked for, so that a second
    call is quick; `load` gives a decoder to hold on to.
    """
    options = {name: value for name, value in arguments.items() if name in _OPTION_NAMES}
    rest = {name: value for name, value in arguments.items() if name not in _OPTION_NAMES}
    return _KEPT.decoder(model, rest).generate(prompt, **cast(AnswerOptions, options))


class _Kept:
    """The decoder of the last `generate`, by the text of its model and arguments."""

    def __init__(self) -> None:
        self._key = ""
        self._decoder: Decoder | None = None

    def decoder(self, model: str, arguments: Mapping[str, Any]) -> Decoder:
        """The decoder that is kept, or a new one, which is kept in its place."""
        key = repr((model, sorted(arguments.items())))
        if self._decoder is None or self._key != key:
            made = prepare(model, **arguments)
            self._key, self._decoder = key, made  # before it loads: two may not fit in memory
        return self._decoder

    def clear(self) -> None:
        """Forget the decoder."""
        self._decoder = None


_KEPT = _Kept()


def _generation_arguments(options: AnswerOptions) -> dict[str, Any]:
    """The options under the names that a request has for them."""
    given = {
        "max_new_tokens": options.get("max_new_tokens"),
        "temperature": options.get("temperature"),
        "until": options.get("stop"),
    }
    return {name: value for name, value in given.items() if value is not None}


def _messages(prompt: Any) -> list[dict[str, str]]:
    """The messages as plain records. Raises AdapterError for anything else."""
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise AdapterError(f"a prompt is a text or a list of messages, got {type(prompt).__name__}")
    listed = list(prompt)
    for message in listed:
        texts = message if isinstance(message, Mapping) else {}
        if not all(isinstance(texts.get(name), str) for name in ("role", "content")):
            raise AdapterError(f'a message is {{"role": "user", "content": "…"}}, got {message!r}')
    if not any(message["content"].strip() for message in listed):
        raise AdapterError("the prompt is empty; give a text, or a list of messages")
    return [dict(message) for message in listed]


def _seed(options: AnswerOptions, default: int) -> int:
    seed = options.get("seed")
    if seed is None:
        return default
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < _SEEDS:
        raise AdapterError(f"seed must be a whole number from 0 to 2**63 - 1, got {seed!r}")
    return seed


def _text_or_none(name: str, value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise AdapterError(f"{name} must be a name, got {value!r}")
    return value
