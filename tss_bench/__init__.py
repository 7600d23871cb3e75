"""tss_bench: a benchmark harness for target-side sparsification of speculative decoding.

`tss_bench.generate("…")` and `tss_bench.load()` answer prompts from Python; see tss_bench.api.

May import: nothing, so that Python's start-up stays quick; tss_bench.api once it is asked for.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tss_bench.api import Answer, Decoder, generate, load

__version__ = "0.1.0"

__all__ = ["Answer", "Decoder", "__version__", "generate", "load"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tss_bench import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
