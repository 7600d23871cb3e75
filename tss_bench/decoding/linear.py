"""Linear maps whose weights are laid out once for the CPU's matrix kernels.

May import: torch. In bfloat16 on a CPU `F.linear` re-orders the weight at every call, which takes
longer than the product itself for a few rows; a weight packed once gives the same bits in about
half the time. Elsewhere a plain linear map is used.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Linear = Callable[[Tensor], Tensor]


class PackedLinear(nn.Module):
    """y = x W^T + b with a packed W; inference only, the plain weight can be dropped."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")


def can_pack(weight: Tensor) -> bool:
    """Whether packing this weight works here and pays."""
    operators = torch.ops.mkldnn
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.bfloat16
        and torch.backends.mkldnn.is_available()
        and hasattr(operators, "_linear_pointwise")
        and hasattr(operators, "_reorder_linear_weight")
        and bool(operators._is_mkldnn_bf16_supported())
    )


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest map for a weight [out, in]; a plain one keeps the given tensors, uncopied."""
    if can_pack(weight):
        return PackedLinear(weight, bias)
    return partial(F.linear, weight=weight, bias=bias)


def pack_linears(module: nn.Module) -> None:
    """Replace every `nn.Linear` inside `module` that can be packed, in place."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear) and can_pack(child.weight):
            setattr(module, name, PackedLinear(child.weight, child.bias))
        else:
            pack_linears(child)
