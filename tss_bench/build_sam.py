"""`tss-bench data build-sam`: a corpus of text files as a static suffix automaton for SAM-Decoding.

May import: tqdm, transformers (types), tss_bench (layer L3 of the design).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from tss_bench import __version__, weights
from tss_bench.decoding.drafters.static_automaton import StaticAutomaton, is_automaton

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DOCUMENTS = {"paragraphs": r"\n[^\S\n]*(?:\n[^\S\n]*)+", "lines": r"\n", "files": None}
"""What parts the documents of a file, by name: blank lines, line ends, nothing."""

_AT_ONCE = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `tss-bench data build-sam`."""
    parser.epilog = (
        "The file is for all targets with this tokenizer: lm_eval --model tss_samd --model_args "
        "sam=FILE. It takes some 45 bytes a token; building takes 200 and 10 microseconds."
    )
    parser.add_argument("corpus", type=Path, nargs="+", help="text files in UTF-8")
    parser.add_argument("--out", type=Path, required=True, help="file to write (safetensors)")
    parser.add_argument(
        "--pretrained", default=weights.DEFAULT_MODEL, help="the target whose tokenizer counts"
    )
    parser.add_argument("--revision", help="of a target on the hub")
    parser.add_argument("--trust-remote-code", action="store_true", help="as for the target")
    parser.add_argument(
        "--documents",
        choices=list(DOCUMENTS),
        default="paragraphs",
        help="what a document is, over whose end no draft runs: paragraphs are parted by blank "
        "lines (default paragraphs)",
    )


def run(args: argparse.Namespace) -> None:
    """Read, tokenise, build, write. Raises ValueError for bad input before anything is built."""
    _check_out(args.out, args.corpus)
    texts = [_read(path) for path in args.corpus]
    documents = [part for text in texts for part in split(text, args.documents)]
    if not documents:
        raise ValueError(
            f"{', '.join(map(str, args.corpus))}: the corpus holds no text; name a file with some"
        )
    tokenizer = weights.load_tokenizer(
        args.pretrained, args.revision, trust_remote_code=args.trust_remote_code
    )
    source = {
        "pretrained": args.pretrained,
        "vocabulary": weights.vocabulary_digest(tokenizer),
        "corpus": json.dumps([path.name for path in args.corpus]),
        "corpus_sha256": hashlib.sha256("\0".join(texts).encode()).hexdigest(),
        "documents": f"{len(documents)} {args.documents}",
        "version": __version__,
    }
    built = StaticAutomaton.build(_ids(documents, tokenizer), source)
    built.save(args.out)
    print(
        f"{args.out}: {built.tokens} ids in {len(documents)} documents, {built.states} states, "
        f"{built.transitions} transitions, {built.nbytes / built.tokens:.1f} bytes an id"
    )


def split(text: str, documents: str) -> list[str]:
    """The documents of a file that hold more than white space; `documents` names a rule."""
    rule = DOCUMENTS[documents]
    parts = [text] if rule is None else re.split(rule, text)
    return [part for part in parts if part.strip()]


def _check_out(out: Path, corpus: Sequence[Path]) -> None:
    """Raises ValueError for a place that must not be written, OSError for one that cannot be."""
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: there is no directory {out.parent}")
    if out.is_dir():
        raise ValueError(f"--out {out} is a directory; name a file in it")
    if out.exists():
        if any(path.exists() and out.samefile(path) for path in corpus):
            raise ValueError(f"--out {out} is a file of the corpus; choose another --out")
        if not is_automaton(out):
            raise ValueError(
                f"--out {out} is there already and no static automaton; choose another --out"
            )
    try:
        tempfile.TemporaryFile(dir=out.parent).close()
    except OSError as error:
        raise OSError(f"--out {out}: cannot write to {out.parent} ({error.strerror})") from error


def _read(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"there is no corpus file {path}")
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8 ({error}); convert it first") from error


def _ids(documents: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Iterator[list[int]]:
    """The ids of each document, without special ids, while a bar counts characters."""
    with tqdm(total=sum(map(len, documents)), desc="build", unit="char", unit_scale=True) as bar:
        for start in range(0, len(documents), _AT_ONCE):
            some = list(documents[start : start + _AT_ONCE])
            encoded = tokenizer(some, add_special_tokens=False, verbose=False)["input_ids"]
            for text, ids in zip(some, encoded, strict=True):
                yield ids
                bar.update(len(text))
