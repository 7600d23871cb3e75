"""The training loop. May import: pytest, torch, tss_bench, tests."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import tiny
from tests.training import helpers
from tss_bench.training.checkpoint import learning_rate
from tss_bench.training.eagle import head_config
from tss_bench.training.eagle_data import AnsweredPrompt, Corpus, split
from tss_bench.training.eagle_objective import Frozen
from tss_bench.training.eagle_scaling import Scales
from tss_bench.training.eagle_settings import MAX_SEED, Settings
from tss_bench.training.eagle_trainer import Trainer
from tss_bench.training.optimizers import OPTIMIZERS

SETTINGS = Settings(epochs=3, batch_slots=96, warmup=3, eval_every=4, noise=0.1, multi_steps=2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus(helpers.write_corpus(tmp_path_factory.mktemp("corpus")))


def trainer(
    corpus: Corpus,
    directory: Path,
    settings: Settings = SETTINGS,
    held_out: list[AnsweredPrompt] | None = None,
    scales: Scales | None = None,
) -> Trainer:
    directory.mkdir(exist_ok=True)
    train, kept = split(corpus.sequences, 0.2, settings.seed)
    rows = torch.arange(0, tiny.VOCAB, 2)
    return Trainer(
        corpus,
        train,
        held_out or kept,
        Frozen.of(tiny.target(), rows),
        scales or Scales(corpus.feature_scale(), 1.0),
        replace(head_config(tiny.model().config), draft_vocab_size=len(rows)),
        settings,
        directory,
    )


def weights(made: Trainer) -> dict[str, torch.Tensor]:
    return made.best_head().state_dict()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_killed_run_ends_with_the_same_weights(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    settings = replace(SETTINGS, optimizer=optimizer)
    whole = trainer(corpus, tmp_path / "whole", settings)
    whole.run(checkpoint_every=3)
    assert whole.step == whole.total_steps > 8

    update = Trainer._update

    def killed(self: Trainer, batch: Any) -> Any:
        if self.step == 8:
            raise KeyboardInterrupt
        return update(self, batch)

    monkeypatch.setattr(Trainer, "_update", killed)
    with pytest.raises(KeyboardInterrupt):
        trainer(corpus, tmp_path / "broken", settings).run(checkpoint_every=3)
    monkeypatch.undo()
    # Of features that were computed again, the scale may be another.
    resumed = trainer(corpus, tmp_path / "broken", settings, scales=Scales(1.01, 1.02))
    assert resumed.scales == whole.scales
    resumed.run(checkpoint_every=3)
    assert [r.to_dict() for r in resumed.reports] == [r.to_dict() for r in whole.reports]
    for key, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[key]), key


def test_training_lowers_the_loss_of_what_it_trains_on(corpus: Corpus, tmp_path: Path) -> None:
    settings = replace(SETTINGS, epochs=12, learning_rate=3e-3)
    made = trainer(corpus, tmp_path, settings, held_out=corpus.sequences)
    made.run()
    assert made.reports[-1].loss < 0.9 * made.reports[0].loss


def test_a_diverged_run_ends_without_a_head(corpus: Corpus, tmp_path: Path) -> None:
    """Also where the very last update was too much, whose outcome no training loss shows."""
    short = replace(SETTINGS, epochs=1, warmup=0, batch_slots=100_000, learning_rate=1e30)
    for epochs in (1, 3):
        made = trainer(corpus, tmp_path, replace(short, epochs=epochs))
        assert made.total_steps == epochs
        with pytest.raises(ValueError, match="the loss is nan at step 1: training has diverged"):
            made.run()
        assert not list(tmp_path.glob("*.pt"))


def test_the_head_knows_its_draft_vocabulary(corpus: Corpus, tmp_path: Path) -> None:
    made = trainer(corpus, tmp_path, replace(SETTINGS, epochs=1))
    made.run()
    rows = made.best_head().draft_rows
    assert rows is not None
    assert rows.tolist() == list(range(0, tiny.VOCAB, 2))


def test_a_time_limit_stops_and_more_time_continues(corpus: Corpus, tmp_path: Path) -> None:
    first = trainer(corpus, tmp_path)
    first.run(max_minutes=0)
    assert first.step == 0
    assert len(first.reports) == 1
    second = trainer(corpus, tmp_path)
    second.run()
    assert second.step == second.total_steps


def test_no_progress_stops_early(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trainer(corpus, tmp_path, replace(SETTINGS, eval_every=1, patience=2))
    monkeypatch.setattr("tss_bench.training.eagle_trainer.learning_rate", lambda *_: 0.0)
    made.run()
    assert made.step == 3  # the first evaluation, then two without a lower loss


def test_the_best_head_is_kept_not_the_last(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, dict[str, torch.Tensor]] = {}
    evaluate = Trainer._evaluate

    def watched(self: Trainer) -> None:
        seen[self.step] = {key: value.clone() for key, value in self._head.state_dict().items()}
        evaluate(self)

    monkeypatch.setattr(Trainer, "_evaluate", watched)
    rates = {0: 1e-3, 1: 1e-3}
    monkeypatch.setattr(
        "tss_bench.training.eagle_trainer.learning_rate", lambda step, *_: rates.get(step, 0.3)
    )
    made = trainer(corpus, tmp_path, replace(SETTINGS, eval_every=1, patience=2))
    made.run()
    best, last = made.best_report.step, made.reports[-1].step
    assert (best, last) == (2, 4)
    assert all(torch.equal(value, seen[best][key]) for key, value in weights(made).items())
    assert not torch.equal(seen[best]["fc.weight"], seen[last]["fc.weight"])


def test_patience_goes_on_after_a_kill(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, eval_every=1, patience=3)
    monkeypatch.setattr("tss_bench.training.eagle_trainer.learning_rate", lambda *_: 0.0)
    update = Trainer._update

    def killed(self: Trainer, batch: Any) -> Any:
        if self.step == 3:
            raise KeyboardInterrupt
        return update(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", killed)
        with pytest.raises(KeyboardInterrupt):
            trainer(corpus, tmp_path, settings).run(checkpoint_every=1)
    resumed = trainer(corpus, tmp_path, settings)
    resumed.run()
    # The first evaluation was the best; two of the three without a better one came before.
    assert resumed.step == 4 < resumed.total_steps


def test_every_epoch_has_all_sequences_in_batches_of_its_own(
    corpus: Corpus, tmp_path: Path
) -> None:
    made = trainer(corpus, tmp_path)
    batches = list(made._batches())
    size = made.total_steps // SETTINGS.epochs
    epochs = [batches[begin : begin + size] for begin in range(0, made.total_steps, size)]
    assert len(epochs) == 3
    every = [sorted(id(s) for batch in epoch for s in batch) for epoch in epochs]
    assert every[0] == every[1] == every[2]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_noise_is_uniform_and_another_one_each_step(corpus: Corpus, tmp_path: Path) -> None:
    made = trainer(corpus, tmp_path)
    first, again = (made._noise(torch.Size((50, 40))) for _ in range(2))
    made.step += 1
    second = made._noise(torch.Size((50, 40)))
    assert first is not None
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    # Within 0.1 of the scale, of which the standard deviation is 0.1 / 3 ** 0.5.
    assert float(first.abs().max()) <= 0.1
    assert float(first.std()) == pytest.approx(0.1 / 3**0.5, rel=0.05)
    assert trainer(corpus, tmp_path, replace(SETTINGS, noise=0.0))._noise(first.shape) is None


def test_gradients_are_clipped(corpus: Corpus, tmp_path: Path) -> None:
    norms = []
    for clip in (1e6, 1e-3):
        settings = replace(SETTINGS, epochs=1, batch_slots=100_000, clip=clip)
        made = trainer(corpus, tmp_path / str(clip), settings)
        made.run()
        grads = [p.grad for p in made.best_head().parameters() if p.grad is not None]
        norms.append(float(torch.stack([grad.norm() for grad in grads]).norm()))
    assert norms[0] > 1e-2
    assert norms[1] == pytest.approx(1e-3, rel=1e-3)


def test_held_out_losses_do_not_depend_on_the_batches(corpus: Corpus, tmp_path: Path) -> None:
    """Of depth 1: also the token loss, of which a batch has more slots or fewer."""
    reports = []
    for slots in (40, 100_000):
        settings = replace(SETTINGS, batch_slots=slots, precision="float32")
        made = trainer(corpus, tmp_path / str(slots), settings, held_out=corpus.sequences)
        made.run(max_minutes=0)
        reports.append(made.best_report)
    one, other = reports
    assert one.feature_loss == pytest.approx(other.feature_loss, rel=1e-5)
    assert one.token_loss == pytest.approx(other.token_loss, rel=1e-5)


def test_acceptance_without_greedy_answers_is_not_measured(corpus: Corpus, tmp_path: Path) -> None:
    sampled = [s for s in corpus.sequences if s.sampled]
    made = trainer(corpus, tmp_path, held_out=sampled)
    made.run(max_minutes=0)
    found = made.best_report.to_dict()
    assert found["acceptance_by_depth"] == [None] * 5
    assert found["chain_accept_len"] is None
    assert str(made.best_report).endswith("acceptance not measured (no greedy answer is held out)")


def test_other_settings_do_not_resume(corpus: Corpus, tmp_path: Path) -> None:
    trainer(corpus, tmp_path, replace(SETTINGS, epochs=1)).run()
    with pytest.raises(ValueError, match=r"another multi_steps \(2, now 3\)"):
        trainer(corpus, tmp_path, replace(SETTINGS, epochs=1, multi_steps=3)).run()


def test_every_seed_that_is_allowed_can_be_trained_with(corpus: Corpus, tmp_path: Path) -> None:
    made = trainer(corpus, tmp_path, replace(SETTINGS, seed=MAX_SEED, epochs=1))
    made.run()
    assert made.step == made.total_steps


def test_one_part_of_the_loss_is_enough() -> None:
    assert Settings(feature_weight=0.0).weights.feature == 0
    assert Settings(token_weight=0.0).weights.token == 0


@pytest.mark.parametrize("part", ["head", "best", "optimizers", "reports", "scales"])
def test_a_checkpoint_without_a_part_is_one_error(
    corpus: Corpus, tmp_path: Path, part: str
) -> None:
    settings = replace(SETTINGS, epochs=1, batch_slots=100_000)
    trainer(corpus, tmp_path, settings).run()
    state = torch.load(tmp_path / "checkpoint.pt")
    del (state["run"] if part == "scales" else state)[part]
    torch.save(state, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match=rf"checkpoint.pt is no whole .* \(has no '{part}'\)"):
        trainer(corpus, tmp_path, settings)


@pytest.mark.parametrize("part", ["head", "best"])
def test_weights_of_another_shape_are_one_error(corpus: Corpus, tmp_path: Path, part: str) -> None:
    settings = replace(SETTINGS, epochs=1, batch_slots=100_000)
    trainer(corpus, tmp_path, settings).run()
    state = torch.load(tmp_path / "checkpoint.pt")
    state[part]["fc.weight"] = torch.zeros(2, 2)
    torch.save(state, tmp_path / "checkpoint.pt")
    message = r"is no whole checkpoint of this run \(.*EagleHead.*\); delete it to start over"
    with pytest.raises(ValueError, match=message):
        trainer(corpus, tmp_path, settings)


def test_learning_rate_by_hand() -> None:
    assert learning_rate(0, 110, 10, 2.0) == pytest.approx(0.2)
    assert learning_rate(9, 110, 10, 2.0) == pytest.approx(2.0)
    assert learning_rate(60, 110, 10, 2.0) == pytest.approx(2.0 * 0.525)  # half of the cosine
    assert learning_rate(110, 110, 10, 2.0) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"seed": -1}, "seed must lie in 0 … 2147483647, got -1"),
        ({"seed": 2**31}, "seed must lie in 0 … 2147483647, got 2147483648"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"learning_rate": math.inf}, "learning_rate must be a finite number, got inf"),
        ({"clip": 0.0}, "clip must be positive, got 0.0"),
        ({"clip": math.nan}, "clip must be a finite number, got nan"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative, got -0.1"),
        ({"step_decay": math.nan}, "step_decay must be a finite number, got nan"),
        ({"noise": -1.0}, "noise must not be negative"),
        (
            {"feature_weight": 0.0, "token_weight": 0.0},
            "one of feature_weight and token_weight must be above 0",
        ),
        ({"optimizer": "sgd"}, "use one of muon, adamw"),
        ({"precision": "int4"}, "use one of bfloat16, float32"),
    ],
)
def test_bad_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**change)
