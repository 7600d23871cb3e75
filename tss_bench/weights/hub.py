"""Model files by hub id: one directory and its commit, from the hub or the hub's local cache.

Asks the hub once, with a short timeout, before any of the libraries' long retries can start.
May import: huggingface_hub and tss_bench.weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NoReturn

from tss_bench.weights.cache import WeightsUnavailable, say

HUB_TIMEOUT_S = 5
_MARKS = ("config.json", "adapter_config.json")
_TEXT_SUFFIXES = frozenset({".json", ".txt", ".model", ".jinja", ".tiktoken"})


def describe_files(names: Iterable[str]) -> list[str]:
    """The files among `names` that say what a model is, without its weights."""
    wanted = {"config.json", "tokenizer_config.json", "chat_template.jinja", "chat_template.json"}
    return sorted(wanted & set(names))


def model_files(names: Iterable[str]) -> list[str]:
    """All files a Transformers model is loaded from; safetensors win over pickles."""
    top = [Path(name) for name in names if "/" not in name]
    weights = [p for p in top if p.suffix == ".safetensors" and "consolidated" not in p.name]
    weights = weights or [p for p in top if p.match("pytorch_model*.bin")]
    texts = [p for p in top if p.suffix in _TEXT_SUFFIXES]
    return sorted(path.name for path in (*texts, *weights))


def tokenizer_files(names: Iterable[str]) -> list[str]:
    """The files among `names` that a tokenizer is loaded from; none where there is none."""
    known = {
        "added_tokens.json",
        "chat_template.jinja",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    }
    return sorted(known & set(names))


def code_files(names: Iterable[str]) -> list[str]:
    """Python files of a model with code of its own."""
    return sorted(name for name in names if name.endswith(".py"))


def hub_directory(
    name: str, revision: str | None, select: Callable[[list[str]], list[str]]
) -> tuple[Path, str]:
    """Download the files that `select` picks; returns their local directory and the commit.

    One of them must be config.json, or adapter_config.json for a LoRA. Without a connection the
    hub's local cache is used, if it has the model. Raises ValueError for a name the hub does not
    have or will not give, WeightsUnavailable when out of reach.
    """
    from huggingface_hub import HfApi, hf_hub_download

    # The hub's HTTP library, and so the errors of a dead connection, change with its versions:
    # whatever is no refusal counts as out of reach.
    try:
        found = HfApi().model_info(name, revision=revision, timeout=HUB_TIMEOUT_S)
    except Exception as error:
        _raise_refusal(name, revision, error)
        return _cached_directory(name, revision, error)
    commit = found.sha
    wanted = select([file.rfilename for file in found.siblings or []])
    marks = [mark for mark in _MARKS if mark in wanted]
    if not marks or commit is None:
        raise ValueError(
            f"the hub's {name!r} has no config.json, so it is no Transformers model, and no "
            f"adapter_config.json, so it is no LoRA"
        )
    try:
        places = {file: hf_hub_download(name, file, revision=commit) for file in wanted}
    except Exception as error:
        _raise_refusal(name, revision, error)
        _out_of_reach(name, error)
    return Path(places[marks[0]]).parent, commit


def _raise_refusal(name: str, revision: str | None, error: Exception) -> None:
    """Turn the hub's own 'no' into one ValueError; return for any other trouble."""
    from huggingface_hub import errors

    if isinstance(error, errors.HFValidationError):
        raise ValueError(f"{name!r} is neither a directory nor a Hugging Face model id") from error
    if isinstance(error, errors.GatedRepoError):
        raise ValueError(
            f"the hub does not give {name!r} without consent: accept its licence on its page and "
            f"log in with `hf auth login`"
        ) from error
    if isinstance(error, errors.RevisionNotFoundError):
        raise ValueError(f"the model {name!r} has no revision {revision!r} on the hub") from error
    if isinstance(error, errors.RepositoryNotFoundError):
        raise ValueError(
            f"{name!r} is no directory here and no model on the hub that you may read; check the "
            f"spelling, or log in with `hf auth login` for a private model"
        ) from error


def _cached_directory(name: str, revision: str | None, error: Exception) -> tuple[Path, str]:
    from huggingface_hub import try_to_load_from_cache

    places = [try_to_load_from_cache(name, mark, revision=revision) for mark in _MARKS]
    found = [place for place in places if isinstance(place, str)]
    if not found:
        _out_of_reach(name, error)
    directory = Path(found[0]).parent
    say(f"the hub is out of reach; using the cached commit {directory.name} of {name}")
    return directory, directory.name


def _out_of_reach(name: str, error: Exception) -> NoReturn:
    reason = str(error).strip().split("\n")[0]
    raise WeightsUnavailable(
        f"cannot fetch {name!r} from the hub and it is not in the local cache ({reason}). Connect "
        f"this machine, set HF_ENDPOINT to a mirror, or pass the path of a local directory"
    ) from error
