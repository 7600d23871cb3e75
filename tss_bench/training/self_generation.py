"""Let the target answer the prompts of a recipe, many at a time, in shards that survive a kill.

A shard is one batch of prompts of similar length. It is written whole or not at all, and its
content depends on the settings alone, so a restarted run continues where it was and ends with
the same data. The last hidden states may be kept beside the ids: a draft head trains on them.

May import: torch, transformers, safetensors, tqdm, tss_bench.{types, domains, data, decoding,
weights} and tss_bench.training.prompts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tss_bench.data.resolve import DATA_VARIABLE, MINI_DIRECTORY, resolve
from tss_bench.data.rows import parse_jsonl
from tss_bench.decoding.kv_cache import KVCache
from tss_bench.decoding.target import Target
from tss_bench.domains import DOMAINS
from tss_bench.training.prompts import make_prompts
from tss_bench.types import SkipSet
from tss_bench.weights import DEFAULT_MODEL, describe, load_model
from tss_bench.weights.loading import resolve_device

RECIPE = "recipe.json"
PROMPTS = "prompts.jsonl"
# Finished rows leave the batch when this share of it is done.
_COMPACT_AT = 0.25


@dataclass(frozen=True)
class GenerationRecipe:
    """All that the text depends on. Raises ValueError for a value out of range."""

    pretrained: str
    revision: str
    prompts: int = 6000
    seed: int = 0
    max_new_tokens: int = 112
    batch_size: int = 64
    sampled_share: float = 0.3
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        for name in ("prompts", "max_new_tokens", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.sampled_share <= 1:
            raise ValueError(f"sampled_share must lie in 0 … 1, got {self.sampled_share}")


@dataclass(frozen=True)
class Answers:
    """One shard: row i is prompt ids + answer ids, `prompt_lengths[i]` of them the prompt.

    `sampled[i]` tells temperature 1 from greedy. `features[i]` [len(ids[i]) - 1, H] are the
    hidden states after the final norm of all ids but the last; None when they were not kept.
    """

    ids: list[Tensor]
    prompt_lengths: list[int]
    sampled: list[bool]
    features: list[Tensor] | None = None

    @property
    def new_tokens(self) -> int:
        return sum(len(row) for row in self.ids) - sum(self.prompt_lengths)


def generate_data(
    directory: Path,
    recipe: GenerationRecipe,
    *,
    device: str = "auto",
    workers: int = 1,
    keep_features: bool = True,
    excluded: Iterable[str] = (),
) -> list[Path]:
    """Write the missing shards of `recipe` into `directory`; the paths of all its shards.

    `excluded`: texts of evaluation rows, see `make_prompts`. Raises ValueError when the
    directory holds the data of another recipe.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _claim(directory, recipe)
    if not (directory / PROMPTS).is_file():
        prompts = make_prompts(recipe.prompts, recipe.seed, excluded=excluded)
        lines = [json.dumps(asdict(prompt), ensure_ascii=False) for prompt in prompts]
        _write_text(directory / PROMPTS, "\n".join(lines) + "\n")
    # Lengths in characters: close enough to tokens to fill batches evenly.
    texts = read_prompts(directory)
    shards = plan_shards([len(text) for text in texts], recipe)
    missing = [i for i in range(len(shards)) if not shard_path(directory, i).is_file()]
    job = _Job(str(directory), recipe, device, keep_features)
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
    group.add_argument("--data-seed", type=int, default=recipe.seed, help="seed of the text")
    group.add_argument(
        "--max-new-tokens", type=int, default=recipe.max_new_tokens, help="limit of an answer"
    )
    group.add_argument(
        "--generation-batch", type=int, default=recipe.batch_size, help="prompts in a shard"
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


def run(args: argparse.Namespace) -> int:
    """Make the data, or what is missing of it; 0 when done."""
    shards = generate_from_arguments(args, args.out, keep_features=not args.no_features)
    print(f"{args.out}: {len(shards)} shards")
    return 0


def generate_from_arguments(
    args: argparse.Namespace, directory: Path, *, keep_features: bool
) -> list[Path]:
    """`generate_data` for parsed arguments; prompts keep away from all evaluation rows."""
    recipe = GenerationRecipe(
        pretrained=args.pretrained,
        revision=describe(args.pretrained).revision,
        prompts=args.prompts,
        seed=args.data_seed,
        max_new_tokens=args.max_new_tokens,
        batch_size=args.generation_batch,
        sampled_share=args.sampled_share,
    )
    on_cpu = resolve_device(args.device) == "cpu"
    return generate_data(
        directory,
        recipe,
        device=args.device,
        workers=(args.workers or os.cpu_count() or 1) if on_cpu else 1,
        keep_features=keep_features,
        excluded=evaluation_texts(),
    )


def evaluation_texts() -> list[str]:
    """Turns of the packaged mini set and, where TSS_BENCH_DATA is set, of the official rows."""
    texts = []
    for path in sorted(MINI_DIRECTORY.glob("*.jsonl")):
        rows = parse_jsonl(path.read_bytes(), path.name)
        texts += [turn for _, row in rows for turn in row.get("turns", [])]
    if os.environ.get(DATA_VARIABLE, "").strip():
        for domain in DOMAINS:
            texts += [turn for row in resolve(domain)[0] for turn in row.turns]
    return texts


def plan_shards(lengths: Sequence[int], recipe: GenerationRecipe) -> list[list[int]]:
    """Prompt indices of each shard: prompts of similar length together, shards shuffled.

    Shuffled so that the first shards of an unfinished run are a fair sample of the recipe.
    """
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    size = recipe.batch_size
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
    lines = (directory / PROMPTS).read_text("utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def read_recipe(directory: Path) -> dict[str, Any]:
    """What the data in a directory was made from; raises ValueError when it holds none."""
    try:
        recipe: dict[str, Any] = json.loads((directory / RECIPE).read_text("utf-8"))
    except FileNotFoundError as error:
        raise ValueError(
            f"{directory} holds no self-generated data (no {RECIPE}); name a directory that "
            "`tss-bench train eagle` filled, or leave --data out to make one"
        ) from error
    return recipe


def read_answers(path: Path) -> Answers:
    """Read one shard, without hidden states."""
    stored = load_file(path)
    lengths = stored["lengths"].tolist()
    ids = list(stored["ids"].long().split([total for total, _ in lengths]))
    return Answers(ids, [prompt for _, prompt in lengths], stored["sampled"].bool().tolist())


def read_features(path: Path) -> Any:
    """The hidden states of a shard's rows, one after the other, as a lazy slice [n, H]."""
    return safe_open(path, framework="pt").get_slice("features")


def write_features(path: Path, rows: Sequence[Tensor]) -> None:
    _save({"features": torch.cat(list(rows)).to(torch.bfloat16)}, path)


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
    _save(stored, path)


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of one user message in the tokenizer's chat template; plain text for a base model."""
    if tokenizer.chat_template is None:
        return list(tokenizer(text + "\n\n")["input_ids"])
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    return list(tokenizer(str(rendered), add_special_tokens=False)["input_ids"])


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids that end an answer."""
    config = getattr(model, "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    return frozenset(i for i in [*listed, tokenizer.eos_token_id] if i is not None)


@torch.inference_mode()
def answer_batch(
    target: Target,
    prompts: Sequence[Sequence[int]],
    *,
    sampled: Sequence[bool],
    max_new_tokens: int,
    eos: frozenset[int],
    generator: torch.Generator,
    keep_features: bool = True,
) -> Answers:
    """Answer all prompts at once, row i greedily or at temperature 1.

    The end id belongs to the answer. Prompts are padded on the right and the gap is masked, so
    that the prompt pass needs no mask. Raises ValueError for a prompt that is empty or leaves
    no room in the context.
    """
    longest = max(map(len, prompts))
    if not min(map(len, prompts)) or longest + max_new_tokens > target.context_length:
        raise ValueError(
            f"prompts of 1 … {target.context_length - max_new_tokens} tokens fit this target "
            f"with {max_new_tokens} new ones, got {min(map(len, prompts))} … {longest}"
        )
    batch = _Batch(target, prompts, sampled, generator, max_new_tokens, keep_features)
    for step in range(max_new_tokens):
        alive = batch.choose(eos)
        if not alive or step == max_new_tokens - 1:
            break
        batch.advance()
    return batch.answers()


class _Batch:
    """The rows of one batch while they grow; finished rows are taken out from time to time."""

    def __init__(
        self,
        target: Target,
        prompts: Sequence[Sequence[int]],
        sampled: Sequence[bool],
        generator: torch.Generator,
        max_new_tokens: int,
        keep_features: bool,
    ) -> None:
        device = target.device
        self._target = target
        self._skip = SkipSet.dense(target.num_layers)
        self._generator = generator
        self._sampled = list(sampled)
        self._prompts = [list(prompt) for prompt in prompts]
        self._new: list[list[int]] = [[] for _ in prompts]
        self._rows = list(range(len(prompts)))
        self._done = [False] * len(prompts)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = int(lengths.max())
        ids = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
        self._cache = target.new_cache(longest + max_new_tokens, batch=len(prompts))
        hidden = target.prefill(ids, self._cache, self._skip)
        self._hidden = hidden[torch.arange(len(prompts), device=device), lengths - 1]
        self._positions = lengths
        self._seen = torch.arange(longest, device=device) < lengths[:, None]
        self._features: list[list[Tensor]] | None = None
        if keep_features:
            kept = hidden.to("cpu", torch.bfloat16)
            self._features = [[kept[i, : len(p)].clone()] for i, p in enumerate(prompts)]

    def choose(self, eos: frozenset[int]) -> bool:
        """Give every unfinished row its next id; whether any row is left."""
        logits = self._target.logits(self._hidden).float()
        self._next = logits.argmax(dim=-1)
        warm = [i for i, row in enumerate(self._rows) if self._sampled[row]]
        if warm:
            chances = logits[warm].softmax(dim=-1).cpu()
            picks = torch.multinomial(chances, 1, generator=self._generator)[:, 0]
            self._next[warm] = picks.to(self._next.device)
        for row, token in zip(self._rows, self._next.tolist(), strict=True):
            if not self._done[row]:
                self._new[row].append(token)
                self._done[row] = token in eos
        self._compact()
        return bool(self._rows)

    def advance(self) -> None:
        """Run the chosen ids through the target."""
        one = torch.ones(len(self._rows), 1, dtype=torch.bool, device=self._seen.device)
        self._seen = torch.cat((self._seen, one), dim=1)
        hidden = self._target.forward(
            self._next[:, None],
            self._positions[:, None],
            self._seen[:, None],
            self._cache,
            self._skip,
        )
        self._cache.advance(1)
        self._positions = self._positions + 1
        self._hidden = hidden[:, 0]
        if self._features is not None:
            kept = self._hidden.to("cpu", torch.bfloat16)
            for i, row in enumerate(self._rows):
                if not self._done[row]:
                    self._features[row].append(kept[i : i + 1].clone())

    def answers(self) -> Answers:
        ids = [torch.tensor(p + new) for p, new in zip(self._prompts, self._new, strict=True)]
        features = None
        if self._features is not None:
            features = [torch.cat(parts) for parts in self._features]
        return Answers(ids, [len(p) for p in self._prompts], self._sampled, features)

    def _compact(self) -> None:
        left = [i for i, row in enumerate(self._rows) if not self._done[row]]
        if left and len(left) > (1 - _COMPACT_AT) * len(self._rows):
            return
        self._rows = [self._rows[i] for i in left]
        if not left:
            return
        index = torch.tensor(left, device=self._seen.device)
        self._next, self._positions = self._next[index], self._positions[index]
        self._seen = self._seen[index]
        self._cache = _rows_of(self._cache, index)


def _rows_of(cache: KVCache, rows: Tensor) -> KVCache:
    """A cache with the chosen sequences of another one."""
    layers, _, _, heads, capacity, dim = cache.data.shape
    smaller = KVCache(
        num_layers=layers,
        kv_heads=heads,
        head_dim=dim,
        capacity=capacity,
        dtype=cache.data.dtype,
        device=cache.data.device,
        batch=len(rows),
    )
    past = slice(0, cache.length)
    for layer in range(layers):
        smaller.data[layer, ..., past, :] = cache.data[layer][:, rows, :, past]
    smaller.length = cache.length
    return smaller


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
        self._eos = end_ids(model, self._tokenizer)
        self._texts = read_prompts(Path(job.directory))

    def make(self, index: int, members: Sequence[int]) -> int:
        """Write one shard; the number of its new tokens."""
        recipe = self._job.recipe
        answers = answer_batch(
            self._target,
            [encode_prompt(self._tokenizer, self._texts[i]) for i in members],
            sampled=[_is_sampled(recipe, i) for i in members],
            max_new_tokens=recipe.max_new_tokens,
            eos=self._eos,
            generator=torch.Generator().manual_seed(recipe.seed * 1_000_003 + index),
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
    with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(job,)) as pool:
        futures = [pool.submit(_make_shard, index, shards[index]) for index in missing]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_worker: _Worker | None = None


def _start_worker(job: _Job) -> None:
    global _worker
    torch.set_num_threads(1)
    _worker = _Worker(job)


def _make_shard(index: int, members: Sequence[int]) -> int:
    assert _worker is not None
    return _worker.make(index, members)


def _claim(directory: Path, recipe: GenerationRecipe) -> None:
    """Write the recipe into a new directory, or check that it is the one of an old directory."""
    if not (directory / RECIPE).is_file():
        _write_text(directory / RECIPE, json.dumps(asdict(recipe), indent=2) + "\n")
        return
    found = read_recipe(directory)
    wrong = [key for key, value in asdict(recipe).items() if found.get(key) != value]
    if wrong:
        raise ValueError(
            f"{directory} holds data with another {wrong[0]} ({found.get(wrong[0])!r}, asked for "
            f"{getattr(recipe, wrong[0])!r}); use the same settings or another directory"
        )


def _write_text(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(path)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    save_file(tensors, unfinished)
    unfinished.replace(path)
