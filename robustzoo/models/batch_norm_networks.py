"""Residual networks with batch norm for 32x32 images, registered with timm with `robustzoo.models`.

| entry point         | body                                                                                 |
|---------------------|--------------------------------------------------------------------------------------|
| robustzoo_resnet18  | timm's ResNet-18 with a 3x3 stem of stride 1 and no pooling behind it                |
| robustzoo_wide      | Wide ResNet (Zagoruyko and Komodakis 2016): pre-activation, three stages, no dropout |

They are those that most adversarial training on CIFAR-10 is published with.
"""

from __future__ import annotations

import math
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnet import BasicBlock, ResNet
from torch import Tensor, nn
from torch.nn import functional

from robustzoo.models.small_networks import BlockNetwork


def _cfg(first_conv: str, classifier: str) -> dict[str, Any]:
    return {
        "num_classes": 10,
        "input_size": (3, 32, 32),
        "fixed_input_size": False,
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": (0.47,) * 3,
        "std": (0.25,) * 3,
        "first_conv": first_conv,
        "classifier": classifier,
        "license": "apache-2.0",
    }


default_cfgs = generate_default_cfgs(
    {
        "robustzoo_resnet18.untrained": _cfg("conv1", "fc"),
        "robustzoo_wide.untrained": _cfg("stem", "head"),
    }
)


class SmallImageResNet(ResNet):
    """timm's ResNet with a 3x3 convolution of stride 1 in place of its stem and pooling."""

    def __init__(self, *args: Any, in_chans: int = 3, **kwargs: Any) -> None:
        super().__init__(*args, in_chans=in_chans, **kwargs)
        self.conv1 = nn.Conv2d(in_chans, self.conv1.out_channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")
        self.maxpool = nn.Identity()


class WideBlock(nn.Module):
    """Pre-activation: shortcut + conv(relu(norm(conv(relu(norm(x)))))).

    The shortcut is x, or where the channels change a 1x1 convolution of the activated input.
    """

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.shortcut = None if inside == outside else nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = functional.relu(self.norm1(x))
        kept = x if self.shortcut is None else self.shortcut(active)
        return kept + self.conv2(functional.relu(self.norm2(self.conv1(active))))


class WideResNet(BlockNetwork):
    """Normalised images (B, in_chans, H, W) to logits (B, num_classes).

    Args:
        depth: layers, 6 n + 4 with n blocks a stage.
        widening: times the channels 16, 32 and 64 of the stages.
        global_pool: "avg", as stored folders name it to timm.
    """

    def __init__(
        self,
        depth: int = 28,
        widening: int = 10,
        in_chans: int = 3,
        num_classes: int = 10,
        global_pool: str = "avg",
    ) -> None:
        super().__init__()
        self.in_chans, self.num_classes, self.global_pool = in_chans, num_classes, global_pool
        self.stem = nn.Conv2d(in_chans, 16, 3, padding=1, bias=False)
        blocks, inside = [], 16
        for stage in range(3):
            for position in range((depth - 4) // 6):
                outside = 16 * 2**stage * widening
                blocks.append(WideBlock(inside, outside, 2 if stage > 0 and position == 0 else 1))
                inside = outside
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inside)
        self.num_features = inside
        self.head = nn.Linear(inside, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan = module.kernel_size[0] * module.kernel_size[1] * module.out_channels
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan))
        nn.init.zeros_(self.head.bias)

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, in_chans, H, W) -> (B, num_features, H/4, W/4), activated."""
        return functional.relu(self.norm(self.through_blocks(x)))


@register_model
def robustzoo_resnet18(pretrained: bool = False, **kwargs: Any) -> ResNet:
    """ResNet-18 for small images; `layers` may be changed, as every argument of timm's ResNet."""
    shape = {"block": BasicBlock, "layers": (2, 2, 2, 2)}
    return build_model_with_cfg(SmallImageResNet, "robustzoo_resnet18", pretrained, **shape | kwargs)


@register_model
def robustzoo_wide(pretrained: bool = False, **kwargs: Any) -> WideResNet:
    """The Wide ResNet of `depth` and `widening`."""
    return build_model_with_cfg(WideResNet, "robustzoo_wide", pretrained, **kwargs)
