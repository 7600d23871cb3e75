"""Domain maps in tests.

May import: tss_bench.
"""

from __future__ import annotations

from dataclasses import replace

from tss_bench.domains import DomainMap


def without_seconds(found: DomainMap) -> DomainMap:
    """The map without what its searches took and where: two searches of one outcome are equal."""
    search = {
        name: {key: value for key, value in record.items() if key not in ("seconds", "machine")}
        for name, record in found.provenance["search"].items()
    }
    return replace(found, provenance={**found.provenance, "search": search})
