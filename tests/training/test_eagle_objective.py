"""The multi-step objective. May import: pytest, torch, tss_bench, tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests import tiny
from tests.training import helpers
from tss_bench.training.eagle_data import Batch, Corpus
from tss_bench.training.eagle_objective import (
    Frozen,
    Hits,
    Weights,
    chain_hits,
    losses,
    roll_out,
    step_mask,
)
from tss_bench.training.eagle_scaling import Scales

SCALES = Scales(1.3, 0.7)
ROWS = torch.arange(0, tiny.VOCAB, 2)


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    corpus = Corpus(helpers.write_corpus(tmp_path, shards=1))
    return corpus.batch(corpus.sequences)


def test_depth_three_sees_what_a_drafter_sees(batch: Batch) -> None:
    """Each slot of each depth equals an incremental draft from the verified slot before it."""
    head = tiny.eagle_head()
    embeddings = Frozen.of(tiny.target(), None).embed(batch.ids)
    outputs = list(roll_out(head, batch, embeddings, SCALES, 3))
    assert [o.depth for o in outputs] == [1, 2, 3]
    compared = 0
    for row in range(len(batch.ids)):
        real = batch.valid[row].nonzero()[:, 0]
        first = int(real[0])
        embedded = embeddings[row] / SCALES.embedding
        true = batch.features[row] / SCALES.feature
        for last in range(batch.start, int(real[-1]) + 1):
            verified = slice(first, last + 1)
            at = batch.positions[row, verified]
            hidden, past = head(embedded[None, verified], true[None, verified], at[None])
            feature = hidden[:, -1:]
            for output in outputs:
                slot = last + output.depth - 1
                if slot > real[-1]:
                    break
                if output.depth > 1:
                    feature, past = head(
                        embedded[None, slot : slot + 1],
                        feature,
                        batch.positions[row, slot][None, None],
                        None,
                        past,
                    )
                own = output.hidden[row, slot - batch.start]
                torch.testing.assert_close(own, feature[0, 0], rtol=1e-4, atol=1e-4)
                assert output.asked[row, slot - batch.start]
                compared += 1
    assert compared > 50


def test_depths_are_not_asked_before_they_can_be_reached(batch: Batch) -> None:
    embeddings = Frozen.of(tiny.target(), None).embed(batch.ids)
    for output in roll_out(tiny.eagle_head(), batch, embeddings, SCALES, 4):
        assert not output.asked[:, : output.depth - 1].any()
        assert int(output.asked.sum()) == sum(
            max(0, int(n) - output.depth + 1) for n in batch.valid[:, batch.start :].sum(dim=1)
        )


def test_step_mask_by_hand() -> None:
    # Slots 0 … 3, answers from 1; depth 3 of slot 3: true slots 0, 1; step 2 at 2; step 3 at 3.
    valid = torch.ones(1, 4, dtype=torch.bool)
    mask = step_mask(valid, 1, 3)[0, 0]
    assert mask[2].int().tolist() == [1, 1, 0, 0, 0, 1, 0, 0, 0, 1]
    valid[0, 0] = False
    assert step_mask(valid, 1, 3)[0, 0, 2].int().tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0, 1]


def test_losses_by_hand_for_one_step(batch: Batch) -> None:
    head = tiny.eagle_head(len(ROWS))
    frozen = Frozen.of(tiny.target(), ROWS)
    found = losses(head, batch, frozen, SCALES, Weights(2.0, 3.0), 1)
    hidden = next(iter(roll_out(head, batch, frozen.embed(batch.ids), SCALES, 1))).hidden
    regression, entropy, slots, known = 0.0, 0.0, 0, 0
    matrix = tiny.model().get_output_embeddings().weight[ROWS]
    for row in range(len(batch.ids)):
        for column in range(batch.start, batch.ids.shape[1]):
            if not batch.valid[row, column]:
                continue
            ours = hidden[row, column - batch.start]
            gap = (ours - batch.next_features[row, column] / 1.3).abs()
            regression += float(torch.where(gap < 1, gap**2 / 2, gap - 0.5).mean())
            slots += 1
            if int(batch.labels[row, column]) % 2 == 0:
                wanted = (matrix @ batch.next_features[row, column]).softmax(dim=0)
                entropy -= float((wanted * (matrix @ (1.3 * ours)).log_softmax(dim=0)).sum())
                known += 1
    assert found.slots == slots > known == found.known > 5
    assert float(found.feature) == pytest.approx(regression / slots, rel=1e-4)
    assert float(found.token) == pytest.approx(entropy / known, rel=1e-4)
    expected = 2 * regression / slots + 3 * entropy / known
    assert float(found.total) == pytest.approx(expected, rel=1e-4)


def test_later_depths_count_less_and_reach_the_weights(batch: Batch) -> None:
    head = tiny.eagle_head().train()
    frozen = Frozen.of(tiny.target(), None)
    one = losses(head, batch, frozen, SCALES, Weights(), 1)
    three = losses(head, batch, frozen, SCALES, Weights(decay=0.0), 3)
    assert float(three.total) == pytest.approx(float(one.total), rel=1e-5)
    losses(head, batch, frozen, SCALES, Weights(), 3).total.backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in head.parameters())
    assert tiny.model().get_output_embeddings().weight.grad is None


def test_a_batch_whose_answers_are_too_short_for_a_depth_has_a_finite_loss(tmp_path: Path) -> None:
    corpus = Corpus(helpers.write_corpus(tmp_path, shards=1))
    short = min(corpus.sequences, key=lambda s: s.answer_slots)
    batch = corpus.batch([short])
    steps = short.answer_slots + 2
    found = losses(
        tiny.eagle_head(), batch, Frozen.of(tiny.target(), None), SCALES, Weights(), steps
    )
    assert bool(found.total.isfinite())


def test_hits_by_hand() -> None:
    hits = Hits((10, 8), (6, 3)) + Hits((10, 8), (4, 1))
    assert hits == Hits((20, 16), (10, 4))
    # Half of the chains are accepted at depth 1, a quarter down to depth 2.
    assert hits.acceptance == (0.5, 0.5)
    assert hits.chain_length == 1.75


def test_what_no_chain_got_to_is_not_measured() -> None:
    # Four chains, of which one could be three deep; none was accepted at depth 1.
    assert Hits((4, 2, 1), (0, 0, 0)).acceptance == (0.0, None, None)
    assert Hits((4, 2, 1), (0, 0, 0)).chain_length == 1
    # All accepted at depth 1, and none could be deeper.
    assert Hits((4, 0), (4, 0)).acceptance == (1.0, None)
    assert Hits((4, 0), (4, 0)).chain_length == 2
    assert Hits((0, 0), (0, 0)).acceptance == (None, None)
    assert Hits((0, 0), (0, 0)).chain_length is None


def test_a_chain_is_counted_to_its_first_wrong_draft(batch: Batch) -> None:
    """With labels set to the head's own drafts every chain of a greedy row is accepted."""
    head = tiny.eagle_head()
    frozen = Frozen.of(tiny.target(), None)
    free = chain_hits(head, batch, frozen, SCALES, 3)
    assert free.kept[0] >= free.kept[1] >= free.kept[2]
    greedy = int(batch.valid[~batch.sampled][:, batch.start :].sum())
    assert free.asked[0] == greedy
    first = next(iter(roll_out(head, batch, frozen.embed(batch.ids), SCALES, 1))).hidden
    batch.labels[:, batch.start :] = frozen.logits(first * SCALES.feature).argmax(dim=-1)
    assert chain_hits(head, batch, frozen, SCALES, 1) == Hits((greedy,), (greedy,))
