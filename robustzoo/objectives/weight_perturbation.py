"""AWP (Wu et al. 2020): the loss is minimised at weights that were perturbed to raise it, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from robustzoo.objectives.objective import Objective

MicroBatch = tuple[Tensor, Tensor, Tensor]  # x, x_adv, y, as Objective takes them

# timm's names of what has two dimensions or more without being the weight of a layer.
_TOKENS = ("cls_token", "pos_embed", "reg_token", "dist_token")


class PerturbationError(ValueError):
    """Weights that AWP cannot perturb."""


def perturbed_weights(module: nn.Module) -> list[nn.Parameter]:
    """The weights that AWP moves: two dimensions or more, no class token and no position embedding.

    Raises:
        PerturbationError: half-precision weights, which would lose most of a perturbation of this size.
    """
    weights = []
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2 or name.rpartition(".")[2] in _TOKENS:
            continue
        if parameter.dtype not in (torch.float32, torch.float64):
            raise PerturbationError(
                f"AWP needs float32 weights, {name} is {parameter.dtype}: use autocast, which keeps them"
            )
        weights.append(parameter)
    return weights


@contextmanager
def perturbed(weights: Sequence[Tensor], directions: Sequence[Tensor], delta: float) -> Iterator[None]:
    """Within the block every weight w is w + v, v along its direction with |v| = delta |w|.

    Norms are those of the whole tensor; where a direction is zero, so is v. Afterwards, also after an
    exception, the weights are what they were, bit for bit: they are copied back, not subtracted from.
    """
    before = [weight.detach().clone() for weight in weights]
    try:
        with torch.no_grad():
            for weight, direction in zip(weights, directions, strict=True):
                length = direction.norm()
                scale = delta * weight.norm() / length.where(length > 0, 1)
                weight.add_(direction * scale)
        del directions, direction  # as large as the weights, and no longer needed
        yield
    finally:
        with torch.no_grad():
            for weight, old in zip(weights, before, strict=True):
                weight.copy_(old)


@contextmanager
def adversarial_weights(
    objective: Objective,
    module: Callable[[Tensor], tuple[Tensor, Tensor]],
    micro_batches: Sequence[MicroBatch],
    *,
    step: int,
    mean_over_ranks: Callable[[Tensor], Tensor] = lambda tensor: tensor,
) -> Iterator[None]:
    """AWP for one optimizer step: within the block `module` has perturbed weights; enter it before, and leave
    it between, the backward passes and the step. Without AWP in the recipe, or during its warm-up, nothing.

    The direction is the gradient of the method's robust loss (S2O's part included, as the releases of AT-AWP
    and TRADES-AWP ascend the loss they train on; without the trace and |theta|^2, which are no part of the
    adversary's game) at the attacked images. It is taken over the whole batch, all micro-batches and ranks,
    so that how the batch is laid out does not change the result.

    Args:
        module: pixels to features and logits, with parameters; under DeepSpeed `engine.module`.
        micro_batches: of this rank, all of the step.
        step: 0-based optimizer step.
        mean_over_ranks: all-reduces a tensor, in place or not.
    """
    recipe = objective.recipe
    if "awp" not in recipe.defences or step < recipe.awp_warmup_steps:
        yield
        return
    weights = perturbed_weights(module)  # type: ignore[arg-type]  # a Module in a callable's clothes
    directions: Sequence[Tensor] = ()
    for x, x_adv, y in micro_batches:
        loss = objective.terms(*module(objective.inputs(x, x_adv)), y, step=step)["robust"]
        gradients = torch.autograd.grad(loss / len(micro_batches), weights)
        directions = [d + g for d, g in zip(directions, gradients, strict=True)] if directions else gradients
    directions = [mean_over_ranks(direction) for direction in directions]
    with perturbed(weights, directions, recipe.awp_delta):
        del directions, gradients, loss
        yield
