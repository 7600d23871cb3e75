"""The ledger: round trip, refusal, torn lines, locks, timings.

May import: pytest and tss_bench.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.search.surface import Recorder, Surface, nothing
from tss_bench.search import Evaluation, Fingerprint, Ledger, LedgerError, Rules, get, run_search
from tss_bench.types import SkipSet

ROOT = Path(__file__).resolve().parents[2]
LAYERS = 6
FINGERPRINT = Fingerprint(
    model={"id": "tiny", "revision": "abc"},
    drafter="eagle",
    data="sha256:1",
    protocol="strict",
    scope="verify",
    versions={"torch": "2.6"},
    other={"dtype": "float32"},
)
EVALUATION = Evaluation(
    SkipSet.of([3, 5], LAYERS),
    (0, 2),
    accept=((7, 3), (0, 0)),
    metric=(0.1, None),
    loss=((2.5, 4), (1.0, 2)),
)


def opened(path: Path, **changes: Any) -> Ledger:
    return Ledger(path, replace(FINGERPRINT, **changes), LAYERS)


def filled(path: Path) -> None:
    with opened(path) as ledger:
        ledger.append(EVALUATION)


def test_what_is_written_is_read_again_exactly(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    filled(path)
    with opened(path) as ledger:
        assert ledger.table.known(EVALUATION.skip, (0, 2)) == EVALUATION
        assert ledger.table.sets() == (EVALUATION.skip,)
        # two prompts decoded, two losses
        assert ledger.table.pairs() == 4


def test_the_first_line_names_all_parts(tmp_path: Path) -> None:
    filled(tmp_path / "ledger.jsonl")
    header = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])
    assert header["parts"]["model"] == {"id": "tiny", "revision": "abc"}
    assert header["fingerprint"] == FINGERPRINT.digest()
    assert set(header["parts"]) == {
        "model",
        "drafter",
        "data",
        "protocol",
        "scope",
        "versions",
        "other",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": {"id": "tiny", "revision": "xyz"}},
            'model.revision was "abc", now is "xyz"',
        ),
        ({"drafter": "none"}, 'drafter was "eagle", now is "none"'),
        ({"data": "sha256:2"}, 'data was "sha256:1", now is "sha256:2"'),
        ({"protocol": "paper"}, 'protocol was "strict", now is "paper"'),
        ({"scope": "all"}, 'scope was "verify", now is "all"'),
        ({"versions": {}}, 'versions.torch was "2.6", now is absent'),
        ({"other": {"dtype": "float32", "k": 3}}, "other.k was absent, now is 3"),
    ],
)
def test_a_changed_part_refuses_the_ledger_and_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "ledger.jsonl"
    filled(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError) as error:
        opened(path, **changes)
    assert message in str(error.value)
    assert path.read_bytes() == before
    # The refusal gave the lock back.
    with opened(path):
        pass


def test_another_layer_count_is_refused(tmp_path: Path) -> None:
    filled(tmp_path / "ledger.jsonl")
    with pytest.raises(LedgerError, match="num_layers was 6, now is 7"):
        Ledger(tmp_path / "ledger.jsonl", FINGERPRINT, 7)


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_torn_last_line_is_dropped_with_a_warning_and_cut_off(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger.jsonl"
    filled(path)
    whole = path.read_bytes()
    other = replace(EVALUATION, skip=SkipSet.of([1], LAYERS))
    with opened(path) as ledger:
        ledger.append(other)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.warns(UserWarning, match="its last line is cut off"):
        ledger = opened(path)
    with ledger:
        assert ledger.table.sets() == (EVALUATION.skip,)
        assert path.read_bytes() == whole
        ledger.append(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with opened(path) as ledger:
            assert ledger.table.sets() == (EVALUATION.skip, other.skip)


def test_a_torn_first_line_starts_the_ledger_anew(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    filled(path)
    path.write_bytes(path.read_bytes()[:30])
    with pytest.warns(UserWarning, match="30 bytes"), opened(path) as ledger:
        assert ledger.table.sets() == ()
    with opened(path):
        pass


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", "line 2: it is no JSON"),
        ("[1]", "line 2: it is no JSON object"),
        ('{"prompts":[1]}', "line 2: it is no evaluation"),
        ('{"skip":[9],"prompts":[0],"metric":[0.5]}', "skip layer 9 does not exist"),
        ('{"skip":[1],"prompts":[0,1],"metric":[0.5]}', "1 values of metric for 2 prompts"),
        ('{"skip":[1],"prompts":[0],"metric":[1],"seconds":-1,"batch":1}', "a number from 0"),
        ('{"skip":[1],"prompts":[0],"metric":[1],"seconds":null,"batch":1}', "no evaluation"),
        ('{"skip":[1],"prompts":[0],"metric":[1],"seconds":1}', "it is no evaluation"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path):
        pass
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(LedgerError, match=message):
        opened(path)


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text('{"schema": 1}\n')
    with pytest.raises(LedgerError, match="is no ledger of this version"):
        opened(path)
    assert path.read_text() == '{"schema": 1}\n'


def test_a_second_search_is_locked_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with opened(path), pytest.raises(LedgerError, match="is in use by another search"):
        opened(path)
    with opened(path):
        pass


def test_a_closed_ledger_takes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path / "ledger.jsonl") as ledger:
        pass
    with pytest.raises(LedgerError, match="is closed"):
        ledger.append(EVALUATION)


HOLDER = """
import os, signal, sys
from tests.search.test_ledger import EVALUATION, opened
from pathlib import Path
ledger = opened(Path(sys.argv[1]))
ledger.append(EVALUATION)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is a signal of POSIX")
def test_another_process_is_locked_out_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(LedgerError, match="is in use by another search"):
                opened(path)
        finally:
            holder.send_signal(signal.SIGKILL)
    with opened(path) as ledger:
        assert ledger.table.known(EVALUATION.skip, (0, 2)) == EVALUATION


def test_timings_are_written_down_and_taken_anew_in_every_run(tmp_path: Path) -> None:
    surface = Surface(5, LAYERS, num_prompts=3)
    path = tmp_path / "ledger.jsonl"
    runs = []
    with opened(path) as ledger:
        for _ in range(2):
            recorder = Recorder(surface)
            rules = Rules(eps=0.5, cost="measured")
            result = run_search(get("tss_bfs"), surface.space(), rules, recorder, ledger=ledger)
            runs.append((recorder, result))
    (first, _), (second, result) = runs
    timed = [job for job in first.jobs if "cost" in job.want]
    assert second.jobs == timed
    assert len(timed) > 1
    assert result.counts.fresh_evaluations == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    costs = [record for record in records if "cost" in record]
    assert len(costs) == 2 * len(timed)
    assert len({record["run"] for record in costs}) == 2
    with opened(path) as ledger, pytest.raises(AssertionError, match="asked for"):
        run_search(get("tss_bfs"), surface.space(), rules, nothing, ledger=ledger)


def test_strategies_share_a_ledger_and_the_budget_counts_what_it_held(tmp_path: Path) -> None:
    surface = Surface(5, LAYERS, num_prompts=3)
    with opened(tmp_path / "ledger.jsonl") as ledger:
        for name, executor in (("tss_bfs", Recorder(surface)), ("tss_race", nothing)):
            result = run_search(get(name), surface.space(), Rules(), executor, ledger=ledger)
            assert result.counts.evaluations > 1
        assert result.counts.fresh_prompt_evaluations == 0


def test_each_run_says_what_it_was(tmp_path: Path) -> None:
    surface = Surface(5, LAYERS, num_prompts=3)
    path = tmp_path / "ledger.jsonl"
    with opened(path) as ledger:
        run_search(
            get("tss_beam"),
            surface.space(),
            Rules(),
            Recorder(surface),
            options={"beam": 2},
            ledger=ledger,
        )
    note = json.loads(path.read_text().splitlines()[1])["note"]
    assert note["strategy"] == "tss_beam"
    assert note["options"] == {"beam": "2"}
    assert note["rules"]["cost"] == "layers"
    assert note["cost"] == "active / L"
    assert note["speed"] == "accept / cost stands for tokens per second"
