"""What benchmarks/evaluation.py measures: models, their images and threat models, by name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import robustzoo
from robustzoo.data import load_dataset

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT / ".." / "shared"
sys.path.append(str(ROOT / "examples"))  # for the processes of an evaluation too, which unpickle the network
_WEIGHTS, _IMAGES = SHARED / "import" / "resnet2b.pth", SHARED / "data" / "cifar10jpg"
_TRAINED = Path("resnet2b_trained.pt")


class OnPixels(nn.Module):
    """A network of normalised images as one of pixels (B, 3, H, W) in [0, 1]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        for name, values in (("mean", (0.4914, 0.4822, 0.4465)), ("std", (0.2471, 0.2435, 0.2616))):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network((x - self.mean) / self.std)


def resnet2b() -> nn.Module:
    """With its authors' weights where they are; else trained here for a minute, once, at Linf 2/255."""
    import resnet2b as example

    network = example.resnet2b()
    model = OnPixels(network).eval()
    if _WEIGHTS.exists():
        network.load_state_dict(torch.load(_WEIGHTS, map_location="cpu", weights_only=True)["state_dict"])
    elif _TRAINED.exists():
        network.load_state_dict(torch.load(_TRAINED, weights_only=True))
    else:
        _train(model)
        torch.save(network.state_dict(), _TRAINED)
    return model.requires_grad_(False)


def _train(model: nn.Module, steps: int = 1500) -> None:
    """FGSM training: about a minute on one core."""
    data, g = load_dataset("cifar10jpg", _IMAGES, "train"), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for step in range(steps):
        pairs = [data[i] for i in torch.randint(len(data), (64,), generator=g).tolist()]
        x, y = torch.stack([x for x, _ in pairs]), torch.tensor([label for _, label in pairs])
        near = (x + (2 * torch.rand(x.shape, generator=g) - 1) * 2 / 255).requires_grad_()
        (grad,) = torch.autograd.grad(F.cross_entropy(model(near), y), near)
        near = (x + (near.detach() + 2 / 255 * grad.sign() - x).clamp(-2 / 255, 2 / 255)).clamp(0, 1)
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / steps)
        optimizer.zero_grad()
        F.cross_entropy(model(near), y).backward()
        optimizer.step()


def subject(name: str) -> tuple[Any, Any]:
    """(model, data): "resnet2b", or a name or folder of the zoo. Photographs are read from ../shared."""
    if name == "resnet2b":
        return resnet2b(), load_dataset("cifar10jpg", _IMAGES)
    model = robustzoo.load(name)
    key = model.recipe.dataset
    return model, load_dataset(key, _IMAGES if key == "cifar10jpg" else None)


class Synthetic(nn.Module):
    """A linear model for `pixels` x `pixels` RGB images and `classes`: what an attack costs beyond passes."""

    def __init__(self, classes: int, pixels: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.head = nn.Linear(3 * pixels * pixels, classes)
        self.head.weight.data = torch.randn(self.head.weight.shape, generator=g) / pixels
        self.requires_grad_(False).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1))
