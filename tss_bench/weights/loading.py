"""Find, describe and load a target model: a packaged one by name, a hub id or a directory.

A LoRA is a model too, wherever a name is taken: its base with the LoRA merged into it.

May import: torch, safetensors and transformers (inside functions, so that bad names fail fast) and
tss_bench.weights.
"""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tss_bench.weights.cache import say
from tss_bench.weights.convert import packaged_model_dir, quiet_progress
from tss_bench.weights.default_models import (
    PACKAGED_MODELS,
    PackagedModel,
    packaged_lora,
    packaged_names,
)
from tss_bench.weights.fingerprint import weights_fingerprint
from tss_bench.weights.hub import (
    code_files,
    describe_files,
    hub_directory,
    model_files,
    tokenizer_files,
)
from tss_bench.weights.lora import (
    Lora,
    is_lora,
    looking_for_base,
    lora_files,
    merge_lora,
    read_lora,
)

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

# Where `tss-bench train` puts a model inside its --out.
_TRAINED = ("adapter", "model")
DTYPES = ("bfloat16", "float16", "float32", "auto")


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model before its weights are loaded.

    `id` is the packaged name, the hub id, or the directory's name (of OUT/adapter, OUT's).
    `revision` fingerprints the weights: the GGUF file's SHA-256, the hub commit, or a hash over
    the directory's files; of a LoRA, a hash over its base's revision and its own files, while its
    sizes are the base's.
    `vocab_size` counts the embedding's rows, padded ones included; `is_chat` says that there is
    a chat template. `base` is the id of a LoRA's base, None for a whole model.
    """

    id: str
    num_layers: int
    revision: str
    is_chat: bool
    model_type: str
    hidden_size: int
    vocab_size: int
    context_length: int
    base: str | None = None


def describe(
    name: str, revision: str | None = None, *, trust_remote_code: bool = False
) -> ModelInfo:
    """Shape, kind and revision of a model from its config alone.

    Raises ValueError for a name or revision that does not exist, WeightsUnavailable when the
    hub is needed and out of reach.
    """
    found = _describe(name, revision, trust_remote_code)
    if isinstance(found, Lora):
        return _adapted(_base_of(found, trust_remote_code), found)
    return found


def load_model(
    name: str,
    *,
    dtype: str = "bfloat16",
    device: str = "auto",
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, ModelInfo]:
    """The model in eval mode on its device, its tokenizer and its description.

    `dtype` is one of DTYPES; `device` is auto, cpu, mps, cuda or cuda:N, and falls back to the
    CPU with one printed line where there is no CUDA. Raises as `describe` does, and ValueError
    for a dtype or device that does not exist, files that are no causal LM, and a LoRA that does
    not fit its base. A LoRA is merged in float32; its `dtype=auto` is its base's stored one.
    """
    working_dtype = resolve_dtype(dtype)
    place = resolve_device(device)
    found = _describe(name, revision, trust_remote_code)
    lora = found if isinstance(found, Lora) else None
    info = found if isinstance(found, ModelInfo) else _base_of(found, trust_remote_code)
    whole = name if lora is None else lora.base
    packaged = PACKAGED_MODELS.get(whole)
    if packaged is not None and packaged.notice:
        say(packaged.notice)
    directory = _directory(whole, info.revision, model_files, trust_remote_code)
    tokenizer = read_tokenizer(directory, whole, trust_remote_code)
    read_dtype = "float32" if lora and dtype != "auto" else dtype
    model = _read_model(directory, whole, resolve_dtype(read_dtype), trust_remote_code)
    if lora is not None:
        model, info = merge_lora(lora, model, working_dtype), _adapted(info, lora)
    return model.to(place).eval(), tokenizer, info


def load_tokenizer(
    name: str, revision: str | None = None, *, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer of a model without its weights; of a LoRA its base's. Raises as `load_model`.

    A packaged model is converted first, if it is not yet.
    """
    whole, directory = _without_weights(name, revision, trust_remote_code)
    return read_tokenizer(directory, whole, trust_remote_code)


def load_config(
    name: str, revision: str | None = None, *, trust_remote_code: bool = False
) -> PretrainedConfig:
    """The Transformers config of a model; of a LoRA its base's. As `load_tokenizer`."""
    _, directory = _without_weights(name, revision, trust_remote_code)
    return _read_config(directory, trust_remote_code)


def _without_weights(name: str, revision: str | None, trust_remote_code: bool) -> tuple[str, Path]:
    """A model's name and a directory with its config and tokenizer; of a LoRA those of its base."""

    def select(names: Iterable[str]) -> list[str]:
        return sorted({"config.json", *tokenizer_files(names)} & set(names))

    directory = _directory(name, revision, select, trust_remote_code)
    if not is_lora(directory):
        return name, directory
    lora = read_lora(directory, name)
    base = _base_of(lora, trust_remote_code)
    return lora.base, _directory(lora.base, base.revision, select, trust_remote_code)


def resolve_dtype(dtype: str) -> torch.dtype | str:
    """The torch dtype of a name in DTYPES; `auto` stays and means the stored one."""
    import torch

    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is unknown; use one of {', '.join(DTYPES)}")
    if dtype == "auto":
        return dtype
    found: torch.dtype = getattr(torch, dtype)
    return found


def resolve_device(device: str) -> str:
    """A device that exists here: `auto` prefers CUDA, CUDA without a GPU becomes the CPU."""
    import torch

    kind, _, index = device.partition(":")
    known = kind in ("auto", "cpu", "cuda", "mps") and (
        not index or (kind == "cuda" and index.isdecimal())
    )
    if not known or device.endswith(":"):
        raise ValueError(f"device={device!r} is unknown; use auto, cpu, cuda, cuda:N or mps")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "auto":
        return "cuda" if count else "cpu"
    if kind == "cuda" and not count:
        say(f"no CUDA device here: running on the CPU instead of {device}")
        return "cpu"
    if index and int(index) >= count:
        raise ValueError(f"device={device!r} does not exist: there are cuda:0 to cuda:{count - 1}")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device='mps' is not available here; use auto, cpu or cuda")
    return device


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision not in (None, "main"):
        raise ValueError(
            f"revision={revision!r} does not apply to {name!r}: only models on the hub have "
            f"revisions; leave it out"
        )


def _local_directory(name: str) -> Path | None:
    if not name:
        raise ValueError("the model's name is empty; pass a packaged name, a hub id or a directory")
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists():
        raise ValueError(f"{name!r} is a file; pass the directory that holds config.json")
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise ValueError(f"the model directory {name!r} does not exist")
    return None


def _hub_id(name: str) -> str:
    close = difflib.get_close_matches(name.lower(), packaged_names(), n=1, cutoff=0.6)
    if close and "/" not in name:
        raise ValueError(
            f"unknown model {name!r}; did you mean {close[0]!r}? The names known here are "
            f"{', '.join(packaged_names())}; a hub id or a directory works too"
        )
    return name


def _directory(
    name: str,
    revision: str | None,
    select: Callable[[Iterable[str]], list[str]],
    trust_remote_code: bool,
) -> Path:
    """Where a model's files are; from the hub only those that `select` picks."""
    packaged = PACKAGED_MODELS.get(name)
    if packaged is not None:
        return packaged_model_dir(packaged)
    return _locate(name, revision, select, trust_remote_code)[0]


def _locate(
    name: str,
    revision: str | None,
    select: Callable[[Iterable[str]], list[str]],
    trust_remote_code: bool,
) -> tuple[Path, str | None]:
    """Where the files of a LoRA, a directory or a hub id are, and the commit of a hub id."""

    def wanted(names: list[str]) -> list[str]:
        whole = select(names) + (code_files(names) if trust_remote_code else [])
        return lora_files(names, f"the hub's {name!r}") or whole

    directory = packaged_lora(name) or _local_directory(name)
    if directory is not None:
        return directory, None
    return hub_directory(_hub_id(name), revision, wanted)


def _describe(name: str, revision: str | None, trust_remote_code: bool) -> ModelInfo | Lora:
    """What is known of a whole model, or the LoRA that `name` is."""
    packaged = PACKAGED_MODELS.get(name)
    if packaged is not None:
        _refuse_revision(name, revision)
        return _packaged_info(packaged)
    directory, commit = _locate(name, revision, describe_files, trust_remote_code)
    if commit is None:
        _refuse_revision(name, revision)
    model_id = name if commit else _directory_id(directory)
    if is_lora(directory):
        return read_lora(directory, model_id)
    fingerprint = commit or weights_fingerprint(directory)
    return _read_info(directory, model_id, fingerprint, trust_remote_code)


def _directory_id(directory: Path) -> str:
    """A directory's name; of what training wrote into OUT, OUT's: all of those are alike."""
    trained = directory.name in _TRAINED and directory.parent.name
    return directory.parent.name if trained else directory.name


def _base_of(lora: Lora, trust_remote_code: bool) -> ModelInfo:
    with looking_for_base(lora):
        base = _describe(lora.base, lora.base_revision, trust_remote_code)
        if isinstance(base, Lora):
            raise ValueError("it is a LoRA itself, and LoRAs are not stacked")
    return base


def _adapted(base: ModelInfo, lora: Lora) -> ModelInfo:
    return replace(base, id=lora.id, revision=lora.revision_on(base.revision), base=base.id)


def _packaged_info(model: PackagedModel) -> ModelInfo:
    return ModelInfo(
        id=model.id,
        num_layers=model.num_layers,
        revision=model.sha256,
        is_chat=model.is_chat,
        model_type=model.model_type,
        hidden_size=model.hidden_size,
        vocab_size=model.vocab_size,
        context_length=model.context_length,
    )


def _read_config(directory: Path, trust_remote_code: bool) -> PretrainedConfig:
    from transformers import AutoConfig

    if not (directory / "config.json").is_file():
        raise ValueError(f"{directory} has no config.json; a Transformers model directory has one")
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            directory, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"cannot read {directory / 'config.json'}: {_first_line(error)}"
        ) from error
    return config


def _read_info(directory: Path, model_id: str, revision: str, trust_remote_code: bool) -> ModelInfo:
    config = _read_config(directory, trust_remote_code)
    text_config = config.get_text_config()

    def size(name: str) -> int:
        value = getattr(text_config, name, None)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{directory / 'config.json'} has no {name} of at least 1")
        return value

    return ModelInfo(
        id=model_id,
        num_layers=size("num_hidden_layers"),
        revision=revision,
        is_chat=_has_chat_template(directory),
        model_type=config.model_type,
        hidden_size=size("hidden_size"),
        vocab_size=size("vocab_size"),
        context_length=size("max_position_embeddings"),
    )


def _has_chat_template(directory: Path) -> bool:
    if any((directory / f"chat_template.{kind}").is_file() for kind in ("jinja", "json")):
        return True
    try:
        settings = json.loads((directory / "tokenizer_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def read_tokenizer(
    directory: Path, name: str, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """The tokenizer in `directory`. Raises ValueError calling it `name` if there is none."""
    from transformers import AutoTokenizer

    with _one_error(name):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, trust_remote_code=trust_remote_code
        )
        return tokenizer


def _read_model(
    directory: Path, name: str, dtype: torch.dtype | str, trust_remote_code: bool
) -> Any:
    from transformers import AutoModelForCausalLM

    with _one_error(name), quiet_progress():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, output_loading_info=True, trust_remote_code=trust_remote_code
        )
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise ValueError(
            f"the weights of {name!r} lack {len(missing)} tensors, first {missing[0]}; "
            f"the files are torn or belong to another architecture"
        )
    return model


@contextlib.contextmanager
def _one_error(name: str) -> Iterator[None]:
    """Whatever the libraries raise for bad files becomes one ValueError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(
            f"cannot load {name!r}: {_first_line(error)} (a causal LM in Transformers form is "
            f"needed: config.json, *.safetensors, tokenizer files)"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
