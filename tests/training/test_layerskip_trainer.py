"""The training loop of a model that does without blocks. May import: pytest, torch, tss_bench."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from tests import tiny
from tests.training import helpers
from tss_bench.training.droppable import DroppableModel
from tss_bench.training.eagle_data import Corpus, make_features
from tss_bench.training.layerskip import prepare_model
from tss_bench.training.layerskip_data import loss_positions, text_batch
from tss_bench.training.layerskip_settings import LayerSkipSettings
from tss_bench.training.layerskip_trainer import LayerSkipTrainer, StudentLoss, probes

SETTINGS = LayerSkipSettings(
    drop="uniform",
    pool="1,2",
    max_drop=2,
    drop_scope="mixed",
    batch_slots=96,
    warmup=2,
    epochs=2,
    eval_every=4,
    rank=4,
    precision="float32",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    paths = helpers.write_corpus(tmp_path_factory.mktemp("corpus"))
    make_features(tiny.target(), paths)
    return Corpus(paths)


def trainer(
    corpus: Corpus, directory: Path, settings: LayerSkipSettings = SETTINGS
) -> tuple[LayerSkipTrainer, Any]:
    directory.mkdir(exist_ok=True)
    model: Any = copy.deepcopy(tiny.model())
    for block in model.model.layers:
        # Would make a resumed run another one if training drew from torch's own generator.
        block.self_attn.attention_dropout = 0.5
    prepare_model(model, settings, "tiny")
    accelerator = Accelerator(cpu=True)
    train, held_out = corpus.sequences[4:], corpus.sequences[:4]
    return LayerSkipTrainer(model, corpus, train, held_out, settings, directory, accelerator), model


def trained(model: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters() if p.requires_grad]


def test_batches_are_padded_on_the_right(corpus: Corpus) -> None:
    short, long = sorted(corpus.sequences, key=lambda s: len(s.ids))[:: len(corpus.sequences) - 1]
    batch = text_batch(corpus, [short, long])
    n, prompt = len(short.ids) - 1, short.prompt_length
    assert batch.ids[0, :n].tolist() == short.ids[:-1].tolist()
    assert batch.labels[0, :n].tolist() == short.ids[1:].tolist()
    assert batch.answer[0].nonzero()[:, 0].tolist() == list(range(prompt - 1, n))
    assert batch.prompt[0].nonzero()[:, 0].tolist() == list(range(prompt - 1))
    torch.testing.assert_close(batch.features[0, :n], corpus.features(short))


def test_all_of_the_answer_and_a_share_of_the_prompt_count(corpus: Corpus) -> None:
    batch = text_batch(corpus, corpus.sequences)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(loss_positions(batch, 0.0, generator), batch.answer)
    assert torch.equal(loss_positions(batch, 1.0, generator), batch.answer | batch.prompt)
    some = loss_positions(batch, 0.5, generator)
    assert batch.answer.sum() < some.sum() < (batch.answer | batch.prompt).sum()


def test_the_teacher_is_the_untouched_model(corpus: Corpus) -> None:
    model: Any = copy.deepcopy(tiny.model()).requires_grad_(True)
    loss = StudentLoss(DroppableModel(model), distill=True)
    batch = text_batch(corpus, corpus.sequences[:2])
    expected = tiny.model()(batch.ids).logits[batch.answer]
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(3)
        found = loss.teacher(batch.features[batch.answer])
    # Hidden states are kept in bfloat16.
    torch.testing.assert_close(found, expected, atol=0.15, rtol=0.05)


@pytest.mark.parametrize("train", ["lora", "full"])
def test_training_learns_the_text_it_sees(corpus: Corpus, tmp_path: Path, train: str) -> None:
    settings = replace(SETTINGS, train=train, epochs=36, learning_rate=1e-2)
    loop, model = trainer(corpus, tmp_path, settings)
    loop.run()
    first, last = loop.reports[0], loop.reports[-1]
    # Before the first step the model is the untouched one, up to bfloat16 hidden states.
    assert first.dense.kl < 1e-2
    assert first.skipped[0].kl > 0.1
    assert first.step == 0
    assert last.step == loop.total_steps
    assert last.train_loss < 0.6 * loop.reports[1].train_loss
    if train == "lora":
        assert all("lora_" in name for name, p in model.named_parameters() if p.requires_grad)


def test_a_run_that_was_killed_ends_with_the_same_weights(corpus: Corpus, tmp_path: Path) -> None:
    whole, model = trainer(corpus, tmp_path / "whole")
    whole.run()
    cut, _ = trainer(corpus, tmp_path / "cut")
    update, calls = cut._update, 0

    def killed(sequences: Any) -> float:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise KeyboardInterrupt
        return update(sequences)

    cut._update = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        cut.run(checkpoint_every=2)
    again, resumed = trainer(corpus, tmp_path / "cut")
    again.run(checkpoint_every=2)
    assert again.step == whole.step > 5
    for one, other in zip(trained(model), trained(resumed), strict=True):
        assert torch.equal(one, other)
    assert [r.to_dict() for r in again.reports] == [r.to_dict() for r in whole.reports]


def test_other_settings_do_not_resume(corpus: Corpus, tmp_path: Path) -> None:
    trainer(corpus, tmp_path)[0].run()
    with pytest.raises(ValueError, match=r"another max_drop \(2, now 1\)"):
        trainer(corpus, tmp_path, replace(SETTINGS, max_drop=1))[0].run()


def test_other_text_does_not_resume(corpus: Corpus, tmp_path: Path) -> None:
    trainer(corpus, tmp_path)[0].run()
    fewer = corpus.sequences[5:], corpus.sequences[:4]
    again = LayerSkipTrainer(
        copy.deepcopy(tiny.model()).requires_grad_(True),
        corpus, *fewer, SETTINGS, tmp_path, Accelerator(cpu=True),
    )  # fmt: skip
    with pytest.raises(ValueError, match="other text"):
        again.run()


def test_a_diverged_run_stops_before_its_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    loop, model = trainer(corpus, tmp_path)
    with torch.no_grad():
        next(p for p in model.parameters() if p.requires_grad).fill_(float("nan"))
    with pytest.raises(ValueError, match="the loss is nan at step 0: training has diverged"):
        loop.run(checkpoint_every=1)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_more_processes_than_batches_are_refused(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Accelerator, "num_processes", 99)
    with pytest.raises(ValueError, match=r"fewer batches than there are processes \(99\)"):
        trainer(corpus, tmp_path)


def test_the_time_limit_ends_a_run(corpus: Corpus, tmp_path: Path) -> None:
    loop, _ = trainer(corpus, tmp_path)
    loop.run(max_minutes=0)
    assert loop.step == 0
    assert len(loop.reports) == 1


def test_probes_are_nested_and_spread() -> None:
    settings = replace(SETTINGS, pool="3,4,6,7,9,10,13,25,26", max_drop=4)
    found = probes(settings, 30)
    assert [len(layers) for layers in found] == [1, 2, 4]
    assert set(found[0]) < set(found[1]) < set(found[2])
    assert set(found[2]) <= {3, 4, 6, 7, 9, 10, 13, 25, 26}
