"""Where rows come from: TSS_BENCH_DATA, cache, download, mini set."""

import hashlib
import json
from pathlib import Path

import pytest

from tss_bench.data import resolve as module
from tss_bench.data.download import FetchError, GitHubFile, HubFile
from tss_bench.data.resolve import NEEDS, DataFile, mt_bench_categories, read_rows, resolve
from tss_bench.data.rows import DataError, parse_jsonl
from tss_bench.data.split import split_rows

TURN = {"question_id": 1, "category": "translation", "turns": ["T"], "reference": ["R"]}
ASKED = {"question_id": 2, "category": "qa", "turns": ["Who's it?"]}
ANSWERED = {"question": "whos it", "answer": ["Me"]}


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("TSS_BENCH_DATA", raising=False)
    monkeypatch.setenv("TSS_BENCH_CACHE", str(tmp_path / "cache"))

    def no_network(file: object) -> bytes:
        raise FetchError("the network is out of reach")

    monkeypatch.setattr(module, "fetch", no_network)


def lines(*records: dict[str, object]) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TSS_BENCH_DATA directory with two Spec-Bench rows and one NQ-open row."""
    root = tmp_path / "data"
    for name, data in {
        "specbench/question.jsonl": lines(TURN, ASKED),
        "nq_open/validation.jsonl": lines(ANSWERED),
    }.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(data)
    monkeypatch.setenv("TSS_BENCH_DATA", str(root))
    return root


def test_a_directory_is_used_and_not_called_official(directory: Path):
    rows, source = resolve("translation")
    assert [row.turns for row in rows] == [("T",)]
    assert (source.kind, source.path) == ("custom", directory / "specbench/question.jsonl")
    assert source.sha256 == hashlib.sha256(lines(TURN, ASKED)).hexdigest()
    assert source.revision == ""


def test_qa_references_come_from_nq_open(directory: Path):
    rows, _ = resolve("qa")
    assert [row.references for row in rows] == [("Me",)]


@pytest.mark.parametrize(
    ("domain", "name"), [("qa", "nq_open/validation.jsonl"), ("mmlu", "mmlu/test.jsonl")]
)
def test_a_missing_file_is_an_error_that_names_it(directory: Path, domain: str, name: str):
    (directory / name).unlink(missing_ok=True)
    with pytest.raises(DataError) as error:
        resolve(domain)
    assert str(directory / name) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_torn_file_is_an_error_that_names_file_and_line(directory: Path):
    path = directory / "specbench/question.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"question\.jsonl, line 2 is no whole JSON object"):
        resolve("translation")


def test_a_directory_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TSS_BENCH_DATA", "no/such/place")
    with pytest.raises(DataError, match="TSS_BENCH_DATA=no/such/place must hold it"):
        resolve("translation")


def test_a_file_without_the_domain_is_an_error(directory: Path):
    with pytest.raises(DataError, match=r"question\.jsonl has no rows of rag"):
        resolve("rag")


def test_an_unknown_domain_is_refused_with_those_there_are():
    with pytest.raises(DataError, match="'poetry'; there is translation, summarization, qa"):
        resolve("poetry")


MINI_SIZES = {
    "translation": 40,
    "summarization": 40,
    "qa": 40,
    "rag": 40,
    "mmlu": 40,
    "nq_open": 40,
    "math_reasoning": 20,
}


@pytest.mark.parametrize(("domain", "size"), MINI_SIZES.items())
def test_offline_the_mini_set_is_used_and_says_why(domain: str, size: int):
    rows, source = resolve(domain)
    assert len(rows) == size
    assert {row.domain for row in rows} == {domain}
    assert len({row.id for row in rows}) == size
    assert all(row.references for row in rows)
    assert source.kind == "mini"
    assert "the network is out of reach" in source.note


def test_mini_nq_open_are_the_mini_qa_questions():
    assert [row.turns for row in resolve("nq_open")[0]] == [row.turns for row in resolve("qa")[0]]


def test_mini_by_name_asks_no_network(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TSS_BENCH_DATA", "mini")
    monkeypatch.setattr(module, "fetch", None)
    assert resolve("qa")[1].kind == "mini"


@pytest.mark.parametrize("domain", NEEDS)
def test_official_refuses_the_mini_set_in_one_line_with_the_mend(
    domain: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TSS_BENCH_DATA", "official")
    with pytest.raises(DataError) as error:
        resolve(domain)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith("TSS_BENCH_DATA=official refuses the packaged mini set")
    assert "the network is out of reach" in message
    for file in NEEDS[domain]:
        assert file.remote.url in message
    assert "set TSS_BENCH_DATA to it" in message


def test_a_domain_without_mini_rows_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(module, "MINI_DIRECTORY", tmp_path)
    with pytest.raises(DataError, match=r"mini set has no rag rows.*out of reach.*connect once"):
        resolve("rag")


REMOTE = lines(TURN)
DIGEST = hashlib.sha256(REMOTE).hexdigest()


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A made-up official file that can be fetched; returns the list of what was."""
    file = DataFile(
        "specbench/question.jsonl", DIGEST, GitHubFile("o/n", "c0ffee", "q.jsonl", DIGEST)
    )
    monkeypatch.setitem(NEEDS, "translation", (file,))
    fetched: list[str] = []

    def fetch(wanted: GitHubFile) -> bytes:
        fetched.append(wanted.url)
        return REMOTE

    monkeypatch.setattr(module, "fetch", fetch)
    return fetched


def test_a_download_is_official_and_kept_in_the_cache(remote: list[str], tmp_path: Path):
    for _ in range(2):
        rows, source = resolve("translation")
        assert [row.turns for row in rows] == [("T",)]
        assert (source.kind, source.revision) == ("official", "github.com/o/n@c0ffee")
    assert len(remote) == 1
    folder = tmp_path / "cache" / "data" / "specbench"
    assert [path.name for path in folder.iterdir()] == ["question.jsonl"]
    assert (folder / "question.jsonl").read_bytes() == REMOTE


def test_a_damaged_cache_file_is_fetched_again(remote: list[str], tmp_path: Path):
    resolve("translation")
    cached = tmp_path / "cache" / "data" / "specbench" / "question.jsonl"
    cached.write_bytes(REMOTE[:-5])
    assert resolve("translation")[1].kind == "official"
    assert cached.read_bytes() == REMOTE
    assert len(remote) == 2


def test_a_damaged_cache_file_offline_is_never_used(
    remote: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    resolve("translation")
    cached = tmp_path / "cache" / "data" / "specbench" / "question.jsonl"
    cached.write_bytes(REMOTE[:-5])

    def offline(file: object) -> bytes:
        raise FetchError("no network")

    monkeypatch.setattr(module, "fetch", offline)
    _, source = resolve("translation")
    assert source.kind == "mini"
    assert f"{cached} is damaged, and no network" in source.note


def test_a_cache_that_cannot_be_written_costs_no_run(
    remote: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("TSS_BENCH_CACHE", str(tmp_path / "file"))
    _, source = resolve("translation")
    assert source.kind == "official"
    assert "cannot be written" in source.note


def test_parquet_files_of_the_hub_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    sink = tmp_path / "made.parquet"
    record = {"question": "Q", "subject": "s", "choices": ["a", "b", "c", "d"], "answer": 3}
    parquet.write_table(pa.Table.from_pylist([record]), sink)
    data = sink.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    hub = HubFile("o/n", "c0ffee", "all/test.parquet", digest)
    monkeypatch.setitem(NEEDS, "mmlu", (DataFile("mmlu/test.jsonl", "0" * 64, hub),))
    monkeypatch.setattr(module, "fetch", lambda file: data)
    (row,), source = resolve("mmlu")
    assert (row.turns, row.answer, source.kind) == (("Q",), "D", "official")
    assert source.path == tmp_path / "cache" / "data" / "mmlu" / "test.parquet"

    monkeypatch.setenv("TSS_BENCH_DATA", str(tmp_path / "cache" / "data"))
    (again,), source = resolve("mmlu")
    assert (again, source.kind) == (row, "official")


@pytest.mark.parametrize(
    ("domain", "rows", "scorable"),
    [
        ("translation", 80, 80),
        ("summarization", 80, 80),
        ("qa", 80, 43),
        ("rag", 80, 80),
        ("math_reasoning", 80, 80),
        ("nq_open", 3610, 3610),
        ("mmlu", 14042, 14042),
    ],
)
def test_official_rows(
    domain: str, rows: int, scorable: int, data_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TSS_BENCH_DATA", str(data_dir))
    found, source = resolve(domain)
    assert source.kind == "official"
    assert len(found) == rows
    assert sum(bool(row.references) for row in found) == scorable
    calibration, test = split_rows(found, "calibration"), split_rows(found, "test")
    assert (len(calibration), len(test)) == (16, 64)
    assert not {row.content_hash for row in calibration} & {row.content_hash for row in test}


def test_official_mt_bench_has_two_turns(data_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TSS_BENCH_DATA", str(data_dir))
    rows, source = resolve("mt_bench")
    assert (len(rows), source.kind) == (80, "official")
    assert {len(row.turns) for row in rows} == {2}


def test_mmlu_rows_are_in_the_order_of_the_subjects(data_dir: Path):
    data = (data_dir / "mmlu/test.jsonl").read_bytes()
    subjects = [record["subject"] for _, record in parse_jsonl(data, "test.jsonl")]
    assert subjects == sorted(subjects)


def test_rows_of_a_file_of_ones_own(tmp_path: Path):
    path = tmp_path / "law.jsonl"
    path.write_bytes(lines(TURN, {**TURN, "question_id": 7, "category": "law", "turns": ["L"]}))
    rows, source = read_rows(path, "law")
    assert [(row.id, row.domain, row.turns, row.references) for row in rows] == [
        ("7", "law", ("L",), ("R",))
    ]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (source.kind, source.path, source.sha256) == ("custom", path, digest)


def test_a_file_of_multiple_choice_has_the_form_of_mmlu(tmp_path: Path):
    path = tmp_path / "exam.jsonl"
    path.write_bytes(lines({"question": "Q", "choices": list("wxyz"), "answer": 2}))
    (row,), _ = read_rows(path, "mmlu")
    assert (row.turns, row.choices, row.answer) == (("Q",), ("w", "x", "y", "z"), "C")


def test_a_relative_path_starts_at_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "rows.jsonl").write_bytes(lines(TURN))
    monkeypatch.chdir(tmp_path)
    assert read_rows("rows.jsonl", "translation")[1].path == tmp_path / "rows.jsonl"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (None, "cannot be read (No such file or directory)"),
        (lines(TURN), "has no rows of law"),
        (lines(TURN)[:-9], "line 1 is no whole JSON object"),
    ],
)
def test_a_file_of_ones_own_that_cannot_be_used_is_named(
    tmp_path: Path, data: bytes | None, told: str
):
    path = tmp_path / "law.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DataError) as error:
        read_rows(path, "law")
    assert str(path) in str(error.value)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_mt_bench_rows_keep_their_category_by_id(directory: Path):
    told = [
        {"question_id": n, "category": c, "turns": ["T"]} for n, c in ((81, "stem"), (82, "math"))
    ]
    (directory / "specbench" / "question.jsonl").write_bytes(lines(TURN, *told))
    found = mt_bench_categories()
    assert [found[row.id] for row in resolve("mt_bench")[0]] == ["stem", "math"]
