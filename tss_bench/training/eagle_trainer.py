"""The training loop of an EAGLE head: schedule, evaluation, early stop, checkpoints.

A run that is killed and restarted continues from its last checkpoint and ends with the same
weights as one that was not: batches and noise depend on the seed and the step alone.

May import: torch, tqdm, tss_bench.decoding and tss_bench.training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from tss_bench.decoding.drafters.eagle_head import EagleConfig, EagleHead
from tss_bench.training.checkpoint import (
    batches_from,
    check_loss,
    learning_rate,
    load_checkpoint,
    reading_parts,
    save_checkpoint,
)
from tss_bench.training.corpora import text_digest
from tss_bench.training.eagle_data import AnsweredPrompt, Batch, Corpus, plan_batches
from tss_bench.training.eagle_objective import (
    Frozen,
    Hits,
    Losses,
    chain_hits,
    losses,
)
from tss_bench.training.eagle_scaling import Scales, initialise, training_config
from tss_bench.training.eagle_settings import Settings
from tss_bench.training.optimizers import make_optimizers

CHECKPOINT = "checkpoint.pt"
_TEXT_ARGUMENTS = "--data, --held-out or --train-tokens"
# Depth of the chains whose acceptance is reported.
_CHAIN = 5


@dataclass(frozen=True)
class Report:
    """One evaluation on held-out text: losses of step 1 and of all, acceptance of a chain."""

    step: int
    loss: float
    feature_loss: float
    token_loss: float
    hits: Hits

    def to_dict(self) -> dict[str, Any]:
        """Rounded figures; None for those that nothing was measured for."""
        return {
            "step": self.step,
            "loss": round(self.loss, 4),
            "feature_loss": round(self.feature_loss, 4),
            "token_loss": round(self.token_loss, 4),
            "acceptance_by_depth": [_rounded(share) for share in self.hits.acceptance],
            "chain_accept_len": _rounded(self.hits.chain_length),
        }

    def __str__(self) -> str:
        return (
            f"step {self.step}: held-out loss {self.loss:.4f} (feature {self.feature_loss:.4f}, "
            f"token {self.token_loss:.4f}), {self._acceptance()}"
        )

    def _acceptance(self) -> str:
        if self.hits.chain_length is None:
            return "acceptance not measured (no greedy answer is held out)"
        depths = ["-" if share is None else f"{share:.3f}" for share in self.hits.acceptance]
        return (
            f"acceptance by depth {' '.join(depths)}, chain accept_len {self.hits.chain_length:.3f}"
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _as_float(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    return (inputs[0].float(),)


class Trainer:
    """A head, its optimizers and how far they are; `run` trains, `best_head` is the outcome.

    Where `directory` holds a checkpoint, the run continues from it, with its `scales` in place of
    those given. Raises ValueError for a checkpoint of another run.
    """

    def __init__(
        self,
        corpus: Corpus,
        train: Sequence[AnsweredPrompt],
        held_out: Sequence[AnsweredPrompt],
        frozen: Frozen,
        scales: Scales,
        config: EagleConfig,
        settings: Settings,
        directory: Path,
    ) -> None:
        self._corpus, self._train, self._held_out = corpus, list(train), list(held_out)
        self._frozen, self._settings = frozen, settings
        self._path = directory / CHECKPOINT
        self._device = frozen.target.device
        state = load_checkpoint(self._path, self._run(), _TEXT_ARGUMENTS)
        # Weights are in units of the scales they were trained with; those of features that were
        # computed again may differ by rounding.
        with reading_parts(self._path):
            self.scales = scales if state is None else Scales(**state["run"]["scales"])
        self._head = self._new_head(config)
        self._optimizers = make_optimizers(
            self._head, settings.optimizer, settings.learning_rate, settings.weight_decay
        )
        per_epoch = len(plan_batches(self._train, settings.batch_slots))
        self.total_steps = per_epoch * settings.epochs
        self._mean_slots = sum(s.answer_slots for s in self._train) / per_epoch
        self.step = 0
        self.reports: list[Report] = []
        self._best: dict[str, Tensor] = {}
        self._since_best = 0
        self._spent = 0.0
        if state is not None:
            with reading_parts(self._path):
                self._resume(state)

    def _new_head(self, config: EagleConfig) -> EagleHead:
        """A head of shape `config` with its first weights, on the target's device."""
        frozen = self._frozen
        head = EagleHead(training_config(config, self.scales))
        initialise(head, self._settings.seed)
        if frozen.draft_ids.numel() < frozen.target.vocab_size:
            offsets = frozen.draft_ids.cpu() - torch.arange(len(frozen.draft_ids))
            head.get_buffer("d2t").copy_(offsets)
        # Under autocast the residual stream is bfloat16; its norm is computed in float32.
        norm = head.get_submodule("layers.0.post_attention_layernorm")
        norm.register_forward_pre_hook(_as_float)
        return head.to(self._device)

    @property
    def draft_vocab(self) -> int:
        """How many ids the head can draft."""
        return len(self._frozen.draft_ids)

    @property
    def best_report(self) -> Report:
        """The evaluation of the weights that `best_head` gives."""
        return min(self.reports, key=lambda report: report.loss)

    @property
    def minutes(self) -> float:
        """Wall time of training so far, over all restarts."""
        return self._spent / 60

    def best_head(self) -> EagleHead:
        """The head with the lowest held-out loss, in training units."""
        self._head.load_state_dict(self._best)
        return self._head.eval()

    def run(self, max_minutes: float = math.inf, checkpoint_every: int = 100) -> None:
        """Train to the end, the time limit or an early stop; checkpoints on the way."""
        started = time.monotonic() - self._spent
        bar = tqdm(total=self.total_steps, initial=self.step, unit="step", smoothing=0.05)
        slots, began = 0, time.monotonic()
        with bar:
            for batch in self._batches():
                if self._since_best >= self._settings.patience or self.minutes >= max_minutes:
                    break
                outcome = self._update(batch)
                slots += outcome.slots
                self._spent = time.monotonic() - started
                rate = slots / (time.monotonic() - began)
                bar.set_postfix_str(
                    f"loss {outcome.total.item():.3f}, feature {outcome.feature.item():.3f}, "
                    f"token {outcome.token.item():.3f}, {rate:.0f} tokens/s"
                )
                bar.update()
                if self.step % self._settings.eval_every == 0:
                    self._evaluate()
                if self.step % checkpoint_every == 0:
                    self._save()
        if not self.reports or self.reports[-1].step != self.step:
            self._evaluate()
        self._save()

    def _batches(self) -> Iterator[list[AnsweredPrompt]]:
        """The batches from the current step on, epoch after epoch, `total_steps` in all."""
        settings = self._settings

        def plan(epoch: int) -> list[list[AnsweredPrompt]]:
            seed = settings.seed * 100_003 + epoch
            return plan_batches(self._train, settings.batch_slots, seed)

        return batches_from(self.step, self.total_steps, plan)

    def _update(self, sequences: Sequence[AnsweredPrompt]) -> Losses:
        settings = self._settings
        batch = self._corpus.batch(sequences).to(self._device)
        rate = learning_rate(self.step, self.total_steps, settings.warmup, settings.learning_rate)
        for group in (g for optimizer in self._optimizers for g in optimizer.param_groups):
            group["lr"] = rate
        self._head.train()
        outcome = self._losses(batch, self._noise(batch.features.shape))
        check_loss(float(outcome.total.detach()), self.step)
        self._head.zero_grad(set_to_none=True)
        # Every token counts the same, whichever batch it is in.
        (outcome.total * (outcome.slots / self._mean_slots)).backward()
        nn.utils.clip_grad_norm_(self._head.parameters(), settings.clip)
        for optimizer in self._optimizers:
            optimizer.step()
        self.step += 1
        return outcome

    def _losses(self, batch: Batch, noise: Tensor | None = None) -> Losses:
        settings = self._settings
        with self._autocast():
            return losses(
                self._head,
                batch,
                self._frozen,
                self.scales,
                settings.weights,
                settings.multi_steps,
                noise,
            )

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self._device.type, torch.bfloat16, enabled=self._settings.precision == "bfloat16"
        )

    def _noise(self, shape: torch.Size) -> Tensor | None:
        """Uniform noise of the current step, in units of the feature scale."""
        if not self._settings.noise:
            return None
        generator = torch.Generator().manual_seed(self._settings.seed * 1_000_003 + self.step)
        draws = torch.rand(shape, generator=generator) * 2 - 1
        return (draws * self._settings.noise).to(self._device)

    @torch.no_grad()
    def _evaluate(self) -> None:
        self._head.eval()
        # One mean a column: total, feature and token loss.
        sums, counts = torch.zeros(3), torch.zeros(3)
        hits = Hits((0,) * _CHAIN, (0,) * _CHAIN)
        for sequences in plan_batches(self._held_out, self._settings.batch_slots):
            batch = self._corpus.batch(sequences).to(self._device)
            found = self._losses(batch)
            means = torch.stack((found.total, found.feature, found.token)).cpu().float()
            over = torch.tensor([found.slots, found.slots, found.known])
            sums, counts = sums + means * over, counts + over
            with self._autocast():
                hits += chain_hits(self._head, batch, self._frozen, self.scales, _CHAIN)
        loss, feature, token = (sums / counts.clamp(min=1)).tolist()
        # The last step's loss came before its update: only this shows what the update did.
        check_loss(loss, self.step)
        report = Report(self.step, loss, feature, token, hits)
        tqdm.write(str(report))
        improved = not self.reports or loss < self.best_report.loss
        self.reports.append(report)
        self._since_best = 0 if improved else self._since_best + 1
        if improved:
            self._best = {k: v.cpu().clone() for k, v in self._head.state_dict().items()}

    def _run(self) -> dict[str, Any]:
        """All that the weights depend on, beside the scales that a resumed run goes on with."""
        return {
            **asdict(self._settings),
            "text": text_digest(self._train, self._held_out),
            "draft_vocab": self.draft_vocab,
        }

    def _save(self) -> None:
        state = {
            "run": {**self._run(), "scales": asdict(self.scales)},
            "step": self.step,
            "head": self._head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "best": self._best,
            "since_best": self._since_best,
            "spent": self._spent,
            "reports": [{**vars(r), "hits": vars(r.hits)} for r in self.reports],
        }
        save_checkpoint(self._path, state)

    def _resume(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        # Both, so that weights that do not fit show now and not at the end.
        for weights in (state["best"] or state["head"], state["head"]):
            self._head.load_state_dict(weights)
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self._best = state["step"], state["best"]
        self._since_best, self._spent = state["since_best"], state["spent"]
        self.reports = [Report(**{**r, "hits": Hits(**r["hits"])}) for r in state["reports"]]
        tqdm.write(f"resumed from step {self.step}")
