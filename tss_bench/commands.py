"""The table of the commands of `tss-bench`; a row's module is imported when the row is chosen.

May import: anything of tss_bench (layer L3 of the design), by name in a row.
"""

from __future__ import annotations

import argparse
import importlib
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """`tss-bench <group> <name>`: `module` of tss_bench has the functions `run` and `arguments`.

    An empty name makes a command of the group itself: `tss-bench <group>`. `arguments` is None
    for a command that takes none. A call runs the command, and raises where it fails.
    """

    group: str
    name: str
    help: str
    module: str
    run: str = "run"
    arguments: str | None = "add_arguments"

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""
        if self.arguments is not None:
            getattr(self._load(), self.arguments)(parser)

    def __call__(self, args: argparse.Namespace) -> None:
        getattr(self._load(), self.run)(args)

    def _load(self) -> object:
        return importlib.import_module(f"tss_bench.{self.module}")


GROUPS = {
    "generate": "answer one prompt and show which ids were accepted drafts",
    "data": "evaluation data and training text",
    "domains": "domain maps: which layers each domain skips",
    "search": "find the layers that each domain of a target can skip, on its calibration rows",
    "run": "native and sparse adapters side by side on the test rows, into lm-eval's result files",
    "spec-bench": "answer files of Spec-Bench",
    "leaderboard": "tables, pictures and one HTML page of result files, those of plain lm_eval too",
    "audit": "what speaks against the figures of result files",
    "bench": "measurements: speed, interleaved in one process, and what skipping layers costs",
    "train": "draft heads, draft trees and targets that tolerate skipping",
    "export": "write a target without its skipped layers as an ordinary Hugging Face checkpoint",
}

COMMANDS = (
    Command("generate", "", GROUPS["generate"], "generate_command"),
    Command("data", "show", "where the rows of each domain come from", "data_report"),
    Command(
        "data",
        "generate",
        "let a model answer the packaged prompt recipe: text to train on",
        "training.self_generation",
    ),
    Command(
        "data",
        "build-sam",
        "a corpus as a static suffix automaton, for the adapters *_samd",
        "build_sam",
    ),
    Command(
        "domains", "list", "the packaged domain maps", "map_report", "list_maps", arguments=None
    ),
    Command(
        "domains", "show", "what a domain map says", "map_report", "show_map", "add_show_arguments"
    ),
    Command(
        "domains",
        "make",
        "search all packaged maps of a target: EAGLE and Token Recycling, every strategy and task",
        "packaged_maps",
    ),
    Command(
        "domains",
        "route-test",
        "how well router=knn finds the domains of test rows, and what it costs",
        "route_test",
    ),
    Command("search", "", GROUPS["search"], "search_command"),
    Command("run", "", GROUPS["run"], "run_command"),
    Command(
        "spec-bench",
        "compare",
        "speed and accept length of one answer file against another, by category",
        "report.spec_bench",
        "run_compare",
        "add_compare_arguments",
    ),
    Command(
        "leaderboard",
        "",
        GROUPS["leaderboard"],
        "report.command",
        "leaderboard",
        "add_leaderboard_arguments",
    ),
    Command("audit", "", GROUPS["audit"], "report.command", "print_audit", "add_audit_arguments"),
    Command("bench", "engine", "our decoding against Hugging Face", "bench", "run_engine"),
    Command("bench", "domains", "the drafters on the Spec-Bench domains", "bench_domains"),
    Command(
        "bench",
        "lossless",
        "whether speculative answers equal those of plain decoding",
        "bench",
        "run_lossless",
    ),
    Command(
        "bench",
        "skips",
        "what skipped layers cost in metric and accept length, paired by row (no speeds)",
        "tolerance",
    ),
    Command(
        "bench",
        "heads",
        "accept length of EAGLE heads on the same answers, paired by row (no speeds)",
        "bench_heads",
    ),
    Command(
        "bench",
        "evaluator",
        "seconds a skip set takes in a search, batched and row after row",
        "bench_evaluator",
    ),
    Command(
        "bench",
        "layerskip",
        "self-speculation against Hugging Face's assistant_early_exit",
        "bench_layerskip",
    ),
    Command(
        "bench",
        "sam",
        "microseconds a token of the suffix automata, by length of the text (no model)",
        "bench_sam",
    ),
    Command(
        "bench",
        "fidelity",
        "how close a target with skipped layers or early exits stays to a reference",
        "fidelity",
    ),
    Command(
        "train",
        "tree",
        "derive a Token Recycling tree from a target's answers",
        "training.draft_tree",
    ),
    Command("train", "eagle", "train an EAGLE head for a target", "training.eagle"),
    Command(
        "train", "layerskip", "train a target that tolerates skipped blocks", "training.layerskip"
    ),
    Command("export", "", GROUPS["export"], "export_command"),
)
