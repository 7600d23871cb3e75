"""The command `tss-bench`: finds the command asked for, runs it, turns errors into one line.

A command is a row of `COMMANDS` with two functions: one that adds its arguments to a parser, one
that runs. Only the chosen row's functions are called, and modules that load torch are imported
inside them, so `tss-bench --help` is quick.

May import: anything of tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from tss_bench import __version__
from tss_bench.map_report import add_show_arguments, list_maps, show_map

ERROR_CODE = 2
CLOSED_PIPE_CODE = 141
"""What a shell says of a program that wrote to a closed pipe (128 + SIGPIPE)."""
TRACEBACK_FLAG = "--traceback"

Arguments = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], None]


@dataclass(frozen=True)
class Command:
    """`tss-bench <group> <name>`; `run` raises where it fails.

    An empty name makes a command of the group itself: `tss-bench <group>`.
    """

    group: str
    name: str
    help: str
    run: Run
    add_arguments: Arguments = lambda parser: None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 is success, 2 bad input, told in one line on stderr.

    With `--traceback`, anywhere among the words, the traceback comes before that line. Where the
    reader of the output has gone, as in `tss-bench … | head`, it ends quietly with 141.
    """
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _leave_closed_pipes():
            raise
        return CLOSED_PIPE_CODE


def _run(argv: Sequence[str] | None) -> int:
    given = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in given if word != TRACEBACK_FLAG]
    traced = words != given
    try:
        args = build_parser(words).parse_args(words)
        args.run(args)
    except Exception as error:
        if not is_input_error(error) or isinstance(error, BrokenPipeError):
            raise
        if traced:
            traceback.print_exception(error)
        hint = "" if traced or is_own_error(error) else f" ({TRACEBACK_FLAG} shows where)"
        print(f"tss-bench: error: {one_line(error)}{hint}", file=sys.stderr)
        return ERROR_CODE
    return 0


def _leave_closed_pipes() -> bool:
    """Turn outputs that nobody reads any more to nowhere; whether there was one.

    What is left in their buffers would be written, and fail again, when Python ends.
    """
    closed = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
    for stream in closed:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    return bool(closed)


def _has_no_reader(stream: TextIO) -> bool:
    try:
        stream.flush()
        pipe = stream.fileno()
    except BrokenPipeError:
        return True
    except (OSError, ValueError):
        return False
    if not hasattr(select, "poll"):  # Windows
        return False
    # An unbuffered stream has nothing left whose writing could fail.
    poll = select.poll()
    poll.register(pipe, 0)
    return any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Parser of all commands; only the one that `words` begin with has its arguments."""
    parser = argparse.ArgumentParser(
        prog="tss-bench",
        description="Target-side sparsification of speculative decoding: data, maps, training, "
        "speed. Models and tasks run through lm-eval: "
        "lm_eval --model tss_eagle --tasks specbench_translation",
    )
    parser.add_argument("--version", action="version", version=f"tss-bench {__version__}")
    parser.add_argument(
        TRACEBACK_FLAG, action="store_true", help="show where an error was raised, too"
    )
    groups = parser.add_subparsers(dest="group", metavar="COMMAND", required=True)
    for group, help_text in GROUPS.items():
        group_parser = groups.add_parser(group, help=help_text, description=help_text)
        commands = [row for row in COMMANDS if row.group == group]
        if not commands[0].name:
            _fill(group_parser, commands[0], chosen=list(words[:1]) == [group])
            continue
        names = group_parser.add_subparsers(dest="name", metavar="WHAT", required=True)
        for command in commands:
            leaf = names.add_parser(command.name, help=command.help, description=command.help)
            _fill(leaf, command, chosen=list(words[:2]) == [group, command.name])
    return parser


def _fill(parser: argparse.ArgumentParser, command: Command, *, chosen: bool) -> None:
    parser.set_defaults(run=command.run)
    if chosen:
        command.add_arguments(parser)


def is_input_error(error: Exception) -> bool:
    """Whether the message is meant for the user; anything else is a bug and keeps its traceback.

    Bugs may hide among the built-in types, so their line names the flag that shows more.
    """
    if isinstance(error, (ValueError, OSError, ImportError)) or type(error) is LookupError:
        return True
    return is_own_error(error)


def is_own_error(error: Exception) -> bool:
    """Whether the error is of a type made here for bad input, so surely no bug."""
    return type(error).__module__.partition(".")[0] in ("tss_bench", "model_adapters")


def one_line(error: Exception) -> str:
    """The error's message without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def show_data(args: argparse.Namespace) -> None:
    """Print where the rows of each domain come from and how many there are.

    A domain without rows is part of the report, unless it is the one asked for.
    """
    from tss_bench.data.resolve import resolve
    from tss_bench.domains import DOMAINS

    for domain in [args.domain] if args.domain else DOMAINS:
        try:
            rows, source = resolve(domain)
        except ValueError as error:
            if args.domain:
                raise
            print(f"{domain:<16}none      {one_line(error)}")
            continue
        note = f" ({source.note})" if source.note else ""
        print(f"{domain:<16}{source.kind:<10}{len(rows):>6} rows  {source.path}{note}")


def _show_data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("domain", nargs="?", help="one domain; all of them without it")


def _make_maps_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import packaged_maps

    packaged_maps.add_arguments(parser)


def make_maps(args: argparse.Namespace) -> None:
    """All packaged maps of a target, see tss_bench.packaged_maps."""
    from tss_bench import packaged_maps

    packaged_maps.run(args)


def _route_test_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import route_test

    route_test.add_arguments(parser)


def test_routes(args: argparse.Namespace) -> None:
    """How well and how fast a router finds domains, see tss_bench.route_test."""
    from tss_bench import route_test

    route_test.run(args)


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import bench

    bench.add_arguments(parser)


def bench_engine(args: argparse.Namespace) -> None:
    """Our decoding against Hugging Face's, see tss_bench.bench."""
    from tss_bench import bench

    bench.run_engine(args)


def bench_lossless(args: argparse.Namespace) -> None:
    """Speculative answers against plain ones, see tss_bench.bench."""
    from tss_bench import bench

    bench.run_lossless(args)


def _bench_domains_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import bench_domains

    bench_domains.add_arguments(parser)


def run_bench_domains(args: argparse.Namespace) -> None:
    """The drafters on the Spec-Bench domains, see tss_bench.bench_domains."""
    from tss_bench import bench_domains

    bench_domains.run(args)


def _bench_skips_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import tolerance

    tolerance.add_arguments(parser)


def bench_skips(args: argparse.Namespace) -> None:
    """What skipping costs in metric and accept length, see tss_bench.tolerance."""
    from tss_bench import tolerance

    tolerance.run(args)


def _bench_evaluator_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import bench_evaluator

    bench_evaluator.add_arguments(parser)


def run_bench_evaluator(args: argparse.Namespace) -> None:
    """Seconds that a skip set takes in a search, see tss_bench.bench_evaluator."""
    from tss_bench import bench_evaluator

    bench_evaluator.run(args)


def _bench_layerskip_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import bench_layerskip

    bench_layerskip.add_arguments(parser)


def run_bench_layerskip(args: argparse.Namespace) -> None:
    """Self-speculation against Hugging Face's, see tss_bench.bench_layerskip."""
    from tss_bench import bench_layerskip

    bench_layerskip.run(args)


def _bench_sam_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import bench_sam

    bench_sam.add_arguments(parser)


def run_bench_sam(args: argparse.Namespace) -> None:
    """Microseconds a token of the suffix automata, see tss_bench.bench_sam."""
    from tss_bench import bench_sam

    bench_sam.run(args)


def _bench_fidelity_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import fidelity

    fidelity.add_arguments(parser)


def bench_fidelity(args: argparse.Namespace) -> None:
    """Divergence and agreement on self-generated text, see tss_bench.fidelity."""
    from tss_bench import fidelity

    fidelity.run(args)


def _generate_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import generate_command

    generate_command.add_arguments(parser)


def generate(args: argparse.Namespace) -> None:
    """One answer and how it was made, see tss_bench.generate_command."""
    from tss_bench import generate_command

    generate_command.run(args)


def _search_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import search_command

    search_command.add_arguments(parser)


def search(args: argparse.Namespace) -> None:
    """Skip sets for the domains of a target, see tss_bench.search_command."""
    from tss_bench import search_command

    search_command.run(args)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import run_command

    run_command.add_arguments(parser)


def run_side_by_side(args: argparse.Namespace) -> None:
    """Native and sparse adapters into lm-eval's files, see tss_bench.run_command."""
    from tss_bench import run_command

    run_command.run(args)


def _spec_bench_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench.report import spec_bench

    spec_bench.add_compare_arguments(parser)


def compare_spec_bench(args: argparse.Namespace) -> None:
    """Two answer files of Spec-Bench, see tss_bench.report.spec_bench."""
    from tss_bench.report import spec_bench

    spec_bench.run_compare(args)


def _train_eagle_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench.training import eagle

    eagle.add_arguments(parser)


def _generate_data_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench.training import self_generation

    self_generation.add_arguments(parser)


def generate_data(args: argparse.Namespace) -> None:
    """Let a model answer the prompt recipe, see tss_bench.training.self_generation."""
    from tss_bench.training import self_generation

    self_generation.run(args)


def _build_sam_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import build_sam

    build_sam.add_arguments(parser)


def run_build_sam(args: argparse.Namespace) -> None:
    """A corpus as a static suffix automaton, see tss_bench.build_sam."""
    from tss_bench import build_sam

    build_sam.run(args)


def _train_tree_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench.training import draft_tree

    draft_tree.add_arguments(parser)


def train_tree(args: argparse.Namespace) -> None:
    """Derive a Token Recycling tree, see tss_bench.training.draft_tree."""
    from tss_bench.training import draft_tree

    draft_tree.run(args)


def train_eagle(args: argparse.Namespace) -> None:
    """Train an EAGLE head, see tss_bench.training.eagle."""
    from tss_bench.training import eagle

    eagle.run(args)


def _train_layerskip_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench.training import layerskip

    layerskip.add_arguments(parser)


def train_layerskip(args: argparse.Namespace) -> None:
    """Train a model that tolerates skipped blocks, see tss_bench.training.layerskip."""
    from tss_bench.training import layerskip

    layerskip.run(args)


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench import export_command

    export_command.add_arguments(parser)


def export(args: argparse.Namespace) -> None:
    """A target without its skipped blocks, see tss_bench.export_command."""
    from tss_bench import export_command

    export_command.run(args)


def _leaderboard_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench.report import command

    command.add_leaderboard_arguments(parser)


def leaderboard(args: argparse.Namespace) -> None:
    """Tables and pictures of result files, see tss_bench.report."""
    from tss_bench.report import command

    command.leaderboard(args)


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    from tss_bench.report import command

    command.add_audit_arguments(parser)


def audit(args: argparse.Namespace) -> None:
    """What speaks against the figures of result files, see tss_bench.report.audit."""
    from tss_bench.report import command

    command.print_audit(args)


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
    Command("generate", "", GROUPS["generate"], generate, _generate_arguments),
    Command(
        "data", "show", "where the rows of each domain come from", show_data, _show_data_arguments
    ),
    Command(
        "data",
        "generate",
        "let a model answer the packaged prompt recipe: text to train on",
        generate_data,
        _generate_data_arguments,
    ),
    Command(
        "data",
        "build-sam",
        "a corpus as a static suffix automaton, for the adapters *_samd",
        run_build_sam,
        _build_sam_arguments,
    ),
    Command("domains", "list", "the packaged domain maps", list_maps),
    Command("domains", "show", "what a domain map says", show_map, add_show_arguments),
    Command(
        "domains",
        "make",
        "search all packaged maps of a target: every drafter, strategy and task",
        make_maps,
        _make_maps_arguments,
    ),
    Command(
        "domains",
        "route-test",
        "how well router=knn finds the domains of test rows, and what it costs",
        test_routes,
        _route_test_arguments,
    ),
    Command("search", "", GROUPS["search"], search, _search_arguments),
    Command("run", "", GROUPS["run"], run_side_by_side, _run_arguments),
    Command(
        "spec-bench",
        "compare",
        "speed and accept length of one answer file against another, by category",
        compare_spec_bench,
        _spec_bench_arguments,
    ),
    Command("leaderboard", "", GROUPS["leaderboard"], leaderboard, _leaderboard_arguments),
    Command("audit", "", GROUPS["audit"], audit, _audit_arguments),
    Command("bench", "engine", "our decoding against Hugging Face", bench_engine, _bench_arguments),
    Command(
        "bench",
        "domains",
        "the drafters on the Spec-Bench domains",
        run_bench_domains,
        _bench_domains_arguments,
    ),
    Command(
        "bench",
        "lossless",
        "whether speculative answers equal those of plain decoding",
        bench_lossless,
        _bench_arguments,
    ),
    Command(
        "bench",
        "skips",
        "what skipped layers cost in metric and accept length, paired by row (no speeds)",
        bench_skips,
        _bench_skips_arguments,
    ),
    Command(
        "bench",
        "evaluator",
        "seconds a skip set takes in a search, batched and row after row",
        run_bench_evaluator,
        _bench_evaluator_arguments,
    ),
    Command(
        "bench",
        "layerskip",
        "self-speculation against Hugging Face's assistant_early_exit",
        run_bench_layerskip,
        _bench_layerskip_arguments,
    ),
    Command(
        "bench",
        "sam",
        "microseconds a token of the suffix automata, by length of the text (no model)",
        run_bench_sam,
        _bench_sam_arguments,
    ),
    Command(
        "bench",
        "fidelity",
        "how close a target with skipped layers or early exits stays to a reference",
        bench_fidelity,
        _bench_fidelity_arguments,
    ),
    Command(
        "train",
        "tree",
        "derive a Token Recycling tree from a target's answers",
        train_tree,
        _train_tree_arguments,
    ),
    Command(
        "train", "eagle", "train an EAGLE head for a target", train_eagle, _train_eagle_arguments
    ),
    Command(
        "train",
        "layerskip",
        "train a target that tolerates skipped blocks",
        train_layerskip,
        _train_layerskip_arguments,
    ),
    Command("export", "", GROUPS["export"], export, _export_arguments),
)
