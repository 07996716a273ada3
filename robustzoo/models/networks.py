"""Vision transformers that timm does not have, registered with timm when `robustzoo.models` is imported.

| entry point                 | images  | tokens      | made of                                              |
|-----------------------------|---------|-------------|------------------------------------------------------|
| robustzoo_vit_base_k4s2     | 32x32   | 15 x 15 + 1 | ViT-B, patches of 4 that overlap by half (stride 2)  |
| robustzoo_vit_large_k4s2    | 32x32   | 15 x 15 + 1 | ViT-L, the same patches                              |
| robustzoo_vit_large_r50_s16 | 224x224 | 14 x 14 + 1 | ResNetV2-50 stem of stages 3, 4, 9, then ViT-L       |
| robustzoo_vit_large_r50_s4  | 32x32   | 8 x 8 + 1   | the same stem: first convolution 3x3/1, no max-pool  |
| robustzoo_vit_small_c16     | 224x224 | 14 x 14 + 1 | ViT-S behind four 3x3 convolutions of stride 2       |

The stem is that of timm's vit_base_r50_s16_224: group norm, standardised convolutions, padding as in the
original release. The networks for 32x32 images take the paper's checkpoints with resampled kernels
(`robustzoo.models.initial`); their geometry is ours, for the paper does not state it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from timm.layers import HybridEmbed, LayerNorm2d, PatchEmbed, StdConv2dSame, to_2tuple
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer import VisionTransformer
from torch import nn

_BASE = {"embed_dim": 768, "depth": 12, "num_heads": 12}
_SMALL = {"embed_dim": 384, "depth": 12, "num_heads": 6}
_LARGE = {"embed_dim": 1024, "depth": 24, "num_heads": 16}
_STAGES = (3, 4, 9)
_CONV_EPS = 1e-8  # of the standardised convolutions, as in timm's hybrids


def _cfg(size: int, first_conv: str) -> dict[str, Any]:
    return {
        "num_classes": 1000,
        "input_size": (3, size, size),
        "fixed_input_size": True,
        "interpolation": "bicubic",
        "crop_pct": 1.0 if size < 64 else 0.9,
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
        "first_conv": first_conv,
        "classifier": "head",
        "license": "apache-2.0",
    }


default_cfgs = generate_default_cfgs(
    {
        "robustzoo_vit_base_k4s2.untrained": _cfg(32, "patch_embed.proj"),
        "robustzoo_vit_large_k4s2.untrained": _cfg(32, "patch_embed.proj"),
        "robustzoo_vit_large_r50_s16.untrained": _cfg(224, "patch_embed.backbone.stem.conv"),
        "robustzoo_vit_large_r50_s4.untrained": _cfg(32, "patch_embed.backbone.stem.conv"),
        "robustzoo_vit_small_c16.untrained": _cfg(224, "patch_embed.backbone.0"),
    }
)


class HalfOverlappingPatchEmbed(PatchEmbed):
    """Patches whose stride is half their side, without padding: a grid of 2 (size - patch) / patch + 1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.proj.stride = self.stride
        self._count_patches()

    @property
    def stride(self) -> tuple[int, int]:
        """Pixels from one patch to the next, (vertical, horizontal)."""
        return (self.patch_size[0] // 2, self.patch_size[1] // 2)

    def dynamic_feat_size(self, img_size: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of tokens of an image of (height, width) pixels."""
        rows, columns = (
            (side - patch) // step + 1
            for side, patch, step in zip(img_size, self.patch_size, self.stride, strict=True)
        )
        return rows, columns

    def feat_ratio(self, as_scalar: bool = True) -> Any:
        """Pixels of the image from one token to the next, as timm asks for it."""
        return max(self.stride) if as_scalar else self.stride

    def set_input_size(self, img_size: Any = None, patch_size: Any = None) -> None:
        """Another image size; the patch size is fixed.

        Raises:
            ValueError: another patch size.
        """
        if patch_size is not None and to_2tuple(patch_size) != self.patch_size:
            raise ValueError(
                f"patch size {patch_size} asked for, but {self.patch_size} is fixed in this network"
            )
        super().set_input_size(img_size=img_size)
        self._count_patches()

    def _count_patches(self) -> None:
        self.grid_size = self.dynamic_feat_size(self.img_size)
        self.num_patches = self.grid_size[0] * self.grid_size[1]


def resnet_stem(channels: int, small_images: bool) -> ResNetV2:
    """(B, channels, H, W) -> (B, 1024, H/16, W/16), or (B, 1024, H/4, W/4) with `small_images`."""
    stem = ResNetV2(
        layers=_STAGES,
        num_classes=0,
        global_pool="",
        in_chans=channels,
        preact=False,
        stem_type="same",
        conv_layer=partial(StdConv2dSame, eps=_CONV_EPS),
    )
    if small_images:
        stem.stem.conv = StdConv2dSame(channels, stem.stem.conv.out_channels, 3, stride=1, eps=_CONV_EPS)
        stem.stem.pool = nn.Identity()
    return stem


def _build(name: str, pretrained: bool, patch: int, embed: Any, arguments: dict[str, Any]) -> Any:
    if to_2tuple(arguments.pop("patch_size", patch)) != (patch, patch):
        raise ValueError(f"{name} has patches of {patch}; leave patch_size out, or build another network")
    # No filter of the checkpoint: a stored folder must have exactly this network's tensors.
    return build_model_with_cfg(
        VisionTransformer,
        name,
        pretrained,
        feature_cfg={"out_indices": 3, "feature_cls": "getter"},
        patch_size=patch,
        embed_layer=embed,
        **arguments,
    )


def _overlapping(name: str, pretrained: bool, width: dict[str, int], arguments: dict[str, Any]) -> Any:
    return _build(name, pretrained, 4, HalfOverlappingPatchEmbed, width | {"img_size": 32} | arguments)


def _hybrid(name: str, pretrained: bool, size: int, small_images: bool, arguments: dict[str, Any]) -> Any:
    stem = resnet_stem(arguments.get("in_chans", 3), small_images)
    embed = partial(HybridEmbed, backbone=stem)
    return _build(name, pretrained, 1, embed, _LARGE | {"img_size": size} | arguments)


@register_model
def robustzoo_vit_base_k4s2(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT-B for 32x32 images: patches of 4, stride 2."""
    return _overlapping("robustzoo_vit_base_k4s2", pretrained, _BASE, kwargs)


@register_model
def robustzoo_vit_large_k4s2(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT-L for 32x32 images: patches of 4, stride 2."""
    return _overlapping("robustzoo_vit_large_k4s2", pretrained, _LARGE, kwargs)


@register_model
def robustzoo_vit_large_r50_s16(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """R50+ViT-L/16 of Dosovitskiy et al. 2021 for 224x224 images."""
    return _hybrid("robustzoo_vit_large_r50_s16", pretrained, 224, False, kwargs)


@register_model
def robustzoo_vit_large_r50_s4(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """The same network for 32x32 images: stem convolution 3x3, stride 1, and no max-pool."""
    return _hybrid("robustzoo_vit_large_r50_s4", pretrained, 32, True, kwargs)


@register_model
def robustzoo_vit_small_c16(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT-S for 224x224 images behind four convolutions, each with its norm and GELU (Singh et al. 2023)."""
    channels, layers = kwargs.get("in_chans", 3), []
    for width in (48, 96, 192, 384):
        layers += [nn.Conv2d(channels, width, 3, stride=2, padding=1), LayerNorm2d(width), nn.GELU()]
        channels = width
    embed = partial(HybridEmbed, backbone=nn.Sequential(*layers))
    return _build("robustzoo_vit_small_c16", pretrained, 1, embed, _SMALL | {"img_size": 224} | kwargs)
