"""`tss-bench export`: a target without its skipped blocks, as a checkpoint for any server.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tss_bench import __version__, weights
from tss_bench.domains import DomainMap, domain_of
from tss_bench.training.records import source_state
from tss_bench.types import SkipSet
from tss_bench.weights.export import check_free, export_model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench export`."""
    parser.add_argument(
        "--pretrained",
        default=weights.DEFAULT_MODEL,
        help="a packaged name, a hub id or a directory; a LoRA is merged (default: %(default)s)",
    )
    parser.add_argument("--revision", help="commit, branch or tag of a hub id")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--skip", help="layers to remove, 0-based: 3,10,25; or dense, to remove none"
    )
    which.add_argument(
        "--domain-map", help="take the set of --task from this map, a file or a packaged name"
    )
    parser.add_argument("--task", help="a task or a domain of --domain-map")
    parser.add_argument(
        "--dtype",
        choices=weights.DTYPES,
        default="auto",
        help="of the weights; auto, the default: as stored",
    )
    parser.add_argument("--out", required=True, help="a new or empty directory")


def run(args: argparse.Namespace) -> None:
    """Write the checkpoint. Raises ValueError for whatever in `args` cannot be exported."""
    out = Path(args.out).expanduser()
    check_free(out)
    if (args.task is None) != (args.domain_map is None):
        raise ValueError(
            "--task and --domain-map go together: the map has a set for each of its tasks"
        )
    info = weights.describe(args.pretrained, args.revision)
    skip, origin = _chosen(args, info)
    provenance: dict[str, Any] = {
        "tss_bench": __version__,
        "commit": source_state(),
        "model": info.id,
        "revision": info.revision,
        "base": info.base,
        "num_layers": info.num_layers,
        "skip": list(skip),
        "kept_layers": list(skip.active),
        "dtype": args.dtype,
        "equals": "the target with this skip set under scope all",
        **origin,
    }
    export_model(
        args.pretrained,
        skip,
        out,
        dtype=args.dtype,
        revision=args.revision,
        provenance=provenance,
    )
    size = sum(path.stat().st_size for path in out.glob("*.safetensors"))
    print(
        f"{out}: {info.id} without layers {skip}, {len(skip.active)} of {info.num_layers} left, "
        f"{size / 1e6:.0f} MB; equals the target under scope all (checked)"
    )


def _chosen(args: argparse.Namespace, info: weights.ModelInfo) -> tuple[SkipSet, dict[str, Any]]:
    """The set, and for the record where it comes from."""
    if args.domain_map is None:
        return SkipSet.parse(args.skip, info.num_layers), {}
    found = DomainMap.load(args.domain_map)
    found.require(info.id, info.num_layers)
    name = args.task if args.task in found.domains else domain_of(args.task) or ""
    if name not in found.domains:
        raise ValueError(
            f"domain map {args.domain_map} has neither task nor domain {args.task}; it has "
            f"{', '.join(found.domains) or 'none'}"
        )
    skip = found.domains[name].skip
    if not skip:
        raise ValueError(
            f"domain map {args.domain_map} keeps {name} dense, so there is nothing to remove; "
            f"--skip dense exports the whole model"
        )
    if found.scope != "all":
        print(
            f"note: the map was found with scope {found.scope}, where prompts are read by all "
            f"layers; the exported model reads them without {skip} too, so its answers differ",
            flush=True,
        )
    record = {"drafter": found.drafter, "scope": found.scope, "domain": name}
    return skip, {"map": record}
