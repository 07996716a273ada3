"""A linear probe: how much of another task do a robust network's features hold?

Odd against even digits, by ridge regression on the features of a frozen model, against the same on pixels.
"""

import torch
from torch import Tensor

import robustzoo
from robustzoo.data import load_dataset


def digits(split: str) -> tuple[Tensor, Tensor]:
    """Images (N, 1, 8, 8) and whether each is odd, (N,)."""
    dataset = load_dataset("digits", split=split)
    images = torch.stack([dataset[i][0] for i in range(len(dataset))])
    return images, torch.from_numpy(dataset.labels) % 2


def probe(train: Tensor, labels: Tensor, ridge: float = 1e-2) -> Tensor:
    """Weights (d + 1, 2) of a linear classifier of features (N, d)."""
    x = torch.cat([train, torch.ones(len(train), 1)], 1).double()
    targets = torch.nn.functional.one_hot(labels, 2).double()
    return torch.linalg.solve(x.T @ x + ridge * torch.eye(x.shape[1]), x.T @ targets)


def accuracy(weights: Tensor, features: Tensor, labels: Tensor) -> float:
    x = torch.cat([features, torch.ones(len(features), 1)], 1).double()
    return (x @ weights).argmax(1).eq(labels).double().mean().item()


def main(name: str = "vit_micro2.digits_linf.trades_trh") -> tuple[float, float]:
    """Test accuracy of the probe on features, and on pixels."""
    model = robustzoo.load(name)
    (x, y), (x_test, y_test) = digits("train"), digits("test")
    with torch.no_grad():
        features, test_features = model.features(x), model.features(x_test)
    return (
        accuracy(probe(features, y), test_features, y_test),
        accuracy(probe(x.flatten(1), y), x_test.flatten(1), y_test),
    )


if __name__ == "__main__":
    print("odd or even: features {:.1%}, pixels {:.1%}".format(*main()))
