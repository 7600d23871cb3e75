"""Batches of an EAGLE head's training. May import: pytest, torch, tss_bench.training, tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.training import helpers
from tss_bench.training import eagle_data as ed
from tss_bench.training.batch_answers import Answers
from tss_bench.training.self_generation import (
    features_path,
    read_features,
    write_answers,
    write_features,
)


def two_rows(tmp_path: Path) -> ed.Corpus:
    """Prompt 10 11 12 with answer 13 14 2, and prompt 20 21 with answer 22 2; feature i = i."""
    ids = [torch.tensor([10, 11, 12, 13, 14, 2]), torch.tensor([20, 21, 22, 2])]
    features = [
        torch.arange(5.0)[:, None].repeat(1, 2),
        10 + torch.arange(3.0)[:, None].repeat(1, 2),
    ]
    path = tmp_path / "shard-00000.safetensors"
    write_answers(path, Answers(ids, [3, 2], [False, True], features))
    return ed.Corpus([path])


def test_a_batch_aligns_the_answers(tmp_path: Path) -> None:
    corpus = two_rows(tmp_path)
    batch = corpus.batch(corpus.sequences)
    # Slots pair feature i with id i + 1; answers start at the last id of the prompt.
    assert batch.start == 2
    assert batch.ids.tolist() == [[11, 12, 13, 14], [0, 21, 22, 0]]
    assert batch.labels.tolist() == [[12, 13, 14, 2], [0, 22, 2, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 3], [0, 0, 1, 0]]
    assert batch.valid.tolist() == [[True] * 4, [False, True, True, False]]
    assert batch.features[..., 0].tolist() == [[0, 1, 2, 3], [0, 10, 11, 0]]
    assert batch.next_features[..., 0].tolist() == [[1, 2, 3, 4], [0, 11, 12, 0]]
    assert batch.sampled.tolist() == [False, True]


def test_slots_of_the_answer_predict_the_answer_s_second_id_on(tmp_path: Path) -> None:
    corpus = two_rows(tmp_path)
    batch = corpus.batch(corpus.sequences)
    labels, valid = batch.labels[:, batch.start :], batch.valid[:, batch.start :]
    assert labels[valid].tolist() == [14, 2, 2]
    assert [s.answer_slots for s in corpus.sequences] == [2, 1]


def test_answers_of_one_token_are_left_out(tmp_path: Path) -> None:
    ids = [torch.tensor([5, 6, 2]), torch.tensor([5, 6, 7, 2]), torch.tensor([8, 6, 7, 2])]
    features = [torch.zeros(len(row) - 1, 2) for row in ids]
    path = tmp_path / "shard-00000.safetensors"
    write_answers(path, Answers(ids, [2, 2, 2], [False] * 3, features))
    assert [s.ids.tolist() for s in ed.Corpus([path]).sequences] == [[5, 6, 7, 2], [8, 6, 7, 2]]


def test_too_little_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shard-00000.safetensors"
    write_answers(path, Answers([torch.tensor([5, 6, 2])], [2], [False], [torch.zeros(2, 2)]))
    with pytest.raises(ValueError, match="fewer than two answers"):
        ed.Corpus([path])


@pytest.mark.parametrize(
    ("rows", "width", "hidden_size", "wanted"),
    [(8, 2, 3, r"\[8, 3\]"), (7, 2, 2, r"\[8, 2\]"), (9, 2, None, r"\[8, 2\]")],
)
def test_hidden_states_of_another_text_or_model_are_named(
    tmp_path: Path, rows: int, width: int, hidden_size: int | None, wanted: str
) -> None:
    two_rows(tmp_path)
    path = tmp_path / "features-00000.safetensors"
    write_features(path, [torch.zeros(rows, width)])
    message = rf"{path} holds .* shape \[{rows}, {width}\] .* {wanted}; delete it, and training"
    with pytest.raises(ValueError, match=message):
        ed.Corpus([tmp_path / "shard-00000.safetensors"], hidden_size)


def test_all_hidden_states_are_as_wide_as_the_first(tmp_path: Path) -> None:
    for name, width in (("shard-00000", 2), ("shard-00001", 3)):
        ids = [torch.tensor([5, 6, 7, 2])]
        answers = Answers(ids, [2], [False], [torch.zeros(3, width)])
        write_answers(tmp_path / f"{name}.safetensors", answers)
    shards = sorted(tmp_path.glob("shard-*"))
    with pytest.raises(ValueError, match=r"features-00001.* \[3, 3\] .* \[3, 2\]; delete it"):
        ed.Corpus(shards)


def test_batches_hold_every_sequence_once_within_the_limit(tmp_path: Path) -> None:
    corpus = ed.Corpus(helpers.write_corpus(tmp_path))
    for seed in (None, 1):
        batches = ed.plan_batches(corpus.sequences, 64, seed)
        assert sorted(id(s) for b in batches for s in b) == sorted(map(id, corpus.sequences))
        assert all(corpus.batch(b).ids.numel() <= 64 for b in batches)
    assert ed.plan_batches(corpus.sequences, 64, 1) != ed.plan_batches(corpus.sequences, 64, 2)
    assert ed.plan_batches(corpus.sequences, 64, 1) == ed.plan_batches(corpus.sequences, 64, 1)


def test_split_is_disjoint_and_seeded(tmp_path: Path) -> None:
    sequences = ed.Corpus(helpers.write_corpus(tmp_path)).sequences
    train, held = ed.split(sequences, 0.25, 0)
    assert len(held) == round(0.25 * len(sequences))
    assert {id(s) for s in train} | {id(s) for s in held} == {id(s) for s in sequences}
    assert ed.split(sequences, 0.25, 0)[1] == held != ed.split(sequences, 0.25, 1)[1]
    assert len(ed.split(sequences[:2], 0.01, 0)[1]) == 1


def test_the_draft_vocabulary_is_answers_first_then_prompts_then_low_ids(tmp_path: Path) -> None:
    sequences = two_rows(tmp_path).sequences
    # Answers: 2 twice, 13, 14, 22 once; prompts: 10, 11, 12, 20, 21.
    rows = ed.draft_vocabulary(sequences, 48, 6)
    assert rows is not None
    assert rows.tolist() == [2, 10, 11, 13, 14, 22]
    rows = ed.draft_vocabulary(sequences, 48, 11)
    assert rows is not None
    # All nine that occur and the two lowest of the others.
    assert rows.tolist() == [0, 1, 2, 10, 11, 12, 13, 14, 20, 21, 22]
    assert ed.draft_vocabulary(sequences, 48, 48) is None


def test_the_first_tokens_end_with_a_whole_answer(tmp_path: Path) -> None:
    sequences = two_rows(tmp_path).sequences
    # Answers of three and of two ids.
    for tokens, answers in ((1, 1), (3, 1), (4, 2), (99, 2)):
        assert ed.first_tokens(sequences, tokens) == sequences[:answers]


def test_the_size_for_a_coverage_by_hand(tmp_path: Path) -> None:
    sequences = two_rows(tmp_path).sequences
    # Answer ids 13 14 2 22 2: id 2 is 2 of 5, each other one 1 of 5.
    for share, size in ((0.4, 1), (0.41, 2), (0.6, 2), (0.8, 3), (1.0, 4)):
        assert ed.size_for_coverage(sequences, 30, share) == size


def test_coverage_counts_answer_ids(tmp_path: Path) -> None:
    sequences = two_rows(tmp_path).sequences
    assert ed.coverage(sequences, torch.tensor([2, 13])) == pytest.approx(3 / 5)
    assert ed.coverage(sequences, None) == 1.0


def test_features_that_were_not_kept_are_computed(tmp_path: Path) -> None:
    (path,) = helpers.write_corpus(tmp_path, shards=1)
    kept = read_features(features_path(path))[:].float()
    features_path(path).unlink()
    ed.make_features(tiny.target(), [path], tokens=40)
    made = read_features(features_path(path))[:].float()
    torch.testing.assert_close(made, kept, rtol=2e-2, atol=2e-2)


def test_the_scale_is_the_standard_deviation(tmp_path: Path) -> None:
    corpus = two_rows(tmp_path)
    values = torch.tensor([0.0, 1, 2, 3, 4, 10, 11, 12]).repeat_interleave(2)
    assert corpus.feature_scale() == pytest.approx(float(values.std()))
