"""Weights and curricula of LayerSkip's early-exit loss.

Formulas of "LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding" (ACL 2024,
section 4.2). The loss is the sum over exits of normalised weights times the loss of the logits
that the shared final norm and head give after that layer. Layers and steps are 0-based.

May import: the standard library only.
"""

from __future__ import annotations

EXIT_CURRICULA = ("none", "all", "rotational", "gradual")


def exits_at(kind: str, step: int, steps: int, num_layers: int, *, every: int = 4) -> list[int]:
    """C(t, l): the layers whose logits have a loss at step t, ascending; the last always has.

    `none`: the last alone. `all`: every layer. `rotational`: every `every`-th layer, one further
    each step. `gradual`: from the top down one layer more every T / 2L steps, so that all have a
    loss in the second half. Raises ValueError for another kind, step or `every`.
    """
    if not 0 <= step < steps:
        raise ValueError(f"step {step} is not among steps 0 … {steps - 1}")
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    last = num_layers - 1
    if kind == "none":
        return [last]
    if kind == "all":
        return list(range(num_layers))
    if kind == "rotational":
        return sorted({*range(step % every, num_layers, every), last})
    if kind == "gradual":
        more = step * 2 * num_layers // steps
        return list(range(max(0, last - more), num_layers))
    raise ValueError(f"unknown exit curriculum {kind!r}; use one of {', '.join(EXIT_CURRICULA)}")


def exit_weights(exits: list[int], num_layers: int, scale: float) -> list[float]:
    """Normalised weights of the given exits, one each; they sum to 1.

    e(l) = scale * (0 + 1 + … + l) below the last layer and L - 1 + scale * (0 + … + L - 2) for
    the last, divided by the sum over the exits. Raises
    ValueError when no exit has a positive weight.
    """

    def weight(layer: int) -> float:
        if layer < num_layers - 1:
            return scale * layer * (layer + 1) / 2
        return num_layers - 1 + scale * (num_layers - 2) * (num_layers - 1) / 2

    weights = [weight(layer) for layer in exits]
    total = sum(weights)
    if total <= 0:
        raise ValueError(
            f"the exits {exits} have no weight at scale {scale}; include the last layer"
        )
    return [value / total for value in weights]
