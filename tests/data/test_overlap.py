"""Which texts of the evaluation rows others must keep out of what they make.

May import: pytest, the standard library, tss_bench.data.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tss_bench.data.overlap import evaluation_sources, evaluation_texts
from tss_bench.data.rows import DataError

TURNS = {"question_id": 1, "category": "translation", "turns": ["First turn", "Second turn"]}
ASKED = {"question": "who wrote it", "answer": ["Nobody"]}
CHOSEN = {"question": "Which one is red?", "choices": ["Ruby", "Jade", "Opal", "Salt"], "answer": 0}
FILES = {
    "specbench/question.jsonl": [
        TURNS,
        *(
            {"question_id": 2, "category": name, "turns": [f"A turn of {name}"]}
            for name in ("summarization", "qa", "rag", "math_reasoning", "writing")
        ),
    ],
    "nq_open/validation.jsonl": [ASKED],
    "mmlu/test.jsonl": [CHOSEN],
}
MINI_QUESTION = "Which structure holds most of the DNA of a eukaryotic cell?"
MINI_CHOICE = "The Golgi apparatus"
MINI_TURN = "What is the capital of Australia?"


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TSS_BENCH_DATA folder with rows of every domain."""
    for name, records in FILES.items():
        path = tmp_path / name
        path.parent.mkdir()
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    monkeypatch.setenv("TSS_BENCH_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("setting", [None, "mini"])
def test_the_mini_set_is_in_with_questions_and_choices_of_mmlu(
    monkeypatch: pytest.MonkeyPatch, setting: str | None
) -> None:
    monkeypatch.delenv("TSS_BENCH_DATA", raising=False)
    if setting:
        monkeypatch.setenv("TSS_BENCH_DATA", setting)
    texts = evaluation_texts()
    assert {MINI_QUESTION, MINI_CHOICE, MINI_TURN} <= set(texts)
    assert len(texts) == len(set(texts))
    assert {source["kind"] for source in evaluation_sources()} == {"mini"}


def test_rows_of_the_data_folder_come_beside_the_mini_set(official: Path) -> None:
    texts = set(evaluation_texts())
    assert {MINI_QUESTION, MINI_CHOICE, MINI_TURN} <= texts
    assert {"First turn", "Second turn", "A turn of writing"} <= texts
    assert "who wrote it" in texts
    assert {CHOSEN["question"], "Ruby", "Jade", "Opal", "Salt"} <= texts


def test_the_sources_name_kind_hash_and_rows(official: Path) -> None:
    found = {(source["domain"], source["kind"]): source for source in evaluation_sources()}
    assert len(found) == 2 * 8
    digest = hashlib.sha256((official / "mmlu/test.jsonl").read_bytes()).hexdigest()
    assert found["mmlu", "custom"] == {
        "domain": "mmlu",
        "kind": "custom",
        "sha256": digest,
        "rows": 1,
    }
    assert found["mmlu", "mini"]["rows"] == 40


def test_a_data_folder_that_lacks_a_file_is_refused(official: Path) -> None:
    (official / "mmlu/test.jsonl").unlink()
    with pytest.raises(DataError, match=r"mmlu/test\.jsonl cannot be read"):
        evaluation_texts()
