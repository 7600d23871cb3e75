"""Let the target answer the prompts of a recipe, many at a time, in shards that survive a kill.

A shard holds prompts of similar length. It is written whole or not at all, and its content
depends on the settings alone, so a restarted run continues where it was and ends with the same
data. The last hidden states may be kept beside the ids: a draft head trains on them.

May import: torch, safetensors, tqdm, tss_bench.{data, decoding, files, locks, weights}
and tss_bench.training.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm

from tss_bench.data.overlap import evaluation_sources, evaluation_texts
from tss_bench.decoding.target import Target
from tss_bench.files import remove_stale_parts, replace_text
from tss_bench.locks import only_writer
from tss_bench.training.batch_answers import Answers, answer_prompts, encode_prompt
from tss_bench.training.prompts import SHARES, check_kinds, make_prompts
from tss_bench.training.records import library_versions, source_state
from tss_bench.weights import DEFAULT_MODEL, describe, end_of_text_ids, load_model
from tss_bench.weights.loading import resolve_device
from tss_bench.weights.tensor_file import write_tensors

RECIPE = "recipe.json"
PROMPTS = "prompts.jsonl"
EXCLUDED = "excluded.json"
_HOUR = 3600.0


@dataclass(frozen=True)
class GenerationRecipe:
    """All that the text depends on. Raises ValueError for a value out of range."""

    pretrained: str
    revision: str
    prompts: int = 6000
    seed: int = 0
    max_new_tokens: int = 112
    batch_size: int = 64
    shard_size: int = 256
    sampled_share: float = 0.3
    kinds: str = ",".join(SHARES)
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        check_kinds(self.kinds.split(","))
        for name in ("prompts", "max_new_tokens", "batch_size", "shard_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.sampled_share <= 1:
            raise ValueError(f"sampled_share must lie in 0 … 1, got {self.sampled_share}")


def generate_data(
    directory: Path,
    recipe: GenerationRecipe,
    *,
    device: str = "auto",
    workers: int = 1,
    keep_features: bool = True,
    excluded: Iterable[str] = (),
    excluded_sources: Sequence[Mapping[str, Any]] = (),
) -> list[Path]:
    """Write the missing shards of `recipe` into `directory`; the paths of all its shards.

    `excluded`: texts of evaluation rows, see `make_prompts`; `excluded_sources` says which, for
    the record. Raises ValueError when the directory holds shards of another recipe and while
    another process writes there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    refusal = f"another run makes data in {directory}; wait for it or choose another directory"
    with only_writer(directory / ".lock", refusal):
        _clear(directory)
        _claim(directory, recipe)
        if not (shard_paths(directory) and (directory / PROMPTS).is_file()):
            kinds = recipe.kinds.split(",")
            prompts = make_prompts(recipe.prompts, recipe.seed, kinds=kinds, excluded=excluded)
            lines = [json.dumps(asdict(prompt), ensure_ascii=False) for prompt in prompts]
            replace_text(directory / EXCLUDED, json.dumps(list(excluded_sources), indent=2) + "\n")
            replace_text(directory / PROMPTS, "\n".join(lines) + "\n")
        return _answer(_Job(str(directory), recipe, device, keep_features), workers)


def _answer(job: _Job, workers: int) -> list[Path]:
    """Write the missing shards of a job whose prompts are there; the paths of all shards."""
    directory, recipe = Path(job.directory), job.recipe
    # Lengths in characters: close enough to tokens to fill batches evenly.
    texts = read_prompts(directory)
    shards = plan_shards([len(text) for text in texts], recipe)
    missing = [i for i in range(len(shards)) if not shard_path(directory, i).is_file()]
    done = sum(read_answers(p).new_tokens for p in shard_paths(directory))
    with tqdm(total=len(shards), initial=len(shards) - len(missing), unit="shard") as bar:
        start, tokens = time.monotonic(), 0
        for new_tokens in _run(job, shards, missing, workers):
            tokens += new_tokens
            rate = tokens / max(time.monotonic() - start, 1e-9)
            bar.set_postfix_str(f"{done + tokens} tokens, {rate:.0f} tokens/s")
            bar.update()
    return shard_paths(directory)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command that only makes data."""
    parser.add_argument("--pretrained", default=DEFAULT_MODEL, help="the model that answers")
    parser.add_argument("--out", type=Path, required=True, help="directory of the shards")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--no-features",
        action="store_true",
        help="keep ids only (hidden states take 2 bytes a channel and token)",
    )
    add_recipe_arguments(parser)


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that describe the text."""
    recipe = GenerationRecipe
    group = parser.add_argument_group("self-generated text")
    group.add_argument("--prompts", type=int, default=recipe.prompts, help="prompts to answer")
    group.add_argument(
        "--kinds", default=recipe.kinds, help=f"kinds of prompts (default all: {recipe.kinds})"
    )
    group.add_argument("--data-seed", type=int, default=recipe.seed, help="seed of the text")
    group.add_argument(
        "--max-new-tokens", type=int, default=recipe.max_new_tokens, help="limit of an answer"
    )
    group.add_argument(
        "--generation-batch", type=int, default=recipe.batch_size, help="prompts answered at once"
    )
    group.add_argument(
        "--shard-size",
        type=int,
        default=recipe.shard_size,
        help="prompts in a shard; a killed run answers one a process again",
    )
    group.add_argument(
        "--sampled-share",
        type=float,
        default=recipe.sampled_share,
        help="share of the answers at temperature 1; the others are greedy",
    )
    group.add_argument(
        "--workers", type=int, default=0, help="processes, one thread each (0: one a CPU core)"
    )


def run(args: argparse.Namespace) -> None:
    """Make the data, or what is missing of it."""
    shards = generate_from_arguments(args, args.out, keep_features=not args.no_features)
    print(f"{args.out}: {len(shards)} shards")


def generate_from_arguments(
    args: argparse.Namespace, directory: Path, *, keep_features: bool
) -> list[Path]:
    """`generate_data` for parsed arguments; prompts keep away from all evaluation rows.

    Raises ValueError as it does, and for a number of workers below 0.
    """
    if args.workers < 0:
        raise ValueError(
            f"--workers must be at least 1, or 0 for one a CPU core, got {args.workers}"
        )
    recipe = GenerationRecipe(
        pretrained=args.pretrained,
        revision=describe(args.pretrained).revision,
        prompts=args.prompts,
        seed=args.data_seed,
        max_new_tokens=args.max_new_tokens,
        batch_size=args.generation_batch,
        shard_size=args.shard_size,
        sampled_share=args.sampled_share,
        kinds=args.kinds,
    )
    on_cpu = resolve_device(args.device) == "cpu"
    return generate_data(
        directory,
        recipe,
        device=args.device,
        workers=(args.workers or os.cpu_count() or 1) if on_cpu else 1,
        keep_features=keep_features,
        excluded=evaluation_texts(),
        excluded_sources=evaluation_sources(),
    )


def plan_shards(lengths: Sequence[int], recipe: GenerationRecipe) -> list[list[int]]:
    """Prompt indices of each shard: prompts of similar length together, shards shuffled.

    Shuffled so that the first shards of an unfinished run are a fair sample of the recipe.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    size = recipe.shard_size
    shards = [order[i : i + size] for i in range(0, len(order), size)]
    random.Random(f"shards {recipe.seed}").shuffle(shards)
    return shards


def shard_path(directory: Path, index: int) -> Path:
    return directory / f"shard-{index:05d}.safetensors"


def shard_paths(directory: Path) -> list[Path]:
    """The complete shards of a directory, in order."""
    return sorted(directory.glob("shard-*.safetensors"))


def features_path(shard: Path) -> Path:
    """Where the hidden states of a shard lie."""
    return shard.with_name(shard.name.replace("shard-", "features-"))


def read_prompts(directory: Path) -> list[str]:
    """The prompts that a directory's shards answer. Raises ValueError for a torn file."""
    path = directory / PROMPTS
    try:
        return [json.loads(line)["text"] for line in path.read_text("utf-8").splitlines()]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is torn ({error}); make the data again in another directory"
        ) from error


def read_recipe(directory: Path) -> dict[str, Any]:
    """What the data in a directory was made from; raises ValueError when it holds none."""
    try:
        recipe: dict[str, Any] = json.loads((directory / RECIPE).read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(
            f"{directory} holds no self-generated data (no {RECIPE}); name a directory that "
            "`tss-bench data generate` filled, or leave --data out to make one"
        ) from error
    except ValueError as error:
        raise ValueError(
            f"{directory / RECIPE} is no JSON: {error}; make the data again"
        ) from error
    if not isinstance(recipe, dict) or not {"pretrained", "revision"} <= recipe.keys():
        raise ValueError(f"{directory / RECIPE} is no recipe of self-generated data")
    return recipe


def read_excluded(directory: Path) -> list[dict[str, Any]]:
    """Which evaluation rows the prompts in a directory keep away from; empty if not recorded.

    Raises ValueError for a torn file.
    """
    path = directory / EXCLUDED
    if not path.is_file():
        return []
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{path} is torn ({error}); make the data again in another directory, or delete it to "
            f"go without that record"
        ) from error
    return found


def read_answers(path: Path) -> Answers:
    """Read one shard, without hidden states. Raises ValueError for a file that is none."""
    try:
        stored = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is torn ({error}); delete it and make the data again") from error
    if missing := sorted({"ids", "lengths", "sampled"} - stored.keys()):
        raise ValueError(
            f"{path} is no shard of answers (it lacks {', '.join(missing)}); delete it and make "
            f"the data again"
        )
    lengths = stored["lengths"].tolist()
    ids = list(stored["ids"].long().split([total for total, _ in lengths]))
    return Answers(ids, [prompt for _, prompt in lengths], stored["sampled"].bool().tolist())


def read_features(path: Path) -> Any:
    """The hidden states of a shard's rows, one after the other, as a lazy slice [n, H]."""
    try:
        return safe_open(path, framework="pt").get_slice("features")
    except SafetensorError as error:
        raise ValueError(
            f"{path} is torn ({error}); delete it, and training computes it again"
        ) from error


def write_features(path: Path, rows: Sequence[Tensor]) -> None:
    write_tensors(path, {"features": torch.cat(list(rows)).to(torch.bfloat16)})


def write_answers(path: Path, answers: Answers) -> None:
    """Write hidden states first, then the shard: a shard that exists is complete."""
    if answers.features is not None:
        write_features(features_path(path), answers.features)
    lengths = [
        [len(row), prompt] for row, prompt in zip(answers.ids, answers.prompt_lengths, strict=True)
    ]
    stored = {
        "ids": torch.cat(answers.ids).int(),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "sampled": torch.tensor(answers.sampled, dtype=torch.uint8),
    }
    write_tensors(path, stored)


@dataclass(frozen=True)
class _Job:
    """What a worker process needs to make shards."""

    directory: str
    recipe: GenerationRecipe
    device: str
    keep_features: bool


class _Worker:
    def __init__(self, job: _Job) -> None:
        recipe = job.recipe
        model, self._tokenizer, _ = load_model(
            recipe.pretrained, dtype=recipe.dtype, device=job.device
        )
        self._job = job
        self._target = Target(model)
        self._eos = end_of_text_ids(model, self._tokenizer)
        self._texts = read_prompts(Path(job.directory))
        self._require_room()

    def _require_room(self) -> None:
        """Raises ValueError for a prompt that does not fit, before any is answered."""
        recipe = self._job.recipe
        room = self._target.context_length - recipe.max_new_tokens
        frame = len(encode_prompt(self._tokenizer, ""))
        for text in self._texts:
            # No tokenizer makes more ids than a text has bytes.
            if len(text.encode("utf-8")) + frame <= room:
                continue
            tokens = len(encode_prompt(self._tokenizer, text))
            if tokens > room:
                raise ValueError(
                    f"a prompt of {tokens} tokens leaves no room for {recipe.max_new_tokens} new "
                    f"ones in the context of {recipe.pretrained}, {self._target.context_length}; "
                    f"leave out the long kinds (--kinds) or lower --max-new-tokens"
                )

    def make(self, index: int, members: Sequence[int]) -> int:
        """Write one shard; the number of its new tokens."""
        recipe = self._job.recipe
        answers = answer_prompts(
            self._target,
            [encode_prompt(self._tokenizer, self._texts[i]) for i in members],
            sampled=[_is_sampled(recipe, i) for i in members],
            max_new_tokens=recipe.max_new_tokens,
            eos=self._eos,
            seed=recipe.seed * 1_000_003 + index,
            rows=recipe.batch_size,
            keep_features=self._job.keep_features,
        )
        write_answers(shard_path(Path(self._job.directory), index), answers)
        return answers.new_tokens


def _is_sampled(recipe: GenerationRecipe, prompt: int) -> bool:
    return random.Random(f"sampled {recipe.seed} {prompt}").random() < recipe.sampled_share


def _run(
    job: _Job, shards: Sequence[Sequence[int]], missing: Sequence[int], workers: int
) -> Iterator[int]:
    if not missing:
        return
    if workers == 1:
        worker = _Worker(job)
        yield from (worker.make(index, shards[index]) for index in missing)
        return
    # One thread a process: small matrices of one batch do not gain from a second thread.
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start_process) as pool:
        futures = [pool.submit(_make_shard, job, index, shards[index]) for index in missing]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool as error:
            raise ValueError(
                f"a worker died (out of memory?) while {job.directory} was made; lower --workers "
                f"and give the command again: what is done is kept"
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_worker: _Worker | None = None


def _start_process() -> None:
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed tells its workers nothing: they would wait for work for ever."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _make_shard(job: _Job, index: int, members: Sequence[int]) -> int:
    global _worker
    # Here, not when the process starts: an error there reaches nobody.
    _worker = _worker or _Worker(job)
    return _worker.make(index, members)


def _clear(directory: Path) -> None:
    """Remove what killed writers left behind.

    Files that safetensors is writing carry no process's number: those untouched for an hour go.
    """
    remove_stale_parts(directory)
    for unfinished in directory.glob(".tmp??????"):
        with suppress(FileNotFoundError):
            if time.time() - unfinished.stat().st_mtime > _HOUR:
                unfinished.unlink()


def _claim(directory: Path, recipe: GenerationRecipe) -> None:
    """Write the recipe, or check that it is the one of the shards that are there.

    A directory without a shard belongs to nobody: what a failed run left there is replaced. What
    made the shards (versions, commit) is for the record, and `pretrained` is one of the names of
    `revision`: neither is compared.
    """
    if not shard_paths(directory):
        for features in directory.glob("features-*.safetensors"):
            features.unlink()
        record = {**asdict(recipe), "versions": library_versions(), "commit": source_state()}
        replace_text(directory / RECIPE, json.dumps(record, indent=2) + "\n")
        return
    if not (directory / RECIPE).is_file():
        raise ValueError(
            f"{directory} holds shards without a {RECIPE}, so what made them is unknown; use "
            f"another directory"
        )
    found = read_recipe(directory)
    asked = {key: value for key, value in asdict(recipe).items() if key != "pretrained"}
    wrong = [key for key, value in asked.items() if found.get(key) != value]
    if wrong and wrong[0] not in found:
        raise ValueError(
            f"{directory} holds data of another version, made without {wrong[0]}; train on it with "
            f"--data, or use another directory"
        )
    if wrong:
        raise ValueError(
            f"{directory} holds data with another {wrong[0]} ({found.get(wrong[0])!r}, asked for "
            f"{asked[wrong[0]]!r}); use the same settings or another directory"
        )
