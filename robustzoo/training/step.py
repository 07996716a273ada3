"""One optimizer step: attack every micro-batch, train on all through the engine, update the weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from robustzoo.models.pixel_model import PixelModel
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.weight_averaging import WeightAverage
from robustzoo.training import zero
from robustzoo.training.passes import Passes
from robustzoo.training.perturbation import perturbed_weights
from robustzoo.training.processes import Processes


@dataclass(frozen=True)
class Outcome:
    """What a step was, the same on every rank.

    Attributes:
        terms: mean of every loss term over the batch.
        gradient_norm: before clipping.
        skipped: fp16: the gradient did not fit, the weights are as they were, the loss scale is smaller.
    """

    terms: dict[str, float]
    gradient_norm: float
    skipped: bool

    @property
    def finite(self) -> bool:
        """Whether the run may go on."""
        return all(map(math.isfinite, (*self.terms.values(), 0.0 if self.skipped else self.gradient_norm)))


@dataclass(frozen=True)
class Step:
    """What the steps of a training share; calling it is one step."""

    objective: Objective
    model: PixelModel
    engine: object
    passes: Passes
    processes: Processes
    average: WeightAverage | None
    seed: int

    def __call__(
        self, step: int, rate: float, micro_batches: Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]
    ) -> Outcome:
        """Train on this rank's micro-batches.

        Args:
            step: optimizer steps done before.
            rate: the learning rate.
            micro_batches: (epochs, ids, x, y) each: int64 (B,), int64 (B,), (B, C, H, W) in [0, 1] after
                augmentation, and int64 (B,) or float (B, K).
        """
        objective, passes = self.objective, self.passes
        zero.set_learning_rate(self.engine, rate)
        attacked, terms_of = [], []
        for epochs, ids, x, y in micro_batches:
            x_adv = objective.attack(passes.attack, x, y, step=step, seed=self.seed, epochs=epochs, ids=ids)
            attacked.append((x, x_adv, y))
        with perturbed_weights(objective, self.model, self.processes, passes, attacked, step=step):
            for x, x_adv, y in attacked:
                features, logits = passes.train(objective.inputs(x, x_adv))
                terms = objective.terms(features, logits, y, step=step)
                zero.backward(self.engine, terms["total"])
                terms_of.append(torch.stack([value.detach() for value in terms.values()]))
        gradient_norm = zero.optimizer_step(self.engine)
        skipped = zero.skipped(self.engine)
        if self.average is not None and not skipped:
            self.average.update()
        means = self.processes.mean(torch.stack(terms_of).mean(dim=0)).tolist()
        return Outcome(dict(zip(terms, means, strict=True)), gradient_norm, skipped)
