"""A small ReLU network in float64 and its Hessian by automatic differentiation."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call


def mlp(widths=(3, 7, 6, 4), seed: int = 0, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for below, above in pairwise(widths):
        layers += [nn.Linear(below, above, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def samples(n: int = 9, d: int = 3, classes: int = 4, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = 2.0 * torch.randn(n, d, generator=generator, dtype=torch.float64)
    return x, torch.randint(classes, (n,), generator=generator)


def weight_hessian(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, list[int]]:
    """Hessian (n, n) of mean cross-entropy in all weights (no biases), and the size of each weight."""
    named = dict(model.named_parameters())
    names = [name for name in named if name.endswith("weight")]
    sizes = [named[name].numel() for name in names]

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split(sizes)
        given = {n: p.view_as(named[n]) for n, p in zip(names, parts, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, named | given, (x,)), y)

    flat = torch.cat([named[name].detach().flatten() for name in names])
    return torch.autograd.functional.hessian(loss, flat), sizes
