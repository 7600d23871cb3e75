"""`tss-bench data show`: where the rows of each domain come from.

May import: tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse

from tss_bench.data.resolve import resolve
from tss_bench.domains import DOMAINS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench data show`."""
    parser.add_argument("domain", nargs="?", help="one domain; all of them without it")


def run(args: argparse.Namespace) -> None:
    """Print where the rows of each domain come from and how many there are.

    A domain without rows is part of the report, unless it is the one asked for.
    """
    for domain in [args.domain] if args.domain else DOMAINS:
        try:
            rows, source = resolve(domain)
        except ValueError as error:
            if args.domain:
                raise
            print(f"{domain:<16}none      {' '.join(str(error).split())}")
            continue
        note = f" ({source.note})" if source.note else ""
        print(f"{domain:<16}{source.kind:<10}{len(rows):>6} rows  {source.path}{note}")
