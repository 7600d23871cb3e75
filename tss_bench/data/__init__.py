"""Evaluation rows: find the files, check them, read them, split them.

May import: the standard library, tss_bench.data; huggingface_hub, pyarrow and platformdirs
inside functions (layer L1 of the design).
"""
