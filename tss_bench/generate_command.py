"""`tss-bench generate`: one answer on the terminal, its accepted drafts in colour, and its counts.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_adapters.adapters import find_adapter
from model_adapters.arguments import AdapterError, split_arguments
from tss_bench.answer_view import comparison, comparison_text, record, step_text, summary
from tss_bench.api import DEFAULT_ADAPTER, AnswerOptions, Decoder, Stream, prepare

PLAIN = "native_ar"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench generate`."""
    parser.epilog = (
        "Green text are accepted drafts, the rest are the target's own ids. Without --prompt and "
        "--prompt-file the prompt is read from standard input."
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", help="the prompt: one turn of a user")
    prompt.add_argument("--prompt-file", help="a file with the prompt; - is standard input")
    parser.add_argument(
        "--model", default=DEFAULT_ADAPTER, help=f"lm-eval name (default {DEFAULT_ADAPTER})"
    )
    parser.add_argument("--model_args", default="", help="arguments as in lm_eval")
    parser.add_argument("--task", help="domain or task whose skip set is used")
    parser.add_argument("--skip-layers", help="blocks to skip instead: 3+25+30 or dense")
    parser.add_argument("--max-new-tokens", type=int, help="limit in ids (default 256)")
    parser.add_argument("--temperature", type=float, help="0 (default) is greedy")
    parser.add_argument("--seed", type=int, help="of the sampling (default 0)")
    parser.add_argument("--stop", action="append", help="text that ends the answer; repeatable")
    parser.add_argument(
        "--raw", action="store_true", help="give a chat model the prompt without its template"
    )
    parser.add_argument(
        "--compare", action="store_true", help=f"run {PLAIN} on the same prompt, too"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    color = parser.add_mutually_exclusive_group()
    color.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (default): on a terminal, unless NO_COLOR is set",
    )
    color.add_argument("--no-color", dest="color", action="store_const", const="never")


def run(args: argparse.Namespace) -> None:
    """Answer the prompt and print it. Raises AdapterError for bad input before weights load."""
    prompt, options = _prompt(args), _options(args)
    given = split_arguments(args.model_args)
    decoder = prepare(args.model, **given)
    plain = _plain(args, given) if args.compare else None
    stream = decoder.stream(prompt, **options)
    color = use_color(args.color)
    if not args.json:
        _show(stream, color)
    answer = stream.answer
    adapter = decoder.adapter
    target = adapter.info.id
    found = None
    if plain is not None:
        other = plain.load(decoder).generate(prompt, **_without_skip(options))
        default = adapter.arguments.temperature
        temperature = default if args.temperature is None else args.temperature
        found = comparison(answer, other, adapter.dtype, temperature)
    if args.json:
        line = record(answer, target, adapter.dtype, str(adapter.device))
        print(json.dumps({**line, "compare": found} if found else line, ensure_ascii=False))
        return
    print(f"\n{summary(answer, target)}")
    if found:
        print(comparison_text(found, answer.model))


def use_color(wish: str) -> bool:
    """`always` and `never` decide; `auto` is a terminal without NO_COLOR (no-color.org)."""
    if wish != "auto":
        return wish == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _show(stream: Stream, color: bool) -> None:
    for step in stream:
        print(step_text(step, color), end="", flush=True)
    print()


def _prompt(args: argparse.Namespace) -> str:
    """The prompt as given; the last line break of a file is none of it."""
    if args.prompt is not None:
        return str(args.prompt)
    if args.prompt_file in (None, "-"):
        if args.prompt_file is None and sys.stdin.isatty():
            raise AdapterError("no prompt; give --prompt TEXT or --prompt-file FILE, or pipe it in")
        return sys.stdin.read().removesuffix("\n")
    try:
        return Path(args.prompt_file).read_text(encoding="utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise AdapterError(f"{args.prompt_file} is no UTF-8 text; give --prompt TEXT") from None
    except OSError as error:
        raise AdapterError(f"--prompt-file {args.prompt_file}: {error.strerror}") from None


def _options(args: argparse.Namespace) -> AnswerOptions:
    return {
        "max_new_tokens": args.max_new_tokens,
        "temperature": args.temperature,
        "seed": args.seed,
        "task": args.task,
        "skip_layers": args.skip_layers,
        "stop": args.stop,
        "chat": not args.raw,
    }


def _without_skip(options: AnswerOptions) -> AnswerOptions:
    return {**options, "skip_layers": None, "task": None}


def _plain(args: argparse.Namespace, given: Mapping[str, Any]) -> Decoder:
    """Plain decoding with those of the arguments that it takes."""
    if args.model == PLAIN:
        raise AdapterError(f"--compare holds a model against {PLAIN}; name another --model")
    takes = find_adapter(PLAIN).allowed_arguments()
    return prepare(PLAIN, **{name: value for name, value in given.items() if name in takes})
