"""A LoRA that PEFT wrote, as a model of its own: recognise it, check it, merge it into its base.

Merged in float32: in bfloat16 an update smaller than a weight's last bit would be lost. PEFT
itself only warns of weights that are missing and passes over those it cannot place.

May import: torch, safetensors, peft (inside functions, so that bad names fail fast), transformers
(types only) and tss_bench.weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tss_bench.weights.cache import WeightsUnavailable
from tss_bench.weights.fingerprint import ADAPTER_CONFIG, ADAPTER_WEIGHTS, weights_fingerprint

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig
    from transformers import PreTrainedModel

_WHOLE_MODEL = re.compile(r"(model[^/]*\.safetensors|pytorch_model[^/]*\.bin)(\.index\.json)?")
_UNMERGEABLE = {
    "alora_invocation_tokens": "works on some tokens only",
    "layer_replication": "repeats layers of its base",
    "modules_to_save": "carries whole modules beside its updates",
    "trainable_token_indices": "carries rows of an embedding",
}
# Other starting points (pissa, olora, corda, loftq …) change the base before the update counts.
_STARTS_ON_THE_BASE = (True, False, None, "gaussian", "eva", "orthogonal")
_BAD_CONFIG = (ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError)


@dataclass(frozen=True)
class Lora:
    """A checked LoRA directory; `base` and `base_revision` are what its config asks for.

    `id` names it in messages and tables; `fingerprint` is of its own two files.
    """

    id: str
    directory: Path
    base: str
    base_revision: str | None
    fingerprint: str

    def revision_on(self, base_revision: str) -> str:
        """SHA-256 that follows the base and the LoRA: either change shows."""
        return hashlib.sha256(f"{base_revision}:{self.fingerprint}".encode()).hexdigest()


def lora_files(names: Iterable[str], where: str) -> list[str]:
    """The files of a LoRA among `names`; none if it is no LoRA.

    Raises ValueError if `where` holds a whole model too: which one is meant, nobody can tell.
    """
    names = set(names)
    if ADAPTER_CONFIG not in names:
        return []
    whole = sorted(name for name in names if _WHOLE_MODEL.fullmatch(name))
    if whole:
        raise ValueError(
            f"{where} holds a LoRA ({ADAPTER_CONFIG}) and a whole model ({whole[0]}); pass a "
            f"directory with one of them"
        )
    return sorted(names & {ADAPTER_CONFIG, ADAPTER_WEIGHTS})


def is_lora(directory: Path) -> bool:
    """Whether `directory` is a LoRA. Raises ValueError if it holds a whole model too."""
    return bool(lora_files((path.name for path in directory.iterdir()), str(directory)))


def read_lora(directory: Path, lora_id: str) -> Lora:
    """The LoRA in `directory`, checked as far as that goes without its base.

    Raises ValueError for a config that cannot be read or names no base, another kind of
    adapter, one that no merge into the base's matrices can hold, and absent or torn weights.
    """
    path = directory / ADAPTER_CONFIG
    try:
        config = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path}: {error}; copy it again") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object; PEFT's save_pretrained writes one")
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base.strip():
        raise ValueError(
            f"{path} has no base_model_name_or_path; set it to the packaged name, hub id or "
            f"directory of the model that the LoRA was trained on"
        )
    revision = config.get("revision") or None
    if revision is not None and not isinstance(revision, str):
        raise ValueError(f"{path}: revision must be a text or null, not {revision!r}")
    _check_kind(path, config)
    if not (directory / ADAPTER_WEIGHTS).is_file():
        raise ValueError(
            f"{directory} has no {ADAPTER_WEIGHTS}; PEFT's save_pretrained writes it (pickles "
            f"are not read)"
        )
    return Lora(lora_id, directory, base.strip(), revision, weights_fingerprint(directory))


def _check_kind(path: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ValueError(f"{path}: peft_type must be LORA, not {kind!r}: only LoRAs are merged")
    reasons = [text for option, text in _UNMERGEABLE.items() if config.get(option)]
    start = config.get("init_lora_weights", True)
    if start not in _STARTS_ON_THE_BASE:
        reasons.append(f"starts from a changed base (init_lora_weights={start!r})")
    if reasons:
        raise ValueError(
            f"the LoRA in {path.parent} {' and '.join(reasons)}, so it is no update to its "
            f"base's matrices; make it a whole model with PEFT (merge_and_unload, "
            f"save_pretrained) and pass that directory"
        )


@contextlib.contextmanager
def looking_for_base(lora: Lora) -> Iterator[None]:
    """An error inside says whose base is looked for and where its name stands; its kind stays."""
    try:
        yield
    except (ValueError, WeightsUnavailable) as error:
        kind = WeightsUnavailable if isinstance(error, WeightsUnavailable) else ValueError
        raise kind(
            f"the base model {lora.base!r} of the LoRA {lora.id!r} cannot be used: {error}. If it "
            f"has another name here, write that as base_model_name_or_path (and its revision or "
            f"null) into {lora.directory / ADAPTER_CONFIG}"
        ) from error


def merge_lora(lora: Lora, model: PreTrainedModel, dtype: torch.dtype | str) -> PreTrainedModel:
    """The base `model` with the LoRA added to its weights, in place; `auto` keeps its dtype.

    Load the base in float32 for a merge without loss. Raises ValueError unless every weight of
    the LoRA has its place and its shape in the base, and every place has its weight.
    """
    working_dtype = model.dtype if isinstance(dtype, str) else dtype
    trainable = {name for name, value in model.named_parameters() if value.requires_grad}
    # What PEFT warns of is an error here.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        merged = _merge(lora, model.float())
    for name, value in merged.named_parameters():
        # Parameters alone: buffers such as rotary frequencies stay float32 at any dtype.
        value.data = value.data.to(working_dtype)
        value.requires_grad_(name in trainable)
    merged.config.dtype = working_dtype
    return merged


def _merge(lora: Lora, model: PreTrainedModel) -> PreTrainedModel:
    from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    state = {k: v.float() for k, v in load_file(lora.directory / ADAPTER_WEIGHTS).items()}
    tied = _tied_modules(model)
    config = _peft_config(lora)
    with _one_error(lora):
        # Empty until the weights come: no random numbers are drawn.
        adapted = PeftModel(model, config, low_cpu_mem_usage=True)
        wanted = get_peft_model_state_dict(adapted, save_embedding_layers=False)
        tuner: Any = adapted.base_model
        targets = set(tuner.targeted_module_names)
    _check_targets(lora, config, targets, tied)
    _check_weights(lora, _shapes(state), _shapes(wanted))
    with _one_error(lora):
        set_peft_model_state_dict(adapted, state, low_cpu_mem_usage=True)
        merged: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    if hasattr(merged, "peft_config"):
        # PEFT 0.18 leaves its mark on a model that it has let go.
        del merged.peft_config
    return merged


def _peft_config(lora: Lora) -> LoraConfig:
    from peft import LoraConfig

    given = json.loads((lora.directory / ADAPTER_CONFIG).read_text("utf-8"))
    unknown = sorted(k for k, v in given.items() if v and k not in LoraConfig.__dataclass_fields__)
    if unknown:
        raise ValueError(
            f"the LoRA {lora.id!r} has the setting {unknown[0]}={given[unknown[0]]!r}, unknown to "
            f"the PEFT here (it was written by PEFT {given.get('peft_version')}); install that"
        )
    with _one_error(lora):
        config = LoraConfig.from_pretrained(str(lora.directory))
        config.init_lora_weights = True
        config.inference_mode = True
    return config


def _tied_modules(model: PreTrainedModel) -> set[str]:
    """Names of modules that share one matrix with another, such as embedding and head."""
    owners = defaultdict(list)
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if weight is not None:
            owners[id(weight)].append(name)
    return {name for names in owners.values() if len(names) > 1 for name in names}


def _check_targets(lora: Lora, config: LoraConfig, found: set[str], tied: set[str]) -> None:
    shared = sorted(found & tied)
    if shared:
        _refuse_fit(
            lora,
            f"it updates {shared[0]}, whose matrix the base uses in {len(tied)} places, so a merge "
            f"would change them all",
        )
    names = config.target_modules
    if names is None or isinstance(names, str):
        return
    absent = sorted(t for t in names if not any(f".{m}".endswith(f".{t}") for m in found))
    if absent:
        _refuse_fit(lora, f"the base has no module {absent[0]!r} of its target_modules")


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in state.items()}


def _check_weights(
    lora: Lora, there: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]
) -> None:
    missing, extra = sorted(wanted.keys() - there.keys()), sorted(there.keys() - wanted.keys())
    problems = []
    if missing:
        problems.append(f"it lacks {len(missing)} weights, first {missing[0]}")
    if extra:
        problems.append(f"{len(extra)} of its weights have no place there, first {extra[0]}")
    bad = sorted(k for k in wanted.keys() & there.keys() if wanted[k] != there[k])
    if bad:
        problems.append(
            f"{len(bad)} of its weights have another shape, first {bad[0]}: {there[bad[0]]} "
            f"instead of {wanted[bad[0]]}"
        )
    if problems:
        _refuse_fit(lora, "; ".join(problems))


@contextlib.contextmanager
def _one_error(lora: Lora) -> Iterator[None]:
    """What PEFT raises for a LoRA that it cannot place becomes one ValueError."""
    try:
        yield
    except _BAD_CONFIG as error:
        _refuse_fit(lora, str(error).strip().split("\n")[0].rstrip("."), error)


def _refuse_fit(lora: Lora, reason: str, cause: BaseException | None = None) -> NoReturn:
    raise ValueError(
        f"the LoRA {lora.id!r} does not fit its base {lora.base!r}: {reason}. Check the base, rank "
        f"and modules in {lora.directory / ADAPTER_CONFIG} against the training"
    ) from cause
