"""Small models and data on which attacks can be followed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from robustzoo.attacks.protocols import Protocol, protocol
from robustzoo.registry.threat_model import ThreatModel

sys.path.insert(0, str(Path(__file__).parent))  # --import-mode=importlib leaves sys.path alone


class Linear(nn.Module):
    """logits = W x + b: the minimal epsilon of every image is known."""

    def __init__(self, classes: int, shape: tuple[int, int, int], seed: int = 0) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        d = shape[0] * shape[1] * shape[2]
        self.weight = nn.Parameter(torch.randn(classes, d, generator=g) / d**0.5)
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, x):
        return x.flatten(1) @ self.weight.T + self.bias

    def minimal_epsilon(self, x, y, norm):
        """(B,) exact where the box is not met: the margin over the dual norm of the weight difference."""
        logits = self(x).detach()
        difference = self.weight.detach()[y].unsqueeze(1) - self.weight.detach()
        dual = torch.linalg.vector_norm(difference, ord={"linf": 1, "l2": 2, "l1": torch.inf}[norm], dim=2)
        gap = logits.gather(1, y.unsqueeze(1)) - logits
        return (gap / dual).scatter(1, y.unsqueeze(1), torch.inf).amin(1)


def two_classes(weight: torch.Tensor) -> Linear:
    """A Linear with the logits m and -m, m = weight * (x - 1/2) summed; weight: (C, H, W)."""
    model = Linear(2, tuple(weight.shape))
    model.weight.data = torch.stack((weight, -weight)).flatten(1)
    model.bias.data = -0.5 * model.weight.data.sum(1)
    return model


def random_images(n: int, shape: tuple[int, int, int], low: float = 0.0, high: float = 1.0, seed: int = 1):
    g = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(n, *shape, generator=g)


def labelled(model: nn.Module, x: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
    """A dataset on which the model is always right."""
    with torch.no_grad():
        return list(zip(x, model(x).argmax(1).tolist(), strict=True))


def short(name: str, threat_model, classes: int, iterations: int = 12, queries: int = 60) -> Protocol:
    """The protocol with fewer iterations, and at most three targets, two restarts and two draws."""
    p = protocol(name, threat_model, classes)
    attacks = [
        replace(
            m,
            iterations=min(m.iterations, queries if m.algorithm == "square" else iterations),
            targets=min(m.targets, 3),
            restarts=min(m.restarts, 2),
            constants={**m.constants, "draws": 2} if m.draws > 1 else m.constants,
        )
        for m in p.attacks
    ]
    return replace(p, attacks=tuple(attacks))


@pytest.fixture(scope="session")
def toys():
    """The functions and classes above, for tests of this folder."""

    class Toys:
        pass

    for item in (Linear, two_classes, random_images, labelled, short):
        setattr(Toys, item.__name__, staticmethod(item))
    return Toys


@pytest.fixture(scope="session")
def tiny_vit():
    """A random ViT on 8x8 images with 10 classes, its logits spread out enough to be attacked."""
    torch.manual_seed(0)
    network = VisionTransformer(
        img_size=8, patch_size=4, in_chans=1, num_classes=10, embed_dim=32, depth=2, num_heads=2
    )
    nn.init.normal_(network.head.weight, std=1.0)
    return network.eval()


@pytest.fixture(scope="session", params=["linf:0.04", "l2:0.25", "l1:1.5"])
def threat_model(request):
    return ThreatModel.parse(request.param)
