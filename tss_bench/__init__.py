"""tss_bench: a benchmark harness for target-side sparsification of speculative decoding.

May import: nothing, so that Python's start-up stays quick.
"""

__version__ = "0.1.0"
