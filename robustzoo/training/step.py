"""One optimizer step: its rate, the attack on every micro-batch, training on all, the update; its cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from robustzoo.models.batch_norm import put_back, running_statistics
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.weight_averaging import WeightAverage
from robustzoo.registry import Recipe
from robustzoo.training import zero
from robustzoo.training.passes import Passes
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
        statistics = running_statistics(self.engine.module)
        before = {name: tensor.clone() for name, tensor in statistics.items()}
        zero.set_learning_rate(self.engine, rate)
        attacked, terms_of = [], []
        for epochs, ids, x, y in micro_batches:
            keys = {"step": step, "seed": self.seed, "epochs": epochs, "ids": ids}
            attacked.append((*objective.attacked(passes.attack, x, y, **keys), y))
        with passes.perturbed_weights(objective, self.processes, attacked, step=step):
            for x, x_adv, y in attacked:
                outputs = passes.train(objective.inputs(x, x_adv))
                terms = objective.terms(*outputs[:2], y, step=step, head_square=outputs[2:])
                passes.backward(terms["total"])
                terms_of.append(torch.stack([value.detach() for value in terms.values()]))
        gradient_norm = zero.optimizer_step(self.engine)
        skipped = zero.skipped(self.engine)
        if skipped:  # activations may have overflowed too
            put_back(self.engine.module, before)
        self.processes.share(statistics.values())  # each rank has seen its own images
        if self.average is not None and not skipped:
            self.average.update(step)
        means = self.processes.mean(torch.stack(terms_of).mean(dim=0)).tolist()
        return Outcome(dict(zip(terms, means, strict=True)), gradient_norm, skipped)


def learning_rate(recipe: Recipe, step: int) -> float:
    """Learning rate of optimizer step `step` (0 is the first): linear warm-up, then the recipe's decay.

    Step t < warmup_steps has base_lr (t + 1) / warmup_steps, so that no step is lost on a rate of zero. After
    that cosine has base_lr (1 + cos(pi u)) / 2 and linear base_lr (1 - u) (the whole is one cycle), with
    u = (t - warmup_steps) / (total_steps - warmup_steps), which would reach zero at t = total_steps, the step
    after the last; multistep has base_lr / 10^k from step t = m total_steps of its k-th milestone m on. Shape
    and warm-up length: the recipe's sources.

    Raises:
        ValueError: step outside [0, total_steps).
    """
    if not 0 <= step < recipe.total_steps:
        raise ValueError(f"step {step} is outside the schedule of {recipe.total_steps} steps")
    if step < recipe.warmup_steps:
        return recipe.base_lr * (step + 1) / recipe.warmup_steps
    if recipe.lr_schedule == "multistep":
        # The decimal that was written: 0.1 * 30 is above 3 in binary.
        passed = sum(step >= Fraction(str(share)) * recipe.total_steps for share in recipe.lr_milestones)
        return recipe.base_lr / 10**passed
    progress = (step - recipe.warmup_steps) / (recipe.total_steps - recipe.warmup_steps)
    if recipe.lr_schedule == "linear":
        return recipe.base_lr * (1.0 - progress)
    return recipe.base_lr * 0.5 * (1.0 + math.cos(math.pi * progress))


def expected_cost(recipe: Recipe, steps: int) -> str:
    """What `steps` optimizer steps of a recipe cost, in network passes, in one line for people."""
    cost = recipe.cost()
    images = steps * recipe.batch_size
    return (
        f"{steps:,} steps of {recipe.batch_size} images, each {cost['passes_per_step']} = "
        f"{cost['forward_equivalents']} F (at B = F, T = 3 F): "
        f"{images * cost['forward_equivalents']:,} forward passes of one image"
    )
