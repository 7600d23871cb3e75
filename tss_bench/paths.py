"""Where the user's cache is: one place for models and data.

May import: the standard library; platformdirs inside the function (layer L0 of the design).
"""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "TSS_BENCH_CACHE"


def cache_dir() -> Path:
    """`$TSS_BENCH_CACHE`, else the platform's user cache directory for `tss_bench`."""
    chosen = os.environ.get(CACHE_VARIABLE, "").strip()
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("tss_bench"))
