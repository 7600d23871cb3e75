"""tss_bench: a benchmark harness for target-side sparsification of speculative decoding."""

__version__ = "0.1.0"
