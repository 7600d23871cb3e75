"""Where weights and maps come from: settings as flags, the command that gives them again, commit.

May import: the standard library, tss_bench (its version).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from tss_bench import __version__

S = TypeVar("S")

# Arguments that name places of one machine; they have no bearing on the outcome.
PLACES = frozenset({"out", "data", "device", "workers", "smoke"})


def add_settings(parser: Any, settings: type, texts: Mapping[str, str]) -> None:
    """One flag for each field of a settings dataclass, with its default and a text."""
    for field in fields(settings):
        flag = "--" + field.name.replace("_", "-")
        default: Any = field.default
        told = f"{texts[field.name]} (default {default})"
        parser.add_argument(flag, type=type(default), default=default, help=told)


def read_settings(args: argparse.Namespace, settings: type[S]) -> S:
    """The settings that the flags of `add_settings` gave; raises what the dataclass raises."""
    names = [field.name for field in fields(settings)]  # type: ignore[arg-type]
    return settings(**{name: getattr(args, name) for name in names})


def command_line(
    name: str,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    args: argparse.Namespace,
    places: Collection[str] = PLACES,
) -> str:
    """The command that gives the same outcome again, without the places of this machine."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = [f"tss-bench {name}", "--out OUT"]
    for action in parser._actions:
        value = getattr(args, action.dest, action.default)
        if action.dest not in places and value != action.default:
            flag = action.option_strings[0]
            words.append(flag if action.nargs == 0 else f"{flag} {value}")
    if getattr(args, "data", None) is not None:
        words.append("--data" + " DATA" * len(args.data))
    return " ".join(words)


def library_versions(*more: str) -> dict[str, str]:
    """The versions of tss_bench, torch, transformers and the packages `more`."""
    return {
        "tss_bench": __version__,
        **{name: version(name) for name in ("torch", "transformers", *more)},
    }


def source_commit() -> str | None:
    """The commit of the source tree that this module lies in, None where git does not track it.

    A package that lies below another project's tree, installed or ignored, has no commit.
    """
    tracked = _git("ls-files", "--error-unmatch", "--", str(Path(__file__).resolve()))
    return _git("rev-parse", "HEAD") if tracked else None


def source_state() -> str | None:
    """The commit of the source tree, with `+changes-` and a digest where its code was changed."""
    commit = source_commit()
    code = ("tss_bench", "model_adapters", "tasks")
    changes = _git("status", "--porcelain", "--untracked-files=no", "--", *code)
    if not commit or not changes:
        return commit
    difference = _git("diff", "--binary", "--no-ext-diff", "--no-color", "HEAD", "--", *code) or ""
    return f"{commit}+changes-{hashlib.sha256(difference.encode()).hexdigest()[:8]}"


def _git(*words: str) -> str | None:
    """What git says of this source tree; None where there is no git or no tree."""
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    command = ["git", "-C", str(root), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
