"""Adversarial weight perturbation in a training step, the same on every rank."""

from __future__ import annotations

from contextlib import contextmanager

from torch import Tensor

from robustzoo.models.pixel_model import PixelModel
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.weight_perturbation import perturbed
from training.processes import Processes


@contextmanager
def perturbed_weights(
    objective: Objective,
    model: PixelModel,
    processes: Processes,
    x: Tensor,
    x_adv: Tensor,
    y: Tensor,
    *,
    step: int,
):
    """The weights of AWP inside the block, where the recipe has it at this step; else the weights as they
    are.

    Take the gradient inside and the optimizer's step outside: a step at perturbed weights would be undone.
    The direction is that of the micro-batch, averaged over the ranks: with AWP, accumulation changes the
    result.
    """
    if not objective.ascends(step):
        yield
        return
    parameters, directions = objective.ascent(model, x, x_adv, y)
    for direction in directions:
        processes.mean(direction)
    with perturbed(parameters, directions, objective.recipe.awp_delta):
        del directions  # the moves are made: no need to keep them through the backward pass
        yield
