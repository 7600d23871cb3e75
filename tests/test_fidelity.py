"""`tss-bench bench fidelity`: its figures by hand, its text, what it refuses.

May import: pytest, torch, transformers, tss_bench, tests.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.model_adapters.conftest import LAYERS, TEMPLATE, make_tokenizer, save_model
from tests.training import helpers
from tss_bench import fidelity
from tss_bench.fidelity_measure import Readings, Variant
from tss_bench.fidelity_report import (
    exit_panels,
    fidelity_rows,
    full_depth_table,
    layers_table,
    mean_of_singles,
    sets_table,
)
from tss_bench.training.batch_answers import Answers
from tss_bench.training.eagle_data import Corpus, split
from tss_bench.training.self_generation import features_path, shard_path, write_answers
from tss_bench.types import SkipSet

NAMES: Any = {"reference": "untouched", "target": "adapted"}


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "untouched", TEMPLATE)


@pytest.fixture(scope="module")
def adapted(untouched: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights, the same ids."""
    model = LlamaForCausalLM.from_pretrained(untouched)
    for parameter in model.parameters():
        parameter.data *= 1.1
    directory = tmp_path_factory.mktemp("models") / "adapted"
    model.save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("data")
    helpers.write_corpus(directory)
    (directory / "recipe.json").write_text(
        json.dumps({"pretrained": "tiny", "revision": "r"}), "utf-8"
    )
    return directory


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tss_bench.weights.load_model", lambda *_, **__: pytest.fail("weights were loaded")
    )


def arguments(target: Path, reference: Path, data: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    fidelity.add_arguments(parser)
    base = ["--pretrained", str(target), "--reference", str(reference), "--data", str(data)]
    small = ["--answers", "6", "--held-out", "0.3", "--dtype", "float32", "--device", "cpu"]
    return parser.parse_args([*base, *small, *words])


def run(
    capsys: pytest.CaptureFixture[str], target: Path, reference: Path, data: Path, *words: str
) -> tuple[str, dict[str, Any]]:
    capsys.readouterr()
    fidelity.run(arguments(target, reference, data, *words))
    text, line = capsys.readouterr().out.rstrip("\n").rsplit("\n", 1)
    found: dict[str, Any] = json.loads(line)
    return text, found


def test_a_target_against_itself(
    untouched: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, found = run(capsys, untouched, untouched, data, "--sets", "1+2")
    rows = {(row["role"], tuple(row["skip"]), row["exit"]): row for row in found["results"]}
    for role in ("reference", "target"):
        dense = rows[role, (), None]
        assert (dense["kl"], dense["agreement"]) == (0, 1)
        assert dense["intervals"]["kl"] == [0, 0]
        assert rows[role, (), LAYERS - 1]["agreement"] == 1
    for (role, skip, exit), row in rows.items():
        if role == "target":
            same = rows["reference", skip, exit]
            assert {**row, "role": ""} == {**same, "role": ""}
    assert rows["target", (1, 2), None]["kl"] > 0
    assert len(rows) == 2 * (1 + LAYERS + 1 + LAYERS)


def test_tables_json_and_pictures_of_two_targets(
    untouched: Path, adapted: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--sets", "1+2", "--plot", str(tmp_path / "fig"))
    text, found = run(capsys, adapted, untouched, data, *words)
    assert "reference untouched" in text
    assert f"of 6 answers (of {found['held_out_answers']} held out)" in text
    assert "{1,2}" in text
    assert [found["bench"], found["scope"], found["answers"]] == ["fidelity", "all", 6]
    dense = [row for row in found["results"] if not row["skip"] and row["exit"] is None]
    assert [row["role"] for row in dense] == ["reference", "target"]
    assert dense[0]["kl"] == 0 < dense[1]["kl"]
    assert dense[1]["perplexity"] != dense[0]["perplexity"]
    assert {path.name for path in tmp_path.iterdir()} == {"fig-ablation.png", "fig-exits.png"}


def test_the_answers_are_those_that_training_holds_out(data: Path) -> None:
    shards = [shard_path(data, i) for i in range(3)]
    _, expected = split(Corpus(shards).sequences, 0.3, 0)
    answers, held_out = fidelity.read_held_out(data, 0.3, 0, 4)
    assert held_out == len(expected) >= 4
    assert [a.ids.tolist() for a in answers] == [s.ids.tolist() for s in expected[:4]]
    assert [a.prompt_length for a in answers] == [s.prompt_length for s in expected[:4]]
    other, _ = fidelity.read_held_out(data, 0.3, 1, 4)
    assert [a.ids.tolist() for a in other] != [a.ids.tolist() for a in answers]


def test_no_hidden_states_are_needed_and_short_answers_are_left_out(tmp_path: Path) -> None:
    """As in training: an answer of one token has nothing to learn from."""
    ids = [torch.tensor([5, 6, 2]), torch.tensor([5, 6, 7, 2]), torch.tensor([8, 6, 7, 2])]
    path = shard_path(tmp_path, 0)
    write_answers(path, Answers(ids, [2, 2, 2], [False] * 3))
    assert not features_path(path).exists()
    (tmp_path / "recipe.json").write_text('{"pretrained": "m", "revision": "r"}', "utf-8")
    answers, held_out = fidelity.read_held_out(tmp_path, 0.9, 0, 9)
    assert held_out == 1
    assert answers[0].ids.tolist() in ([5, 6, 7, 2], [8, 6, 7, 2])


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sets", "9"), "--sets: skip layer 9 does not exist: the target has 4 layers"),
        (("--sets", "1:2"), "--sets: '1:2' is no layer index"),
        (("--answers", "1"), "--answers must be at least 2, got 1"),
        (("--held-out", "1"), r"--held-out must lie between 0 and 1, got 1\.0"),
        (("--data", "nowhere"), "nowhere holds no self-generated data"),
        (("--plot", "nowhere/fig"), "the folder nowhere does not exist"),
        (("--pretrained", "./nowhere"), "nowhere"),
    ],
)
def test_bad_input_is_refused_before_anything_is_loaded(
    untouched: Path, data: Path, words: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        fidelity.run(arguments(untouched, untouched, data, *words))


@pytest.mark.usefixtures("no_loading")
def test_targets_that_do_not_fit_are_refused(
    untouched: Path, adapted: Path, data: Path, tmp_path: Path
) -> None:
    shape = {**LlamaForCausalLM.from_pretrained(untouched).config.to_dict(), "num_hidden_layers": 2}
    shallow = tmp_path / "shallow"
    LlamaForCausalLM(LlamaConfig(**{**shape, "layer_types": None})).save_pretrained(shallow)
    make_tokenizer().save_pretrained(shallow)
    with pytest.raises(ValueError, match=r"has num_layers 4, --pretrained .* has 2"):
        fidelity.run(arguments(shallow, untouched, data))
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["extra"])
    other = tmp_path / "other"
    LlamaForCausalLM.from_pretrained(untouched).save_pretrained(other)
    tokenizer.save_pretrained(other)
    with pytest.raises(ValueError, match="another tokenizer"):
        fidelity.run(arguments(other, untouched, data))


@pytest.mark.usefixtures("no_loading")
def test_text_of_another_tokenizer_is_refused(untouched: Path, tmp_path: Path) -> None:
    ids = [torch.tensor([5, 6, 7, 999]), torch.tensor([8, 6, 7, 999])]
    write_answers(shard_path(tmp_path, 0), Answers(ids, [2, 2], [False] * 2))
    (tmp_path / "recipe.json").write_text('{"pretrained": "m", "revision": "r"}', "utf-8")
    last = len(make_tokenizer()) - 1
    with pytest.raises(ValueError, match=f"has id 999, untouched has ids 0 to {last}"):
        fidelity.run(arguments(untouched, untouched, tmp_path))


def by_hand() -> Readings:
    """Two answers of 4 and 6 positions, two layers."""
    dense, single = SkipSet.dense(2), [SkipSet.of([i], 2) for i in range(2)]

    def tensor(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    def both(skip: SkipSet, first: Any, second: Any) -> dict[Variant, torch.Tensor]:
        return {Variant("reference", skip): first, Variant("target", skip): second}

    zero, full = tensor(0, 0), tensor(4, 6)
    exits = {
        Variant(role, dense, layer): tensor(layer, 6)
        for role in ("reference", "target")
        for layer in range(2)
    }
    log_2 = math.log(2)
    return Readings(
        answer_positions=full,
        prompt_positions=tensor(2, 3),
        agreement={
            **both(dense, full, tensor(3, 6)),
            **both(single[0], tensor(2, 3), tensor(4, 3)),
            **both(single[1], tensor(0, 0), tensor(0, 3)),
            **exits,
        },
        divergence={
            **both(dense, zero, tensor(0.4, 0.6)),
            **both(single[0], tensor(4, 6), tensor(2, 3)),
            **both(single[1], tensor(8, 12), tensor(4, 6)),
        },
        surprise={
            **both(dense, tensor(4 * log_2, 6 * log_2), tensor(0, 10 * log_2)),
            **both(single[0], zero, zero),
            **both(single[1], zero, zero),
        },
        prompt_surprise=both(dense, tensor(4 * log_2, 6 * log_2), zero),
    )


def test_figures_are_pooled_over_positions() -> None:
    rows = {(r["role"], tuple(r["skip"]), r["exit"]): r for r in fidelity_rows(by_hand())}
    target = rows["target", (), None]
    assert target["agreement"] == pytest.approx(9 / 10)
    assert target["kl"] == pytest.approx(1.0 / 10)
    # Each answer has a KL of 0.1 a position: no spread.
    assert target["intervals"]["kl"] == pytest.approx((0.1, 0.1))
    assert target["intervals"]["agreement"] == pytest.approx((0.75, 1.0))
    assert target["perplexity"] == pytest.approx(2)
    # One answer has 0 nats a position, the other 10 log 2 / 6: 2 ** (10 / 6) at most.
    assert target["intervals"]["perplexity"] == pytest.approx((1, 2 ** (10 / 6)))
    reference = rows["reference", (), None]
    assert (reference["kl"], reference["agreement"]) == (0, 1)
    assert reference["perplexity"] == pytest.approx(2)
    assert reference["prompt_perplexity"] == pytest.approx(4)
    assert rows["target", (), 1]["agreement"] == pytest.approx(7 / 10)
    assert "kl" not in rows["target", (), 1]


def test_the_mean_of_singles_is_over_layers_and_positions() -> None:
    means = mean_of_singles(by_hand())
    # KL a position 1 and 2 on the reference, half of that on the target.
    assert means["reference"]["kl"] == pytest.approx(1.5)
    assert means["target"]["kl"] == pytest.approx(0.75)
    assert means["target"]["intervals"]["kl"] == pytest.approx((0.75, 0.75))
    # Positions that agree: 2 + 3 and 0 of 20; 4 + 3 and 3 of 20.
    assert means["reference"]["agreement"] == pytest.approx(5 / 20)
    assert means["target"]["agreement"] == pytest.approx(10 / 20)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_tables_show_what_was_measured() -> None:
    readings = by_hand()
    rows, means = fidelity_rows(readings), mean_of_singles(readings)
    assert cells(full_depth_table(rows, NAMES).splitlines()[-1]) == [
        "adapted (target)",
        "0.1000 [0.1000, 0.1000]",
        "0.900 [0.750, 1.000]",
        "2.00 [1.00, 3.17]",
        "1.00 [1.00, 1.00]",
    ]
    _, _, zero, one, mean = layers_table(rows, means).splitlines()
    assert cells(zero) == ["0", "1.000", "0.500", "0.500", "0.700", "0.600", "0.600"]
    assert cells(one) == ["1", "2.000", "1.000", "0.000", "0.300", "0.700", "0.700"]
    assert cells(mean)[:3] == ["mean", "1.500 [1.500, 1.500]", "0.750 [0.750, 0.750]"]
    table = sets_table(rows, [SkipSet.of([1], 2)]).splitlines()
    assert cells(table[-1]) == [
        "{1}",
        "0.500",
        "target",
        "1.0000 [1.0000, 1.0000]",
        "0.300 [0.000, 0.500]",
    ]


def test_the_exit_curve_has_a_point_a_layer() -> None:
    (panel,) = exit_panels(fidelity_rows(by_hand()), NAMES)
    assert panel.curves == {
        f"{NAMES[role]} ({role})": ([0, 1], [pytest.approx(0.6), pytest.approx(0.7)])
        for role in ("reference", "target")
    }
