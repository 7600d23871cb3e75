"""The prompts that the router compares with: calibration rows of our own tasks, never test rows.

May import: lm_eval, tss_bench.{data,task_paths}, model_adapters.{arguments,prompts}.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from model_adapters.arguments import AdapterError
from model_adapters.prompts import Request
from tss_bench.data.resolve import resolve
from tss_bench.data.rows import DataError
from tss_bench.data.split import Split, split_rows
from tss_bench.task_paths import task_directory

_DOMAIN_TASKS = {"mmlu": "tss_mmlu", "nq_open": "tss_nq_open"}


@dataclass(frozen=True)
class DomainPrompt:
    """One row's request as its task makes it; `domain` is the name of its set in the map.

    `options` are the task's generation arguments, `row` is the row's content hash.
    """

    domain: str
    request: Request
    options: Mapping[str, Any]
    row: str


@dataclass(frozen=True)
class DomainPrompts:
    """The prompts of all domains that have some; `sources` says where each one's rows are from.

    `notes` name the domains without.
    """

    prompts: tuple[DomainPrompt, ...]
    sources: Mapping[str, str]
    notes: tuple[str, ...]


def task_of(domain: str) -> str:
    """The task whose rows stand for a domain of a map; a task's own name stands for itself."""
    return _DOMAIN_TASKS.get(domain, f"specbench_{domain}")


def domain_prompts(domains: Iterable[str], split: Split = "calibration") -> DomainPrompts:
    """The rows of one split of each domain, by the task of that name or of that domain.

    Of the calibration split, rows whose text is a test row of any of the domains are left out.
    Raises AdapterError where no domain has rows.
    """
    # lm-eval imports the adapters while its own modules are still loading.
    from lm_eval.tasks import TaskManager

    manager = TaskManager(
        include_path=str(task_directory()), include_defaults=False, metadata={"split": split}
    )
    known = set(manager.all_tasks)
    found: dict[str, list[DomainPrompt]] = {}
    sources, notes, tested = {}, [], set()
    for domain in domains:
        name = domain if domain in known else task_of(domain)
        if name not in known:
            notes.append(f"no request is routed to {domain}: no task of tss_bench has its rows")
            continue
        try:
            task = manager.load([name])["tasks"][name]
            given = list(_prompts(domain, task))
            tested |= _test_rows(prompt.request.domain for prompt in given)
        except DataError as error:
            notes.append(f"no request is routed to {domain}: {error}")
            continue
        found[domain] = given
        data = task.config.metadata["data"]
        sources[domain] = f"{data['kind']} {data['sha256'][:12]}"
    prompts = [prompt for some in found.values() for prompt in some]
    if split == "calibration":
        prompts = [prompt for prompt in prompts if prompt.row not in tested]
    if not prompts:
        raise AdapterError(f"router=knn has no domain to route to: {'; '.join(notes)}")
    return DomainPrompts(tuple(prompts), sources, tuple(notes))


def _prompts(domain: str, task: Any) -> Iterator[DomainPrompt]:
    options = task.config.generation_kwargs or {}
    for doc in task.eval_docs:
        request = Request.of(task.doc_to_text(doc), doc, task.config.task, None)
        yield DomainPrompt(domain, request, options, doc["content_hash"])


def _test_rows(domains: Iterable[str | None]) -> set[str]:
    names = {domain for domain in domains if domain is not None}
    return {row.content_hash for name in names for row in split_rows(resolve(name)[0], "test")}
