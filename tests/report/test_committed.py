"""leaderboards/ of this repository: the committed tables are those of the committed result files.

May import: pytest, tss_bench and the standard library.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tss_bench import cli
from tss_bench.report.build import LIST

PROJECT = Path(__file__).parents[2]
BOARD = PROJECT / "leaderboards"
COMMAND = re.compile(r"^(tss-bench leaderboard .*)$", re.MULTILINE)
# Drawn by whatever matplotlib is installed, which may place a line elsewhere.
PICTURE = re.compile(r"data:image/[^\"]*")


def text_of(folder: Path, name: str) -> str:
    return PICTURE.sub("picture", (folder / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the one documented command makes of the committed files, in a folder of its own."""
    out = tmp_path_factory.mktemp("leaderboards")
    (command,) = COMMAND.findall((BOARD / "README.md").read_text(encoding="utf-8"))
    words = shlex.split(command)[1:]
    words[words.index("--out") + 1] = str(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(PROJECT)
        cli.main(words)
    return out


def test_the_documented_command_makes_the_committed_tables(again: Path) -> None:
    names = json.loads((BOARD / LIST).read_text(encoding="utf-8"))
    assert json.loads((again / LIST).read_text(encoding="utf-8")) == names
    for name in names:
        assert (BOARD / name).is_file()
        if not name.startswith("plots/"):
            assert text_of(again, name) == text_of(BOARD, name), name


def test_rows_of_official_data_are_committed_without_their_text() -> None:
    """What is not the mini set's holds ids, hashes, figures and the model's answers alone."""
    official = 0
    for results in sorted((BOARD / "results").rglob("results_*.json")):
        told = json.loads(results.read_text(encoding="utf-8"))["tss_bench"]
        if {source["kind"] for source in told["data"].values()} == {"mini"}:
            continue
        assert told["no_docs"], results
        date = results.stem.removeprefix("results_")
        for samples in results.parent.glob(f"samples_*_{date}.jsonl"):
            for row in map(json.loads, samples.read_text(encoding="utf-8").splitlines()):
                assert set(row["doc"]) == {"id", "content_hash", "data_source"}, samples
                assert not {"arguments", "target"} & set(row), samples
                official += 1
    assert official
