"""The lm-eval model behind every adapter: target, drafter and skip controller put together.

Knows nothing of how a drafter is made (adapters.py) or how an answer is made (answering.py).

May import: lm_eval, torch, tqdm, transformers, tss_bench.{types,domains,decoding,routing,
weights}, model_adapters.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from model_adapters.answering import Answerer, Job, check
from model_adapters.arguments import (
    COMMON,
    SPARSE,
    AdapterError,
    Arguments,
    read_arguments,
    split_arguments,
)
from model_adapters.cache import CacheGuard
from model_adapters.likelihood import Scorer
from model_adapters.loaded import LoadedModel, describe_model, load, load_tokenizer
from model_adapters.prompts import Prompter, Request
from model_adapters.router import PromptRouter, check_rules
from model_adapters.router_prompts import DomainPrompts, domain_prompts
from model_adapters.skip_plan import SkipPlan, native_plan, sparse_plan
from tss_bench import __version__
from tss_bench.decoding.answer import Answer
from tss_bench.decoding.drafters.base import Drafter
from tss_bench.decoding.generate import DecodingOptions, Generation
from tss_bench.decoding.target import Target
from tss_bench.domains import SkipChoice, SkipController
from tss_bench.types import GeneratedText, Scope, SkipSet
from tss_bench.weights import ModelInfo


class SpeculativeLM(TemplateLM):
    """Native (`sparse` False) or TSS adapter of one drafter; see `Arguments` for what it takes.

    `side_by_side`: its answers can be decoded many at a time (tss_bench.batched_answers).

    Public attributes: `arguments`, `info`, `loaded`, `target`, `drafter`, `tokenizer`, `router`
    (None without `router=knn`), `controller`, which may be replaced between two calls (then
    nothing is routed), and `quiet`, which leaves unsaid what the answers tell themselves (the
    skip set of each task). Raises AdapterError for every bad argument, layer, map or draft before
    any weight is loaded. `prepare` and `load` are the two halves of the constructor, for adapters
    that are checked together and share one target.

    A run is `jobs` (or `job`), `begin_run`, one `answer` (or `answer_steps`) a job in any order,
    `end_run`; `generate_until` is one run. What a drafter keeps (`state=run`) and the overflow
    counts last for one run.
    """

    name: ClassVar[str]
    drafter_id: ClassVar[str]
    sparse: ClassVar[bool]
    side_by_side: ClassVar[bool] = True
    own_arguments: ClassVar[frozenset[str]] = frozenset()

    quiet = False
    info: ModelInfo
    loaded: LoadedModel
    target: Target
    tokenizer: PreTrainedTokenizerBase
    drafter: Drafter
    router: PromptRouter | None

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self._check(given)
        self.load()

    # What a drafter adds.

    def check_drafter(self) -> None:
        """Refuse a bad drafter by name or path; called before any weight is loaded."""

    def make_drafter(self) -> Drafter:
        """The drafter of this adapter for `self.target`."""
        raise NotImplementedError

    def within_context(self, length: int) -> int:
        """A chain's length without what no context has room for: memory is kept for all of it."""
        return min(length, self.max_length)

    def drafter_record(self) -> dict[str, Any]:
        """What an answer depends on in the drafter beside the arguments."""
        return {}

    def skip_plan(self) -> SkipPlan:
        """Which blocks each task skips; called before any weight is loaded."""
        if self.sparse:
            return sparse_plan(self.arguments, self.info, self.drafter_id)
        return native_plan(self.arguments, self.info)

    @property
    def label(self) -> str:
        """What tables call this adapter."""
        return self.name

    # Construction.

    @classmethod
    def prepare(cls, given: Mapping[str, Any]) -> Self:
        """An adapter whose arguments are checked; call `load` before anything else.

        Raises AdapterError as the constructor does; no weights are loaded.
        """
        adapter = cls.__new__(cls)
        TemplateLM.__init__(adapter)
        adapter._check(given)
        return adapter

    def load(self, share: LoadedModel | None = None) -> None:
        """Load target and drafter; `share` is used where it was loaded before.

        Raises AdapterError for files that cannot be loaded and where `share` is another model.
        """
        with _one_error():
            self.loaded = share.require(self.arguments) if share else load(self.arguments)
            self._set_up()
        for note in self._notes:
            self._say(note)

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> SpeculativeLM:
        """As lm-eval's, but `skip_layers=[3,25,30]` keeps its commas."""
        return cls.create_from_arg_obj(split_arguments(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> SpeculativeLM:
        """As lm-eval's, but a model argument wins over the command line's option of that name.

        lm-eval passes `cuda:0` where no device was asked for: without a GPU that means nothing.
        """
        given = dict(additional_config or {})
        if str(given.get("device")).startswith("cuda") and not torch.cuda.is_available():
            del given["device"]
        return cls(**{**given, **arg_dict})

    @classmethod
    def allowed_arguments(cls) -> frozenset[str]:
        """Names of the arguments that this adapter takes."""
        return COMMON | cls.own_arguments | (SPARSE if cls.sparse else frozenset())

    def _refuse_several_processes(self) -> None:
        started = os.environ.get("WORLD_SIZE", "1")
        if started not in ("", "1"):
            raise AdapterError(
                f"{self.name} runs in one process, but {started} were started "
                f"(WORLD_SIZE={started}); use accelerate launch --num_processes 1 or plain lm_eval"
            )

    def _check(self, given: Mapping[str, Any]) -> None:
        """Everything that can go wrong without weights."""
        self._guard: CacheGuard | None = None
        self._said: set[str] = set()
        self._prompter: Prompter | None = None
        self._refuse_several_processes()
        self.arguments = read_arguments(self.name, given, self.allowed_arguments())
        arguments = self.arguments
        with _one_error():
            self.info = describe_model(arguments)
            self._plan = self.skip_plan()
            self.controller: SkipController = self._plan.controller
            self._routed: DomainPrompts | None = None
            if self._plan.routed:
                self._routed = domain_prompts(self._plan.routed)
                check_rules(self._routed, self.prompter, arguments)
            self._notes = (*self._plan.notes, *(self._routed.notes if self._routed else ()))
            self.check_drafter()

    def _set_up(self) -> None:
        arguments, loaded = self.arguments, self.loaded
        self.info, self.target, self.tokenizer = loaded.info, loaded.target, loaded.tokenizer
        self._prompter = self._make_prompter(self.tokenizer)
        self._scorer = Scorer(self.target, self.max_length, arguments.on_overflow)
        plan, prompts = self._plan, self._routed
        self.router = self.new_router(prompts, plan.routed, arguments) if prompts else None
        self.drafter = self.make_drafter()
        self._answerer = Answerer(loaded, self.drafter, self._prompter, arguments, self.scope)

    def new_router(
        self, prompts: DomainPrompts, sets: Mapping[str, SkipSet], arguments: Arguments
    ) -> PromptRouter:
        """A router of the loaded target among `sets` by domain, shaped by `arguments`."""
        return PromptRouter(
            prompts, sets, arguments, self.loaded, self.prompter, self.scope, self._say
        )

    def routed_job(self, request: Request, given: Mapping[str, Any], router: PromptRouter) -> Job:
        """A request with these generation arguments, whose skip set `router` chooses."""
        return self._answerer.job(request, given, router.unread(request), router=router)

    @property
    def prompter(self) -> Prompter:
        """Renders and encodes prompts. Before `load`, the tokenizer alone is read for it.

        Raises AdapterError for a tokenizer that cannot be read.
        """
        if self._prompter is None:
            with _one_error():
                self._prompter = self._make_prompter(load_tokenizer(self.arguments))
        return self._prompter

    def _make_prompter(self, tokenizer: PreTrainedTokenizerBase) -> Prompter:
        chat = self.arguments.chat_template
        if chat is None:
            chat = self.info.is_chat and bool(tokenizer.chat_template)
        return Prompter(tokenizer, chat)

    # What lm-eval asks of a model.

    @property
    def max_length(self) -> int:
        return self.target.context_length

    @property
    def max_gen_toks(self) -> int:
        return self.arguments.max_gen_toks

    @property
    def batch_size(self) -> int:
        return self.arguments.batch_size

    @property
    def device(self) -> torch.device:
        return self.target.device

    @property
    def dtype(self) -> str:
        """Name of the target's dtype, what `dtype=auto` came to."""
        return str(self.target.dtype).removeprefix("torch.")

    @property
    def scope(self) -> Scope:
        """The scope of the skip sets."""
        return self._plan.scope

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        return self.info.id.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **ignored: Any
    ) -> list[int]:
        return self.prompter.encode(string, add_special_tokens)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self.prompter.render(chat_history, add_generation_prompt)

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuses a `--use_cache` file of another configuration; see model_adapters.cache."""
        super().set_cache_hook(cache_hook)
        if cache_hook.dbdict is not None:
            self._guard = CacheGuard(cache_hook.dbdict, self._configuration())
            if self._guard.holds_answers:
                self._say(
                    f"answers in {self._guard.name} are replayed: they were made by this very "
                    "configuration, but have no accept length and no speed"
                )

    def get_model_info(self) -> dict[str, Any]:
        """What results files record of this run, under `tss_bench` and lm-eval's own keys."""
        used = {
            task: {"skip": list(choice.skip), "domain": choice.domain, "why": choice.why}
            for task, choice in self.controller.used.items()
        }
        overflow = {**self._answerer.counts, "loglikelihood_truncated": self._scorer.truncated}
        return {
            "model_dtype": self.dtype,
            "model_revision": self.info.revision,
            "tss_bench": {
                **self._configuration(),
                "used": used,
                "overflow": overflow,
                **({"routed": self.router.summary()} if self.router else {}),
            },
        }

    def _configuration(self) -> dict[str, Any]:
        """All that an answer depends on, besides its prompt."""
        told_below = SPARSE | {"pretrained", "batch_size"}
        own = self.allowed_arguments() - told_below
        return {
            **{name: getattr(self.arguments, name) for name in sorted(own)},
            "version": __version__,
            "adapter": self.name,
            "model": self.info.id,
            "revision": self.info.revision,
            "num_layers": self.info.num_layers,
            "drafter": self.drafter_id,
            "max_nodes": self.drafter.max_nodes,
            "skip_source": self._plan.source,
            "skip_sets": {name: list(skip) for name, skip in self.controller.sets.items()},
            "scope": self.scope,
            "dtype": self.dtype,
            "device": str(self.device),
            "chat_template": self.prompter.chat,
            "max_length": self.max_length,
            **self.drafter_record(),
            **({"router": self.router.record()} if self.router else {}),
        }

    # Requests.

    def generate_until(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[GeneratedText]:
        """Answers in the order of the requests; each carries its statistics."""
        jobs = self.jobs(requests)
        self.begin_run(jobs)
        answers = []
        bar = tqdm(jobs, desc="Running generate_until requests", disable=disable_tqdm)
        for instance, job in zip(requests, bar, strict=True):
            answers.append(self.answer(job))
            self.cache_hook.add_partial("generate_until", instance.args, answers[-1])
        self.end_run()
        return answers

    def jobs(self, requests: Sequence[Instance]) -> list[Job]:
        """The generation requests, all checked. Raises AdapterError naming the document."""
        repeats: Counter[int] = Counter()
        jobs = []
        for instance in requests:
            jobs.append(self._job(instance, repeats[id(instance)]))
            repeats[id(instance)] += 1
        self._ready(jobs)
        return jobs

    def check_request(self, request: Request, given: Mapping[str, Any]) -> None:
        """Raises AdapterError for a request that `job` would refuse, before `load`, too."""
        context = self.arguments.max_length or self.info.context_length
        check(request, given, self.prompter, self.arguments, context)

    def job(
        self, request: Request, given: Mapping[str, Any], choice: SkipChoice | None = None
    ) -> Job:
        """One request with the generation arguments `given`; the controller chooses its skip set
        unless `choice` does. Raises AdapterError for a request that cannot be answered."""
        router = None if choice else self._router_for(request)
        job = self._answerer.job(
            request, given, choice or self._choose(request, router), router=router
        )
        self._ready([job])
        return job

    def _ready(self, jobs: Sequence[Job]) -> None:
        """Read the prompts that the router compares with, if any of these jobs is routed."""
        if self.router is not None and any(job.router for job in jobs):
            with _one_error():
                self.router.ready()

    def begin_run(self, jobs: Sequence[Job]) -> None:
        """Empty the drafter and the counts, and warm up what these jobs need."""
        self._answerer.start(jobs)

    def answer(self, job: Job) -> GeneratedText:
        """The answer to one job of the run, with its statistics."""
        return self._answerer.answer(job)

    def answer_steps(self, job: Job) -> Generator[Answer, None, GeneratedText]:
        """As `answer`, but hands out each turn's answer while it grows."""
        return self._answerer.steps(job)

    def end_run(self) -> None:
        """Say what did not fit, and where requests were routed."""
        for note in self._answerer.overflow_notes():
            self._say(note)
        self._say_routes()

    def prompt_ids(self, job: Job, answers: Sequence[str] = ()) -> list[int]:
        """The ids that the turn after `answers` (none: the first) is answered from."""
        return self._answerer.prompt_ids(job, answers)

    def turn(self, job: Job, answers: Sequence[str]) -> tuple[list[int], bool]:
        """Prompt ids of the turn after `answers`, and whether they had to be cut."""
        return self._answerer.turn(job, answers)

    def decoding_options(self, job: Job) -> DecodingOptions:
        """How the turns of a job are decoded."""
        return self._answerer.decoding_options(job)

    def put_together(self, job: Job, turns: Sequence[Generation]) -> GeneratedText:
        """The answer to a job whose turns were decoded elsewhere."""
        return self._answerer.put_together(job, turns)

    def _job(self, instance: Instance, repeat: int) -> Job:
        context, given = instance.args
        request = Request.of(context, instance.doc, instance.task_name, instance.doc_id)
        router = self._router_for(request)
        choice = self._choose(request, router)
        job = self._answerer.job(request, given, choice, repeat, router)
        greedy = job.options.temperature == 0.0
        if greedy and self.arguments.temperature > 0.0:
            self._say_once(
                f"{request.task} asks for greedy decoding, which wins over temperature="
                f"{self.arguments.temperature} (--gen_kwargs do_sample=True,temperature=… wins "
                f"over the task)"
            )
        if self._guard is not None:
            skip = None if router else choice.skip
            self._guard.claim("generate_until", instance.args, request, skip, greedy)
        return job

    def _router_for(self, request: Request) -> PromptRouter | None:
        """The router, for a request whose task and domain the map does not know."""
        if self.controller is not self._plan.controller:
            return None
        return None if self.controller.knows(request.task, request.domain) else self.router

    def _choose(self, request: Request, router: PromptRouter | None) -> SkipChoice:
        """The set of a request; with a router the one it has before its prompt is read."""
        if router is None:
            choice = self.controller.choose(request.task, request.domain)
            self._say_once(str(choice))
        else:
            choice = router.unread(request)
            self._say_once(f"{request.task}: {router}")
        templated = self.prompter.chat or self.arguments.chat_template is not None
        if request.style == "chat" and not templated:
            self._say_once(
                f"{self.info.id} has no chat template: prompts made for chat models reach it as "
                f"plain text; the *_fewshot tasks suit it better"
            )
        return choice

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether greedy decoding would give it."""
        pairs, places = [], []
        for instance in requests:
            context, continuation = instance.args
            request = Request.of(context, instance.doc, instance.task_name, instance.doc_id)
            places.append((request, self._scored_under("loglikelihood", instance, request)))
            prompt = self.prompter.first(request)
            if prompt != context:
                # The template ends where the answer begins: no space belongs between them.
                continuation = continuation.lstrip(" ")
            pairs.append((instance.args, *self._encode_scored(prompt, continuation)))
        answers = self._loglikelihood_tokens(pairs, disable_tqdm, places=places)
        self._say_routes()
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probability of each whole text, in windows of the context as lm-eval cuts them."""
        totals = []
        for instance in tqdm(requests, desc="Running rolling requests", disable=disable_tqdm):
            (text,) = instance.args
            request = Request.of(text, instance.doc, instance.task_name, instance.doc_id)
            skip = self._scored_under("loglikelihood_rolling", instance, request)
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs = [(None, *make_disjoint_window(window)) for window in windows]
            scores = self._loglikelihood_tokens(pairs, True, places=[(request, skip)] * len(pairs))
            totals.append(float(sum(total for total, _ in scores)))
            self.cache_hook.add_partial("loglikelihood_rolling", instance.args, totals[-1])
        return totals

    def _scored_under(self, kind: str, instance: Instance, request: Request) -> SkipSet | None:
        """The set of a scored request; None where the router chooses it from the context."""
        router = self._router_for(request)
        skip: SkipSet | None
        if router is not None and (kind != "loglikelihood" or not request.context):
            skip = router.unread(request).skip
            self._say_once(str(router.unread(request)))
        else:
            choice = self._choose(request, router)
            skip = None if router else choice.skip
        if self._guard is not None:
            self._guard.claim(kind, instance.args, request, skip, greedy=True)
        return skip

    def _encode_scored(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Ids of context and continuation; an empty context becomes the begin-of-text id."""
        if context:
            first, second = self._encode_pair(context, continuation)
            return first, second
        ids = self.tok_encode(continuation, add_special_tokens=False)
        if ids[:1] == [self.prefix_token_id]:
            return ids[:1], ids[1:]
        return [self.prefix_token_id], ids

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        *,
        places: Sequence[tuple[Request, SkipSet | None]],
    ) -> list[tuple[float, bool]]:
        answers = []
        bar = tqdm(requests, desc="Running loglikelihood requests", disable=disable_tqdm)
        for (key, context, continuation), (request, skip) in zip(bar, places, strict=True):
            if skip is None:
                assert self.router is not None
                prompt = self.prompter.first(request)
                skip = self.router.choose_scored(request, prompt, context[-self.max_length :])
            answers.append(self._scorer.score(context, continuation, skip, request.where))
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, answers[-1])
        return answers

    def _say_routes(self) -> None:
        for note in self.router.notes() if self.router else ():
            self._say_once(note)

    def _say_once(self, message: str) -> None:
        if message not in self._said and not self.quiet:
            self._said.add(message)
            self._say(message)

    def _say(self, message: str) -> None:
        """One line for the user, on stderr so that the table on stdout stays clean."""
        print(f"{self.name}: {message}", file=sys.stderr, flush=True)


@contextmanager
def _one_error() -> Iterator[None]:
    """What the layers below refuse becomes one AdapterError."""
    try:
        yield
    except AdapterError:
        raise
    except (ValueError, OSError, RuntimeError) as error:
        raise AdapterError(error) from error
