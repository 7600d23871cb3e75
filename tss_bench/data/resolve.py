"""Find the rows of a domain: TSS_BENCH_DATA, the user's cache, a pinned download, the mini set.

`TSS_BENCH_DATA` is a directory with `specbench/question.jsonl`, `nq_open/validation.jsonl` and
`mmlu/test.jsonl` (those the domain needs; `.parquet` as on the hub for the last two is read
too), or `official` (never the mini set), or `mini` (always the mini set, no network).

The commits below are public records of the three sources. The hub serves NQ-open and MMLU as
parquet files; their JSON-lines forms are known by content hash alone.

May import: the standard library, tss_bench.{data,files,paths}; pyarrow inside functions (layer
L1 of the design).
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tss_bench.data.download import FetchError, GitHubFile, HubFile, RemoteFile, fetch
from tss_bench.data.rows import (
    DataError,
    Records,
    Row,
    answers_by_question,
    mmlu_rows,
    nq_open_rows,
    parse_jsonl,
    specbench_rows,
)
from tss_bench.files import replace
from tss_bench.paths import cache_dir

DATA_VARIABLE = "TSS_BENCH_DATA"
MINI_DIRECTORY = Path(__file__).resolve().parent.parent / "assets" / "mini"

Kind = Literal["official", "custom", "mini"]


@dataclass(frozen=True)
class DataSource:
    """Where rows come from.

    `kind`: `official` (sha256 of the public file), `custom` (another file in TSS_BENCH_DATA) or
    `mini` (packaged). `sha256` is that of the file at `path`; `revision` the pinned commit, empty
    where the content alone is known; `note` one clause for the reader, for example why mini.
    """

    kind: Kind
    path: Path
    sha256: str
    revision: str = ""
    note: str = ""


@dataclass(frozen=True)
class DataFile:
    """A public file: its place in TSS_BENCH_DATA, its hash there, and where it is fetched."""

    path: str
    sha256: str
    remote: RemoteFile

    @property
    def cache_path(self) -> str:
        """Place in the cache, which keeps the file in the form it was fetched in."""
        return str(Path(self.path).with_suffix(Path(self.remote.path).suffix))


SPEC_BENCH = DataFile(
    path="specbench/question.jsonl",
    sha256="4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
    remote=GitHubFile(
        repository="hemingkx/Spec-Bench",
        commit="fd2c1cd7d2201ef71db4c5f4e455008f017967bf",
        path="data/spec_bench/question.jsonl",
        sha256="4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04",
    ),
)
NQ_OPEN = DataFile(
    path="nq_open/validation.jsonl",
    sha256="f15567f38099f3615f5b8a685c0aef449c11ad90d3da3735e8d1b98115b40616",
    remote=HubFile(
        repository="google-research-datasets/nq_open",
        commit="5dd9790a83002ad084ddeb7c420dc716852c6f28",
        path="nq_open/validation-00000-of-00001.parquet",
        sha256="b074bed0bccb56fa1551a8ac1c9c51ce89bc11c7fbb6a9c713b2c33a98531e12",
    ),
)
MMLU = DataFile(
    path="mmlu/test.jsonl",
    sha256="903179ca496c3a80683685a3e4bcec761d2826df64682892cde15def955f6e7d",
    remote=HubFile(
        repository="cais/mmlu",
        commit="c30699e8356da336a370243923dbaf21066bb9fe",
        path="all/test-00000-of-00001.parquet",
        sha256="74a41822ce7d3def56e1682f958469c04642a5336a5ce912fa375fdb90fb25d7",
    ),
)

NEEDS: dict[str, tuple[DataFile, ...]] = {
    "translation": (SPEC_BENCH,),
    "summarization": (SPEC_BENCH,),
    "qa": (SPEC_BENCH, NQ_OPEN),
    "rag": (SPEC_BENCH,),
    "math_reasoning": (SPEC_BENCH,),
    "mt_bench": (SPEC_BENCH,),
    "mmlu": (MMLU,),
    "nq_open": (NQ_OPEN,),
}
"""Files of each domain, the one with the questions first."""


@dataclass(frozen=True)
class _Loaded:
    """A file's bytes with what is known about them."""

    path: Path
    data: bytes
    revision: str
    official: bool
    note: str = ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    def records(self) -> Records:
        if self.path.suffix == ".parquet":
            return list(_parquet_records(self.data, str(self.path)))
        return parse_jsonl(self.data, str(self.path))


def resolve(domain: str) -> tuple[list[Row], DataSource]:
    """The rows of `domain` in file order, and where they come from.

    Raises DataError, one line with the mend: an unknown domain; a missing, unreadable or torn
    file in TSS_BENCH_DATA; nothing but the mini set where it is refused or has no such domain.
    """
    if domain not in NEEDS:
        raise DataError(f"no data for domain {domain!r}; there is {', '.join(NEEDS)}")
    setting = os.environ.get(DATA_VARIABLE, "").strip()
    if setting == "mini":
        return mini_rows(domain, f"{DATA_VARIABLE}=mini")
    if setting not in ("", "official"):
        directory = Path(setting).expanduser()
        return _rows_of(domain, [_from_directory(directory, file) for file in NEEDS[domain]])
    try:
        return _rows_of(domain, [_from_cache(file) for file in NEEDS[domain]])
    except FetchError as error:
        if setting == "official":
            raise DataError(
                f"{DATA_VARIABLE}=official refuses the packaged mini set, and the official "
                f"{domain} rows are not to be had: {error}; {_how_to_get(domain)}"
            ) from None
        return mini_rows(domain, f"{error}; set {DATA_VARIABLE} to use the official rows")


def read_rows(file: str | Path, domain: str) -> tuple[list[Row], DataSource]:
    """The rows of `domain` in a file of the user's own, and the file as their source.

    The file has the form of the domain's public file, JSON lines; a domain that is none of
    ours is read as Spec-Bench's: the rows whose `category` is the domain. A relative path
    starts at the current directory. Raises DataError, one line: an unreadable or torn file,
    or one without such rows.
    """
    path = Path(file).expanduser().absolute()
    try:
        loaded = _Loaded(path, path.read_bytes(), revision="", official=False)
    except OSError as error:
        raise DataError(f"file={file}: {path} cannot be read ({error.strerror})") from None
    return _parse(domain, loaded, {}), DataSource("custom", path, loaded.sha256)


def mt_bench_categories() -> dict[str, str]:
    """The category of each MT-bench row by its id, as the file that `resolve` reads has it.

    Raises DataError as `resolve` does.
    """
    _, source = resolve("mt_bench")
    records = parse_jsonl(source.path.read_bytes(), str(source.path))
    return {str(record["question_id"]): str(record["category"]) for _, record in records}


def data_cache() -> Path:
    """Where fetched files are kept, see `tss_bench.paths`."""
    return cache_dir() / "data"


def _rows_of(domain: str, files: list[_Loaded]) -> tuple[list[Row], DataSource]:
    first, *others = files
    answers = answers_by_question(others[0].records()) if others else {}
    source = DataSource(
        kind="official" if all(file.official for file in files) else "custom",
        path=first.path,
        sha256=first.sha256,
        revision=first.revision,
        note="; ".join(file.note for file in files if file.note),
    )
    return _parse(domain, first, answers), source


def _parse(domain: str, file: _Loaded, answers: dict[str, tuple[str, ...]]) -> list[Row]:
    if domain == "mmlu":
        return mmlu_rows(file.records())
    if domain == "nq_open":
        return nq_open_rows(file.records())
    rows = specbench_rows(file.records(), domain, answers)
    if not rows:
        raise DataError(
            f"{file.path} has no rows of {domain}: no row of that category; get the whole file"
        )
    return rows


def _from_directory(directory: Path, file: DataFile) -> _Loaded:
    """A file of TSS_BENCH_DATA, in either form. Raises DataError naming it if it is not there."""
    path = directory / file.path
    if not path.exists() and (directory / file.cache_path).exists():
        path = directory / file.cache_path
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}), and {DATA_VARIABLE}={directory} must "
            f"hold it; get it from {file.remote.url} as {file.cache_path}, or unset "
            f"{DATA_VARIABLE}"
        ) from None
    digest = hashlib.sha256(data).hexdigest()
    official = digest in (file.sha256, file.remote.sha256)
    return _Loaded(
        path=path,
        data=data,
        revision=file.remote.revision if digest == file.remote.sha256 else "",
        official=official,
        note="" if official else f"{path.name} is not the official file",
    )


def _from_cache(file: DataFile) -> _Loaded:
    """A file of the user's cache, fetched if it is not there whole. Raises FetchError."""
    path = data_cache() / file.cache_path
    try:
        data = path.read_bytes()
    except OSError:
        data = b""
    note = ""
    if hashlib.sha256(data).hexdigest() != file.remote.sha256:
        try:
            data = fetch(file.remote)
        except FetchError as error:
            damaged = f"{path} is damaged, and " if data else ""
            raise FetchError(f"{damaged}{error}") from None
        note = _keep(path, data)
    return _Loaded(path, data, file.remote.revision, official=True, note=note)


def _keep(path: Path, data: bytes) -> str:
    """Write a cache file in one step; returns a note where the cache cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, lambda part: part.write_bytes(data))
    except OSError as error:
        return f"{path} cannot be written ({error.strerror}), so it is fetched again next time"
    return ""


def mini_rows(domain: str, why: str = "") -> tuple[list[Row], DataSource]:
    """The packaged rows; `why` they are used becomes the source's note.

    Raises DataError for a domain that the mini set does not have.
    """
    stem = "qa" if domain == "nq_open" else domain
    path = MINI_DIRECTORY / f"{stem}.jsonl"
    if not path.is_file():
        raise DataError(
            f"the packaged mini set has no {domain} rows, and the official ones are not used "
            f"({why}); {_how_to_get(domain)}"
        )
    file = _Loaded(path, path.read_bytes(), revision="", official=False)
    rows = _parse(stem, file, {})
    if domain != stem:
        rows = [Row(f"{domain}-{row.id}", domain, row.turns, row.references) for row in rows]
    return rows, DataSource("mini", path, file.sha256, note=why)


def _parquet_records(data: bytes, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(data))
    for number, record in enumerate(table.to_pylist(), start=1):
        yield f"{name}, row {number}", record


def _how_to_get(domain: str) -> str:
    files = " and ".join(f"{file.cache_path} (from {file.remote.url})" for file in NEEDS[domain])
    return f"connect once, or put {files} into a directory and set {DATA_VARIABLE} to it"
