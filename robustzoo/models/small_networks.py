"""Small networks for 32x32 photographs, registered with timm when `robustzoo.models` is imported.

| entry point           | body                                                                            |
|-----------------------|---------------------------------------------------------------------------------|
| robustzoo_resnet_mini | pre-activation, 4x4 stem of stride 2, three stages of two blocks, no batch norm |
| robustzoo_vit_mini_c4 | ViT behind two 3x3 convolutions of stride 2 in place of patches of 4            |

The residual network has no normalisation layer: its convolutions standardise their weights, and what enters a
block is scaled by its expected deviation (Brock et al. 2021, "Characterizing signal propagation to close the
performance gap in unnormalized ResNets"). An image's logits therefore depend on no other image and on no
running statistics: attacks and training see one and the same function, and weights are all there is to
average, shard and export.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from timm.layers import HybridEmbed
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

# 1 / deviation of silu(N(0, 1)), so that a convolution after it keeps the variance. Source: Brock et al. 2021
_SILU_GAIN = 1.7881293296813965
_VARIANCE_EPS = 1e-6
_HEAD_STD = 0.01


def _cfg(first_conv: str) -> dict[str, Any]:
    return {
        "num_classes": 10,
        "input_size": (3, 32, 32),
        "fixed_input_size": True,
        "interpolation": "bicubic",
        "crop_pct": 1.0,
        "mean": (0.47,) * 3,
        "std": (0.25,) * 3,
        "first_conv": first_conv,
        "classifier": "head",
        "license": "apache-2.0",
    }


default_cfgs = generate_default_cfgs(
    {
        "robustzoo_resnet_mini.untrained": _cfg("stem"),
        "robustzoo_vit_mini_c4.untrained": _cfg("patch_embed.backbone.0"),
    }
)


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose weight has mean 0 and variance gain^2 scale^2 / inputs in every output channel."""

    def __init__(self, *args: Any, scale: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.scale = scale * self.weight[0].numel() ** -0.5
        self.gain = nn.Parameter(torch.ones(self.out_channels))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        factor = self.scale * self.gain.view(-1, 1, 1, 1) * torch.rsqrt(variance + _VARIANCE_EPS)
        return self._conv_forward(x, (self.weight - mean) * factor, self.bias)


class ResidualBlock(nn.Module):
    """shortcut + skip_gain f(x / d), with skip_gain 1 at first and d the expected deviation of x there.

    The shortcut is x, or a 1x1 convolution of the activated input where the stride or the channels change it.
    """

    def __init__(self, inside: int, outside: int, stride: int, variance: float) -> None:
        super().__init__()
        self.scale = variance**-0.5
        self.conv1 = StandardisedConv2d(inside, outside, 3, stride, padding=1, scale=_SILU_GAIN)
        self.conv2 = StandardisedConv2d(outside, outside, 3, padding=1, scale=_SILU_GAIN)
        changed = stride != 1 or inside != outside
        self.shortcut = StandardisedConv2d(inside, outside, 1, stride, scale=_SILU_GAIN) if changed else None
        self.skip_gain = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        active = functional.silu(x * self.scale)
        kept = x if self.shortcut is None else self.shortcut(active)
        return kept + self.skip_gain * self.conv2(functional.silu(self.conv1(active)))


class BlockNetwork(nn.Module):
    """What the residual networks, here and with batch norm, share: `stem`, `blocks`, a linear `head` of the
    mean over the places, which `__init__` builds, and timm's interface to them."""

    stem: nn.Module
    blocks: nn.Sequential
    head: nn.Linear
    grad_checkpointing = False

    def get_classifier(self) -> nn.Linear:
        """The class head."""
        return self.head

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Whether a training pass recomputes what is inside the blocks."""
        self.grad_checkpointing = enable

    def through_blocks(self, x: Tensor) -> Tensor:
        """Normalised images (B, in_chans, H, W) to what the last block gives, (B, C, h, w)."""
        x = self.stem(x)
        for block in self.blocks:
            recompute = self.grad_checkpointing and torch.is_grad_enabled()
            x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
        return x

    def forward_features(self, x: Tensor) -> Tensor:
        """Images to activated features (B, num_features, h, w)."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Mean over the places, (B, num_features); and then the class head."""
        pooled = x.mean(dim=(2, 3))
        return pooled if pre_logits else self.head(pooled)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


class ResidualNetwork(BlockNetwork):
    """Normalised images (B, in_chans, H, W) to logits (B, num_classes), through three stages of blocks.

    Args:
        widths, depths: channels and blocks of each stage; every stage after the first halves the sides.
        img_size: side of the square images that it is for.
        global_pool: "avg", as stored folders name it to timm.
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        img_size: int = 32,
        in_chans: int = 3,
        num_classes: int = 10,
        global_pool: str = "avg",
    ) -> None:
        super().__init__()
        self.img_size, self.in_chans = (img_size, img_size), in_chans
        self.num_classes, self.num_features, self.global_pool = num_classes, widths[-1], global_pool
        self.stem = StandardisedConv2d(in_chans, widths[0], 4, stride=2, padding=1, scale=1.0)
        blocks, inside, variance = [], widths[0], 1.0
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            for position in range(depth):
                first = position == 0 and stage > 0
                block = ResidualBlock(inside, width, 2 if first else 1, variance)
                variance = 2.0 if block.shortcut is not None else variance + 1.0
                blocks.append(block)
                inside = width
        self.blocks = nn.Sequential(*blocks)
        self.last_scale = variance**-0.5
        self.head = nn.Linear(inside, num_classes)
        nn.init.normal_(self.head.weight, std=_HEAD_STD)
        nn.init.zeros_(self.head.bias)

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, in_chans, H, W) -> (B, num_features, H/8, W/8), activated."""
        # Convolutions of this memory format are a fifth to two fifths faster on CPUs (measured).
        x = self.through_blocks(x.contiguous(memory_format=torch.channels_last))
        return functional.silu(x * self.last_scale) * _SILU_GAIN


@register_model
def robustzoo_resnet_mini(pretrained: bool = False, **kwargs: Any) -> ResidualNetwork:
    """The residual network; `widths` and `depths` are the catalog's."""
    shape = {"widths": (32, 64, 128), "depths": (2, 2, 2)}
    return build_model_with_cfg(ResidualNetwork, "robustzoo_resnet_mini", pretrained, **shape | kwargs)


@register_model
def robustzoo_vit_mini_c4(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT of width 128, depth 6, 4 heads: convolutions of 64 and 128 channels, then a 1x1 projection."""
    shape = {"embed_dim": 128, "depth": 6, "num_heads": 4, "img_size": 32, "patch_size": 1}
    arguments = shape | kwargs
    stem = nn.Sequential(
        nn.Conv2d(arguments.get("in_chans", 3), 64, 3, stride=2, padding=1),
        nn.GELU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.GELU(),
    )
    return build_model_with_cfg(
        VisionTransformer,
        "robustzoo_vit_mini_c4",
        pretrained,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        embed_layer=partial(HybridEmbed, backbone=stem),
        **arguments,
    )
