"""A loss, a defence and an optimizer, each a function that an entry point of pyproject.toml names."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import relu

from robustzoo.objectives.extension import Defence, Loss, Seen
from robustzoo.objectives.losses import cross_entropy


def margin(recipe, gap: float = 1.0) -> Loss:
    """Cross-entropy of the adversarial image, and how far its logit falls short of the next one + gap."""

    def terms(seen: Seen) -> dict[str, Tensor]:
        y = seen.y.argmax(-1) if seen.y.is_floating_point() else seen.y
        true = seen.logits.gather(1, y[:, None])
        others = seen.logits.scatter(1, y[:, None], -torch.inf).amax(1, keepdim=True)
        shortfall = relu(gap + others - true).mean()
        ce = cross_entropy(seen.logits, seen.y).mean()
        return {"robust": ce + shortfall, "adversarial_ce": ce, "shortfall": shortfall}

    return Loss(terms)


def calm(recipe, weight: float = 0.01) -> Defence:
    """weight times the mean squared distance of clean and adversarial features."""

    def terms(seen: Seen) -> dict[str, Tensor]:
        return {"calm": weight * (seen.features - seen.clean_features).square().mean()}

    return Defence(terms, needs_clean=True)


def signed(recipe, groups, weight_decay: float, momentum: float = 0.9) -> torch.optim.Optimizer:
    """Steps along the sign of a running mean of the gradients, weight decay coupled."""
    return SignedMean(groups, {"lr": recipe.base_lr, "weight_decay": weight_decay, "momentum": momentum})


class SignedMean(torch.optim.Optimizer):
    """theta -= lr sign(mean), with mean = momentum mean + (1 - momentum) (gradient + weight_decay theta)."""

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad + group["weight_decay"] * weight, 1 - group["momentum"])
                weight.sub_(group["lr"] * mean.sign())
