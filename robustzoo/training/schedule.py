"""How long, how fast and how dear: the learning rate of a step and the cost of a recipe in passes."""

from __future__ import annotations

import math
from fractions import Fraction

from robustzoo.registry import Recipe


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
