"""What updates the weights of an EAGLE head: Muon for its matrices, or AdamW for everything.

May import: torch.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import Optimizer

OPTIMIZERS = ("muon", "adamw")


def check_optimizer(name: str) -> None:
    """Raises ValueError for an unknown name and for one that this torch does not have."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r} is unknown; use one of {', '.join(OPTIMIZERS)}")
    if name == "muon" and not hasattr(torch.optim, "Muon"):
        raise ValueError(
            f"torch {torch.__version__} has no Muon; update it to 2.9 or later, or use "
            f"--optimizer adamw"
        )


def make_optimizers(
    module: nn.Module, name: str, learning_rate: float, weight_decay: float
) -> list[Optimizer]:
    """The optimizers that update `module` together.

    Muon (Jordan et al. 2024) makes each matrix's step orthogonal; scaled so that it is as large
    as a step of AdamW (arXiv 2502.16982), both take the same learning rate. Vectors are left to
    AdamW, under either name.
    """
    matrices = [p for p in module.parameters() if p.ndim == 2 and name == "muon"]
    others = [p for p in module.parameters() if p.ndim != 2 or name != "muon"]
    adamw = torch.optim.AdamW(
        others, lr=learning_rate, betas=(0.9, 0.95), weight_decay=weight_decay
    )
    if not matrices:
        return [adamw]
    muon = torch.optim.Muon(
        matrices, lr=learning_rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, adamw]
