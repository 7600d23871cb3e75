"""Settings of a LayerSkip run and what a step draws. May import: pytest, torch, tss_bench."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tss_bench.training.layerskip_settings import LayerSkipSettings, draw


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "some"}, "drop='some' is unknown; use one of layerskip, uniform, none"),
        ({"exits": "late"}, "exits='late' is unknown"),
        ({"train": "head"}, "train='head' is unknown; use one of lora, full"),
        ({"max_drop": 0}, "max_drop must be at least 1, got 0"),
        ({"epochs": 0.0}, "epochs must be positive"),
        ({"dense_share": 1.5}, "dense_share must lie in 0 … 1, got 1.5"),
        ({"exit_scale": -1.0}, "exit_scale must not be negative"),
        ({"pool": "3,x"}, "x"),
    ],
)
def test_bad_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LayerSkipSettings(**change)


def test_the_pool_must_fit_the_model() -> None:
    with pytest.raises(ValueError, match="pool names layer 30; the model has layers 0 … 29"):
        LayerSkipSettings(pool="3,30").layers(30)
    with pytest.raises(ValueError, match="max_drop is 4, but the pool has 2 layers: 3, 4"):
        LayerSkipSettings(drop="uniform", pool="4,3").layers(30)
    assert LayerSkipSettings(pool="7+3+3").layers(30) == [3, 7]
    assert LayerSkipSettings().layers(5) == [1, 2, 3]


@pytest.mark.parametrize(("scope", "share"), [("all", 0.0), ("verify", 1.0), ("mixed", 0.5)])
def test_the_scope_decides_about_the_prompt(scope: str, share: float) -> None:
    settings = LayerSkipSettings(
        drop="uniform", pool="2", max_drop=1, dense_share=0, drop_scope=scope
    )
    prompts = torch.full((2000,), 3)
    drawn = draw(settings, 4, 0, 1, prompts, 5, torch.Generator().manual_seed(0))
    assert drawn.exits == [3]
    assert drawn.weights == [1]
    assert not drawn.kept[2, :, 3:].any()
    assert drawn.kept[[0, 1, 3]].all()
    dense = drawn.kept[2, :, :3].all(dim=1).float().mean()
    assert float(dense) == pytest.approx(share, abs=0.05)


def test_the_layerskip_recipe_uses_its_curricula() -> None:
    settings = LayerSkipSettings(
        drop="layerskip", p_max=1.0, time_curriculum="exp", exits="gradual", exit_scale=1.0
    )
    prompts = torch.ones(10, dtype=torch.long)
    first = draw(settings, 4, 0, 100, prompts, 5, torch.Generator().manual_seed(0))
    last = draw(settings, 4, 99, 100, prompts, 5, torch.Generator().manual_seed(0))
    assert first.kept.all()
    assert first.exits == [3]
    assert not last.kept[3].any()
    assert last.kept[0].all()
    assert last.exits == [0, 1, 2, 3]
    # e = 0, 1, 3, 3 + 3 at scale 1
    assert last.weights == pytest.approx([0, 0.1, 0.3, 0.6])
