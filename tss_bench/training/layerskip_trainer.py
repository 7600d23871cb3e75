"""The training loop of a model that learns to do without blocks: schedule, evaluation, resume.

A run that is killed and restarted continues from its last checkpoint and ends with the same
weights as one that was not: batches and draws depend on the seed and the step alone. Several
processes (accelerate) take consecutive batches of one plan and average their gradients.

May import: torch, accelerate, tqdm, transformers, tss_bench.training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm
from transformers import PreTrainedModel

from tss_bench.training.checkpoint import (
    batches_from,
    check_loss,
    learning_rate,
    load_checkpoint,
    save_checkpoint,
)
from tss_bench.training.corpora import text_digest
from tss_bench.training.droppable import DroppableModel
from tss_bench.training.eagle_data import AnsweredPrompt, Corpus, plan_batches
from tss_bench.training.layerskip_data import TextBatch, loss_positions, text_batch
from tss_bench.training.layerskip_objective import Agreement, agreement, exit_loss
from tss_bench.training.layerskip_settings import Draw, LayerSkipSettings, draw

CHECKPOINT = "checkpoint.pt"
# Rows of logits that are held at once in an evaluation.
_EVALUATED = 512


@dataclass(frozen=True)
class LayerSkipReport:
    """One evaluation on held-out answers: how close the model is to the untouched one.

    `dense` is full depth; `skipped` has one entry for each set of `Trainer.probes`.
    """

    step: int
    train_loss: float
    dense: Agreement
    skipped: tuple[Agreement, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "train_loss": round(self.train_loss, 4),
            "dense_kl": round(self.dense.kl, 4),
            "dense_top1": round(self.dense.top1, 4),
            "skipped_kl": [round(one.kl, 4) for one in self.skipped],
            "skipped_top1": [round(one.top1, 4) for one in self.skipped],
        }

    def __str__(self) -> str:
        sets = ", ".join(f"{one.kl:.3f}/{one.top1:.3f}" for one in self.skipped)
        return (
            f"step {self.step}: KL/top-1 to the untouched model on held-out answers: full depth "
            f"{self.dense.kl:.3f}/{self.dense.top1:.3f}, with skips {sets}"
        )


class StudentLoss(nn.Module):
    """The training loss of one batch; all that is trained lies inside."""

    teacher_weight: Tensor

    def __init__(self, student: DroppableModel, distill: bool) -> None:
        super().__init__()
        self.student = student
        model = student.model
        output: Any = model.get_output_embeddings()
        config = model.config.get_text_config(decoder=True)
        self._output = output
        self._softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self._distill = distill
        weight = output.weight.detach()
        # The teacher's head stays as it was, also where the student's own is trained.
        own = weight.clone() if output.weight.requires_grad else weight
        self.register_buffer("teacher_weight", own, persistent=False)

    def head(self, hidden: Tensor) -> Tensor:
        """The student's logits [.., V]."""
        return self._capped(self._output(hidden))

    @torch.no_grad()
    def teacher(self, features: Tensor) -> Tensor:
        """The untouched model's logits [.., V] from its last hidden states [.., H]."""
        return self._capped(F.linear(features, self.teacher_weight, self._output.bias))

    def forward(self, batch: TextBatch, drawn: Draw, counted: Tensor) -> Tensor:
        states = self.student(batch.ids, drawn.kept, drawn.exits)
        teacher = self.teacher(batch.features[counted]) if self._distill else None
        chosen = [state[counted] for state in states]
        return exit_loss(chosen, drawn.weights, self.head, teacher, batch.labels[counted])

    def _capped(self, scores: Tensor) -> Tensor:
        if self._softcap is None:
            return scores
        return torch.tanh(scores / self._softcap) * self._softcap


class LayerSkipTrainer:
    """A model, its optimizer and how far they are; `run` trains the model in place."""

    def __init__(
        self,
        model: PreTrainedModel,
        corpus: Corpus,
        train: Sequence[AnsweredPrompt],
        held_out: Sequence[AnsweredPrompt],
        settings: LayerSkipSettings,
        directory: Path,
        accelerator: Accelerator,
        base_revision: str = "",
    ) -> None:
        self._corpus, self._train = corpus, list(train)
        # Evenly spaced, so that every directory of text has its part.
        stride = max(1, len(held_out) // settings.eval_answers)
        self._held_out = list(held_out)[::stride][: settings.eval_answers]
        self._settings, self._accelerator = settings, accelerator
        self._origin = {"base": base_revision, "text": text_digest(train, held_out)}
        self._path = directory / CHECKPOINT
        loss = StudentLoss(DroppableModel(model), settings.objective == "distill")
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._optimizer: Any = torch.optim.AdamW(
            self._parameters,
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=settings.weight_decay,
        )
        self._loss: Any
        self._loss, self._optimizer = accelerator.prepare(loss, self._optimizer)
        self._inner: StudentLoss = accelerator.unwrap_model(self._loss)
        # No dropout inside: it would need the state of torch's generator to resume.
        self._loss.eval()
        self._num_layers = self._inner.student.num_layers
        self.probes = probes(settings, self._num_layers)
        per_epoch = len(plan_batches(self._train, settings.batch_slots)) // self.processes
        if not per_epoch:
            raise ValueError(
                f"the text gives fewer batches than there are processes ({self.processes}); lower "
                f"--batch-slots or use more text"
            )
        self.total_steps = max(1, round(per_epoch * settings.epochs))
        batches = per_epoch * self.processes
        self._mean_positions = sum(s.answer_slots for s in self._train) / batches
        self.step = 0
        self.reports: list[LayerSkipReport] = []
        self._recent: list[float] = []
        self._spent = 0.0

    @property
    def minutes(self) -> float:
        """Wall time of training so far, over all restarts."""
        return self._spent / 60

    @property
    def processes(self) -> int:
        """How many processes share the run."""
        return int(self._accelerator.num_processes)

    @property
    def device(self) -> str:
        """The kind of device that trains."""
        return str(self._accelerator.device.type)

    def run(self, max_minutes: float = math.inf, checkpoint_every: int = 50) -> None:
        """Train to the end or the time limit; checkpoints on the way."""
        self._resume()
        if not self.reports:
            self._evaluate()
        started = time.monotonic() - self._spent
        bar = tqdm(
            total=self.total_steps,
            initial=self.step,
            unit="step",
            smoothing=0.05,
            disable=not self._accelerator.is_main_process,
        )
        tokens, began = 0, time.monotonic()
        with bar:
            for sequences in self._batches():
                if self._any_process(self.minutes >= max_minutes):
                    break
                self._recent.append(self._update(sequences))
                tokens += sum(len(s.ids) - 1 for s in sequences) * self.processes
                self._spent = time.monotonic() - started
                rate = tokens / (time.monotonic() - began)
                bar.set_postfix_str(f"loss {self._recent[-1]:.3f}, {rate:.0f} tokens/s")
                bar.update()
                if self.step % self._settings.eval_every == 0:
                    self._evaluate()
                if self.step % checkpoint_every == 0:
                    self._save()
        if self.reports[-1].step != self.step:
            self._evaluate()
        self._save()

    def _batches(self) -> Iterator[list[AnsweredPrompt]]:
        """This process's batches from the current step on, epoch after epoch."""
        settings, count = self._settings, self.processes

        def plan(epoch: int) -> list[list[AnsweredPrompt]]:
            seed = settings.seed * 100_003 + epoch
            batches = plan_batches(self._train, settings.batch_slots, seed)
            return batches[self._accelerator.process_index : len(batches) // count * count : count]

        return batches_from(self.step, self.total_steps, plan)

    def _update(self, sequences: Sequence[AnsweredPrompt]) -> float:
        settings = self._settings
        place = self.step * self.processes + int(self._accelerator.process_index)
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + place)
        batch = text_batch(self._corpus, sequences).to(self._accelerator.device)
        n = batch.ids.shape[1]
        drawn = draw(settings, self._num_layers, self.step, self.total_steps,
                     batch.prompt_lengths, n, generator)  # fmt: skip
        drawn = Draw(drawn.kept.to(batch.ids.device), drawn.exits, drawn.weights)
        counted = loss_positions(batch, settings.prompt_share, generator)
        rate = learning_rate(self.step, self.total_steps, settings.warmup, settings.learning_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with self._autocast():
            loss = self._loss(batch, drawn, counted)
        check_loss(float(loss.detach()), self.step)
        self._optimizer.zero_grad(set_to_none=True)
        # Every position counts about the same, whichever batch it is in.
        self._accelerator.backward(loss * (int(counted.sum()) / self._mean_positions))
        self._accelerator.clip_grad_norm_(self._parameters, settings.clip)
        self._optimizer.step()
        self.step += 1
        return float(loss.detach())

    def _any_process(self, here: bool) -> bool:
        """Whether it is so in any process; all get the same answer, so that all stop together."""
        if self.processes == 1:
            return here
        flag = torch.tensor([float(here)], device=self._accelerator.device)
        return bool(self._accelerator.gather(flag).max() > 0)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            self._accelerator.device.type,
            torch.bfloat16,
            enabled=self._settings.precision == "bfloat16",
        )

    @torch.no_grad()
    def _evaluate(self) -> None:
        sets: list[tuple[int, ...]] = [(), *self.probes]
        found = [Agreement() for _ in sets]
        for sequences in plan_batches(self._held_out, self._settings.batch_slots):
            batch = text_batch(self._corpus, sequences).to(self._accelerator.device)
            for place, layers in enumerate(sets):
                found[place] += self._agreement(batch, layers)
        recent = sum(self._recent) / max(1, len(self._recent))
        self._recent = []
        self.reports.append(LayerSkipReport(self.step, recent, found[0], tuple(found[1:])))
        if self._accelerator.is_main_process:
            tqdm.write(str(self.reports[-1]))

    def _agreement(self, batch: TextBatch, layers: Sequence[int]) -> Agreement:
        rows, n = batch.ids.shape
        kept = torch.ones(self._num_layers, rows, n, dtype=torch.bool, device=batch.ids.device)
        kept[list(layers)] = False
        inner, total = self._inner, Agreement()
        with self._autocast():
            (hidden,) = inner.student(batch.ids, kept)
            states = hidden[batch.answer].split(_EVALUATED)
            features = batch.features[batch.answer].split(_EVALUATED)
            for ours, theirs in zip(states, features, strict=True):
                total += agreement(inner.teacher(theirs), inner.head(ours))
        return total

    def _run(self) -> dict[str, Any]:
        """All that the weights depend on."""
        return {
            **asdict(self._settings),
            **self._origin,
            "processes": self.processes,
        }

    def _save(self) -> None:
        if not self._accelerator.is_main_process:
            return
        state = {
            "run": self._run(),
            "step": self.step,
            "weights": [p.detach().cpu() for p in self._parameters],
            "optimizer": self._optimizer.state_dict(),
            "spent": self._spent,
            "recent": self._recent,
            "reports": [asdict(report) for report in self.reports],
        }
        save_checkpoint(self._path, state)

    def _resume(self) -> None:
        """Continue from the checkpoint, if there is one; raises ValueError if it does not fit."""
        state = load_checkpoint(self._path, self._run())
        if state is None:
            return
        with torch.no_grad():
            for parameter, value in zip(self._parameters, state["weights"], strict=True):
                parameter.copy_(value)
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self._spent = state["step"], state["spent"]
        self._recent = list(state["recent"])
        self.reports = [
            LayerSkipReport(
                r["step"],
                r["train_loss"],
                Agreement(**r["dense"]),
                tuple(Agreement(**one) for one in r["skipped"]),
            )
            for r in state["reports"]
        ]
        tqdm.write(f"resumed from step {self.step}")


def probes(settings: LayerSkipSettings, num_layers: int) -> list[tuple[int, ...]]:
    """Skip sets of an evaluation: 1, 2, 4, … layers of the pool, each holding the one before.

    The layers are spread over the pool, up to `max_drop` of them.
    """
    pool = settings.layers(num_layers)
    most = min(settings.max_drop, len(pool))
    sizes = [size for size in (1, 2, 4, 8, 16) if size < most] + [most]
    spread = [pool[round((i + 0.5) * len(pool) / most - 0.5)] for i in range(most)]
    return [tuple(sorted(spread[:size])) for size in sizes]
