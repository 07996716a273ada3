"""Fine-tune a zoo model for another task, and attack what came out.

The task is odd against even. The new head is trained alone, on clean images; then aa-standard's first attack
shows how much of the robustness the downstream classifier kept.
"""

import torch
from linear_probe import digits
from torch import nn

import robustzoo


class Downstream(nn.Module):
    """Pixels (B, 1, 8, 8) in [0, 1] to logits (B, 2): the zoo model's features and a head of its own."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.body = robustzoo.load(name)
        self.head = nn.Linear(self.body.head.in_features, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body.features(x))


def fine_tune(name: str, steps: int = 200) -> Downstream:
    torch.manual_seed(0)
    model = Downstream(name).eval()  # the body stays as it is
    x, y = digits("train")
    with torch.no_grad():
        features = model.body.features(x)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model.head(features), y).backward()
        optimizer.step()
    return model


def main(name: str = "vit_micro2.digits_linf.trades_trh", n: int = 100) -> tuple[float, float]:
    """Clean and robust accuracy on n test images."""
    model = fine_tune(name)
    x, y = (part[:n] for part in digits("test"))
    with torch.no_grad():
        clean = model(x).argmax(1).eq(y).double().mean().item()
    _, fooled = robustzoo.attack(model, x, y, "linf:1/20", "apgd-ce")
    return clean, 1 - fooled.double().mean().item()


if __name__ == "__main__":
    print("odd or even: clean {:.1%}, under linf:1/20 {:.1%}".format(*main()))
