"""A stranger's network, for `robustzoo import resnet2b.pth --architecture resnet2b.py:resnet2b ...`.

A residual network without batch norm, as its authors describe it. It takes normalised images of 32 x 32
pixels, and `robustzoo import` puts the normalisation in front of it. The file stands alone: it is copied
into the folder.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride)) if stride > 1 else nn.Sequential()
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv2(torch.relu(self.conv1(x))) + self.shortcut(x))


class ResNet2b(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.layer1 = nn.Sequential(Block(8, 16, 2), Block(16, 16, 1))
        self.linear1, self.linear2 = nn.Linear(1024, 100), nn.Linear(100, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer1(torch.relu(self.conv1(x)))
        return self.linear2(torch.relu(self.linear1(x.flatten(1))))


def resnet2b() -> nn.Module:
    return ResNet2b()
