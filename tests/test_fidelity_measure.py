"""Teacher-forced readings against Hugging Face's own forward passes.

May import: pytest, torch, transformers, tss_bench, tests.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from tests import tiny
from tss_bench import fidelity_measure as fm
from tss_bench.decoding.target import Target
from tss_bench.fidelity_measure import Answer, Readings, Variant, measure, variants
from tss_bench.types import SkipSet

DENSE = SkipSet.dense(tiny.LAYERS)
PAIR = SkipSet.of([1, 2], tiny.LAYERS)
ANSWERS = [
    Answer(torch.tensor([5, 9, 11, 7, 30, 8]), 2),
    Answer(torch.tensor([40, 12, 6, 3]), 3),
    Answer(torch.tensor([21, 33, 4, 17, 29, 6, 44, 10, 3]), 4),
]


def changed_model(family: str = "llama") -> PreTrainedModel:
    """The tiny model with other weights."""
    model = copy.deepcopy(tiny.model(family))
    torch.manual_seed(2)
    for parameter in model.parameters():
        parameter.data = parameter.data + 0.05 * torch.randn_like(parameter)
    return model


def readings(
    model: PreTrainedModel, sets: list[SkipSet], tokens: int = 4096, family: str = "llama"
) -> Readings:
    wanted = [
        *variants("reference", sets, tiny.LAYERS),
        *variants("target", sets, tiny.LAYERS),
    ]
    targets = {"reference": tiny.target(family), "target": Target(model)}
    return measure(targets, ANSWERS, wanted, tokens)  # type: ignore[arg-type]


@contextmanager
def blocks(model: PreTrainedModel, kept: list[int]) -> Iterator[None]:
    inner = model.get_decoder()
    all_blocks, kinds = inner.layers, getattr(model.config, "layer_types", None)
    inner.layers = nn.ModuleList(all_blocks[i] for i in kept)
    model.config.num_hidden_layers = len(kept)
    if kinds:
        model.config.layer_types = [kinds[i] for i in kept]
    try:
        yield
    finally:
        inner.layers = all_blocks
        model.config.num_hidden_layers = len(all_blocks)
        if kinds:
            model.config.layer_types = kinds


@torch.no_grad()
def log_probabilities(model: PreTrainedModel, answer: Answer, variant: Variant) -> Tensor:
    """float32 [n - 1, V]: what each id but the last predicts, by the model's own forward pass."""
    kept = list(variant.skip.active)
    if variant.exit is not None:
        kept = list(range(variant.exit + 1))
    with blocks(model, kept):
        logits = model(answer.ids[None, :-1], use_cache=False).logits[0]
    return logits.float().log_softmax(-1)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_readings_are_those_of_the_models_themselves(family: str) -> None:
    model = changed_model(family)
    found = readings(model, [PAIR], family=family)
    models = {"reference": tiny.model(family), "target": model}
    assert len(found.agreement) == 2 * (1 + tiny.LAYERS + 1 + tiny.LAYERS)
    for variant, agreement in found.agreement.items():
        for place, answer in enumerate(ANSWERS):
            start = answer.prompt_length - 1
            dense = Variant("reference", DENSE)
            expected = log_probabilities(models["reference"], answer, dense)[start:]
            own = log_probabilities(models[variant.role], answer, variant)
            agrees = (own[start:].argmax(-1) == expected.argmax(-1)).sum()
            assert agreement[place] == agrees
            if variant.exit is not None:
                assert variant not in found.divergence
                continue
            kl = F.kl_div(own[start:], expected, log_target=True, reduction="sum")
            assert float(found.divergence[variant][place]) == pytest.approx(float(kl), abs=1e-4)
            surprise = F.nll_loss(own[start:], answer.ids[start + 1 :], reduction="sum")
            assert float(found.surprise[variant][place]) == pytest.approx(float(surprise), rel=1e-4)
            if not variant.skip:
                prompt = F.nll_loss(own[:start], answer.ids[1 : start + 1], reduction="sum")
                read = float(found.prompt_surprise[variant][place])
                assert read == pytest.approx(float(prompt), rel=1e-4)
    assert found.answer_positions.tolist() == [4, 1, 5]
    assert found.prompt_positions.tolist() == [1, 2, 3]


def test_a_target_is_no_distance_from_itself() -> None:
    found = readings(copy.deepcopy(tiny.model()), [PAIR])
    for variant in variants("reference", [PAIR], tiny.LAYERS):
        twin = Variant("target", variant.skip, variant.exit)
        assert found.agreement[variant].tolist() == found.agreement[twin].tolist()
        if variant.exit is None:
            assert found.divergence[variant].tolist() == found.divergence[twin].tolist()
    for role in ("reference", "target"):
        dense = Variant(role, DENSE)  # type: ignore[arg-type]
        assert found.divergence[dense].tolist() == [0, 0, 0]
        assert found.agreement[dense].tolist() == found.answer_positions.tolist()


def test_the_last_exit_is_the_whole_model_and_an_earlier_one_lacks_the_rest() -> None:
    later = [SkipSet.of(range(k, tiny.LAYERS), tiny.LAYERS) for k in range(1, tiny.LAYERS)]
    found = readings(changed_model(), later)
    last = found.agreement[Variant("target", DENSE, tiny.LAYERS - 1)]
    assert last.tolist() == found.agreement[Variant("target", DENSE)].tolist()
    for layer, skip in enumerate(later):
        early = found.agreement[Variant("target", DENSE, layer)]
        assert early.tolist() == found.agreement[Variant("target", skip)].tolist()


def test_batches_and_pieces_of_the_vocabulary_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = changed_model()
    expected = readings(model, [PAIR])
    monkeypatch.setattr(fm, "_LOGITS_AT_ONCE", 3 * tiny.VOCAB)
    found = readings(model, [PAIR], tokens=8)
    for name in ("agreement", "divergence", "surprise", "prompt_surprise"):
        sums = getattr(found, name)
        for variant, values in getattr(expected, name).items():
            torch.testing.assert_close(sums[variant], values, atol=1e-5, rtol=1e-5)


def test_batches_hold_every_answer_once_within_the_limit() -> None:
    lengths = [5, 9, 3, 9, 4]
    batches = list(fm._batches(lengths, 18))
    assert batches == [[1, 3], [0, 4, 2]]
    assert list(fm._batches(lengths, 1)) == [[1], [3], [0], [4], [2]]


def test_a_pass_begins_where_it_differs_from_the_dense_one() -> None:
    assert [Variant("target", skip).first for skip in (DENSE, PAIR)] == [tiny.LAYERS, 1]
    assert Variant("target", DENSE, 0).first == 1


def test_each_variant_is_there_once() -> None:
    single = SkipSet.of([1], tiny.LAYERS)
    found = variants("target", [single, PAIR, DENSE], tiny.LAYERS)
    assert [str(v.skip) for v in found[:6]] == ["{}", "{0}", "{1}", "{2}", "{3}", "{1,2}"]
    assert [v.exit for v in found[6:]] == [0, 1, 2, 3]
