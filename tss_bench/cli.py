"""The command `tss-bench`: finds the command asked for, runs it, turns errors into one line.

The commands are the rows of tss_bench.commands; only the chosen row's module is imported, so that
`tss-bench --help` is quick.

May import: anything of tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import difflib
import os
import select
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn, TextIO

from tss_bench import __version__
from tss_bench.commands import COMMANDS, GROUPS, Command

ERROR_CODE = 2
CLOSED_PIPE_CODE = 141
"""What a shell says of a program that wrote to a closed pipe (128 + SIGPIPE)."""
TRACEBACK_FLAG = "--traceback"


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
        args, unknown = build_parser(words).parse_known_args(words)
        if unknown:
            _refuse(args.parser, unknown)
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


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """End with the usage of the command that was asked for, and the option that was meant."""
    known = [name for action in parser._actions for name in action.option_strings]
    typed = next((word for word in unknown if word.startswith("-")), "").partition("=")[0]
    near = difflib.get_close_matches(typed, known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    parser.error(f"unknown arguments: {' '.join(unknown)}{meant}")


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
    parser.set_defaults(run=command, parser=parser)
    if chosen:
        command.fill(parser)


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
