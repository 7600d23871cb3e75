"""`tss-bench data build-sam` and `tss-bench bench sam`; speeds are never tested."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.model_adapters.conftest import TEMPLATE, make_tokenizer, save_model
from tss_bench import bench_sam, build_sam
from tss_bench.decoding.drafters.static_automaton import StaticAutomaton
from tss_bench.weights import vocabulary_digest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", TEMPLATE)


def run(module: ModuleType, *words: object) -> None:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    module.run(parser.parse_args([str(word) for word in words]))


def documents_of(path: Path) -> list[str]:
    """The documents of a file, told by walking its text."""
    corpus, texts, ids = StaticAutomaton.load(path), [], [-1]
    end = -1
    while ids:
        ids = corpus.following(end, 10_000)
        end += len(ids) + 1
        texts.append(make_tokenizer().decode(ids))
    return texts[:-1]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("paragraphs", ["Eins\nzwei", "drei ", "vier"]),
        ("lines", ["Eins", "zwei", "drei ", "vier"]),
        ("files", ["Eins\nzwei\n\ndrei \n  \n", "vier"]),
    ],
)
def test_a_corpus_becomes_documents_of_ids(
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    rule: str,
    expected: list[str],
) -> None:
    first, second, out = (tmp_path / name for name in ("a.txt", "b.txt", "corpus.sam"))
    first.write_text("Eins\nzwei\n\ndrei \n  \n", "utf-8")
    second.write_text("vier", "utf-8")
    run(build_sam, first, second, "--pretrained", model, "--out", out, "--documents", rule)
    assert documents_of(out) == expected
    read = StaticAutomaton.load(out)
    size = sum(len(text.encode()) for text in expected)
    assert read.tokens == size
    assert read.source["vocabulary"] == vocabulary_digest(make_tokenizer())
    assert read.source["documents"] == f"{len(expected)} {rule}"
    assert f"{size} ids in {len(expected)} documents" in capsys.readouterr().out
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.txt", "b.txt", "corpus.sam"]


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b" \n\n ", (), "corpus.txt: the corpus holds no text"),
        (b"", (), "corpus.txt: the corpus holds no text"),
        (b"\xff\xfe", (), "corpus.txt is no text in UTF-8"),
        (b"text", ("no.txt",), "there is no corpus file"),
        (b"text", ("--out", "no/where.sam"), "there is no directory"),
        (b"text", ("--out", "."), r"--out .* is a directory"),
        (b"text", ("--pretrained", "./no-model"), "does not exist"),
    ],
)
def test_bad_input_writes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    words: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_bytes(content)
    given = ["corpus.txt", *words]
    with pytest.raises(ValueError, match=message):
        run(build_sam, *given, *([] if "--out" in words else ["--out", "corpus.sam"]))
    assert [item.name for item in tmp_path.iterdir()] == ["corpus.txt"]


@pytest.mark.parametrize("name", ["corpus.txt", "link.txt", "notes.txt"])
def test_a_file_that_is_no_automaton_is_not_replaced(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path("corpus.txt"), Path("notes.txt")):
        path.write_text("text", "utf-8")
    Path("link.txt").symlink_to("corpus.txt")
    told = "no static automaton" if name == "notes.txt" else "a file of the corpus"
    with pytest.raises(ValueError, match=rf"--out {name} is .*{told}; choose another"):
        run(build_sam, "corpus.txt", "--pretrained", model, "--out", name)
    assert Path(name).read_text("utf-8") == "text"


def test_an_automaton_is_replaced(model: Path, tmp_path: Path) -> None:
    corpus, out = tmp_path / "corpus.txt", tmp_path / "corpus.sam"
    for text in ("eins", "zwei"):
        corpus.write_text(text, "utf-8")
        run(build_sam, corpus, "--pretrained", model, "--out", out)
        assert documents_of(out) == [text]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder nobody may write to")
def test_a_folder_that_cannot_be_written_is_refused_before_tokenising(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_sam.weights, "load_tokenizer", lambda *_, **__: pytest.fail("read"))
    (tmp_path / "corpus.txt").write_text("text", "utf-8")
    with pytest.raises(OSError, match=r"--out /proc/x.sam: cannot write to /proc \("):
        run(build_sam, tmp_path / "corpus.txt", "--out", "/proc/x.sam")


def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"cannot write .*corpus\.sam"):
        StaticAutomaton.build([[1, 2]], {}).save(tmp_path / "gone" / "corpus.sam")


def test_the_bench_prints_a_row_for_each_text_and_size(capsys: pytest.CaptureFixture[str]) -> None:
    run(bench_sam, "--sizes", "60,120", "--rounds", 1)
    lines = capsys.readouterr().out.splitlines()
    report = json.loads(lines[-1])
    rows = report["results"]
    assert [(row["text"], row["ids"]) for row in rows] == [
        (name, size) for name in ("words", "phrases", "periodic") for size in (60, 120)
    ]
    for row in rows:
        assert row["states"] <= 2
        assert row["dynamic_us"] > 0 < row["static_us"]
        # 16 bytes a state at least, one or two of them an id.
        assert row["static_bytes"] > 20 < row["dynamic_bytes"]
    assert len(lines) == 2 + 2 + len(rows)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rounds", "0"), "--rounds must be at least 1, got 0"),
        (("--sizes", "1k"), "--sizes must be whole numbers of at least 1, got '1k'"),
        (("--sizes", "0"), "--sizes must be whole numbers"),
    ],
)
def test_bad_sizes_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(bench_sam, *words)


@pytest.mark.parametrize("size", [1, 13, 500])
@pytest.mark.parametrize("make", list(bench_sam.TEXTS.values()))
def test_texts_have_the_length_asked_for(make: Callable[..., list[int]], size: int) -> None:
    text = make(size, bench_sam.random.Random(1))
    assert len(text) == size
    assert all(0 <= token < bench_sam.VOCABULARY for token in text)
