"""The lm-eval model behind every adapter: target, drafter and skip controller put together.

Knows nothing of how a drafter is made (adapters.py), how an answer is made (answering.py) or
scored (likelihood.py), and how its skip set is chosen (choosing.py).

May import: lm_eval, torch, tqdm, transformers, tss_bench.{types,domains,decoding,weights},
model_adapters.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from model_adapters.answering import Answerer, Job, check
from model_adapters.arguments import (
    COMMON,
    SPARSE,
    Arguments,
    one_error,
    read_arguments,
    refuse_several_processes,
    split_arguments,
)
from model_adapters.cache import CacheGuard
from model_adapters.choosing import Chooser
from model_adapters.intake import Intake
from model_adapters.likelihood import Likelihoods, Scorer
from model_adapters.loaded import LoadedModel, describe_model, load, load_tokenizer
from model_adapters.prompts import Prompter, Request
from model_adapters.record import configuration, model_info
from model_adapters.router import PromptRouter, check_rules
from model_adapters.router_prompts import DomainPrompts
from model_adapters.skip_plan import SkipPlan, native_plan, sparse_plan
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

    name: str
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
    chooser: Chooser

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
    def prepare(cls, given: Mapping[str, Any], name: str | None = None) -> Self:
        """An adapter whose arguments are checked; call `load` before anything else.

        `name` is what it calls itself where there are several of its class (`find_adapter`).
        Raises AdapterError as the constructor does; no weights are loaded.
        """
        adapter = cls.__new__(cls)
        TemplateLM.__init__(adapter)
        adapter.name = name or cls.name
        adapter._check(given)
        return adapter

    def load(self, share: LoadedModel | None = None) -> None:
        """Load target and drafter; `share` is used where it was loaded before.

        Raises AdapterError for files that cannot be loaded and where `share` is another model.
        """
        with one_error():
            self.loaded = share.require(self.arguments) if share else load(self.arguments)
            self._set_up()
        for note in self.chooser.notes:
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

    def _check(self, given: Mapping[str, Any]) -> None:
        """Everything that can go wrong without weights."""
        self._said: set[str] = set()
        self._prompter: Prompter | None = None
        refuse_several_processes(self.name)
        self.arguments = read_arguments(self.name, given, self.allowed_arguments())
        arguments = self.arguments
        with one_error():
            self.info = describe_model(arguments)
            self._plan = self.skip_plan()
            self.chooser = Chooser(self._plan, arguments, self._say_once)
            if self.chooser.prompts:
                check_rules(self.chooser.prompts, self.prompter, arguments)
            self.check_drafter()

    def _set_up(self) -> None:
        arguments, loaded = self.arguments, self.loaded
        self.info, self.target, self.tokenizer = loaded.info, loaded.target, loaded.tokenizer
        self._prompter = Prompter.of(self.tokenizer, arguments.chat_template, self.info.is_chat)
        self._scorer = Scorer(self.target, self.max_length, arguments.on_overflow)
        self._likelihoods = Likelihoods(
            self._scorer, self._prompter, self.chooser, self._encode_pair, self.prefix_token_id
        )
        if prompts := self.chooser.prompts:
            self.chooser.router = self.new_router(prompts, self._plan.routed, arguments)
        self.drafter = self.make_drafter()
        self._answerer = Answerer(loaded, self.drafter, self._prompter, arguments, self.scope)
        self._intake = Intake(
            self._answerer, self.chooser, self._prompter, arguments, self.info.id, self._say_once
        )

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
            with one_error():
                self._prompter = Prompter.of(
                    load_tokenizer(self.arguments), self.arguments.chat_template, self.info.is_chat
                )
        return self._prompter

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
    def controller(self) -> SkipController:
        """What chooses the set of a task; a new one leaves nothing to the router."""
        return self.chooser.controller

    @controller.setter
    def controller(self, controller: SkipController) -> None:
        self.chooser.controller = controller

    @property
    def router(self) -> PromptRouter | None:
        """What chooses the sets of tasks that the map does not know, where there is one."""
        return self.chooser.router

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
            self._intake.guard = CacheGuard(cache_hook.dbdict, configuration(self))
            for note in self._intake.guard.notes():
                self._say(note)

    @property
    def overflow(self) -> dict[str, int]:
        """What had to be cut in this run."""
        return {**self._answerer.counts, "loglikelihood_truncated": self._scorer.truncated}

    def get_model_info(self) -> dict[str, Any]:
        """What results files record of this run, see model_adapters.record."""
        return model_info(self)

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
        return self._intake.jobs(requests)

    def check_request(self, request: Request, given: Mapping[str, Any]) -> None:
        """Raises AdapterError for a request that `job` would refuse, before `load`, too."""
        context = self.arguments.max_length or self.info.context_length
        check(request, given, self.prompter, self.arguments, context)

    def job(
        self, request: Request, given: Mapping[str, Any], choice: SkipChoice | None = None
    ) -> Job:
        """One request with the generation arguments `given`; the controller chooses its skip set
        unless `choice` does. Raises AdapterError for a request that cannot be answered."""
        return self._intake.job(request, given, choice)

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
        self.chooser.say_routes()

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

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether greedy decoding would give it."""
        keep = self.cache_hook.add_partial
        answers = self._likelihoods.pairs(requests, self._intake.claim_scored, keep, disable_tqdm)
        self.chooser.say_routes()
        return answers

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-probability of each whole text, in windows of the context as lm-eval cuts them."""
        keep = self.cache_hook.add_partial
        return self._likelihoods.rolling(requests, self._intake.claim_scored, keep, disable_tqdm)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[Any, list[int], list[int]]],
        disable_tqdm: bool = False,
        *,
        places: Sequence[tuple[Request, SkipSet | None]],
    ) -> list[tuple[float, bool]]:
        keep = self.cache_hook.add_partial
        return self._likelihoods.tokens(requests, places, keep, disable_tqdm)

    def _say_once(self, message: str) -> None:
        if message not in self._said and not self.quiet:
            self._said.add(message)
            self._say(message)

    def _say(self, message: str) -> None:
        """One line for the user, on stderr so that the table on stdout stays clean."""
        print(f"{self.name}: {message}", file=sys.stderr, flush=True)
