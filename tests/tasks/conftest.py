"""A model that answers from a function, with or without statistics, and a quick task index."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from lm_eval.api.model import LM
from lm_eval.evaluator import simple_evaluate
from lm_eval.tasks import TaskManager

from tss_bench.task_paths import task_directory


class AnsweringLM(LM):
    """Answers each generation request by `answer(doc)` and keeps the requests it saw."""

    def __init__(self, answer: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self.answer = answer
        self.requests: list[Any] = []

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        self.requests += requests
        return [self.answer(request.doc) for request in requests]

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        self.requests += requests
        return [(-float(request.idx), False) for request in requests]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        raise NotImplementedError

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
        return f"<chat>{json.dumps(chat_history, ensure_ascii=False)}</chat>"

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "<chat>"

    @property
    def tokenizer_name(self) -> str:
        return "answering"


@pytest.fixture
def evaluate() -> Callable[..., dict[str, Any]]:
    """`evaluate(tasks, model, metadata={}, **arguments)` -> results of `simple_evaluate`."""

    def run(tasks: list[str], model: Any, metadata: Any = None, **arguments: Any) -> Any:
        manager = TaskManager(
            include_path=str(task_directory()), include_defaults=False, metadata=metadata
        )
        return simple_evaluate(model, tasks=tasks, task_manager=manager, **arguments)

    return run


@pytest.fixture
def answering() -> type[AnsweringLM]:
    return AnsweringLM


@pytest.fixture(autouse=True)
def _packaged_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval's dummy model asks the hub for a tokenizer, again and again when offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
