"""Adversarial weight perturbation in a training step, the same on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager

from torch import Tensor

from robustzoo.models.pixel_model import PixelModel
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.weight_perturbation import perturbed
from robustzoo.training.passes import Passes
from robustzoo.training.processes import Processes

MicroBatch = tuple[Tensor, Tensor, Tensor]  # x, x_adv (B, C, H, W); y (B,) or (B, K)


@contextmanager
def perturbed_weights(
    objective: Objective,
    model: PixelModel,
    processes: Processes,
    passes: Passes,
    micro_batches: Sequence[MicroBatch],
    *,
    step: int,
):
    """The weights of AWP inside the block, where the recipe has it at this step; else the weights as they
    are.

    Take the gradients inside and the optimizer's step outside: a step at perturbed weights would be undone.
    The direction is that of the whole batch, all micro-batches and ranks, so that its layout does not change
    the result.
    """
    if not objective.ascends(step):
        yield
        return
    total: list[Tensor] = []
    for x, x_adv, y in micro_batches:
        with passes.recomputing():
            parameters, directions = objective.ascent(model, x, x_adv, y)
        total = [a.add_(b) for a, b in zip(total, directions, strict=True)] if total else directions
    for direction in total:
        processes.mean(direction)
    with perturbed(parameters, total, objective.recipe.awp_delta):
        del total, directions  # the moves are made: no need to keep them through the backward pass
        yield
