"""Catalog row -> timm network. The catalog holds the numbers; this file only hands them to timm."""

from __future__ import annotations

from contextlib import nullcontext

import timm
import torch
from torch import nn

import robustzoo.models.batch_norm_networks
import robustzoo.models.networks
import robustzoo.models.small_networks  # noqa: F401 (all three register our networks with timm)
from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe
from robustzoo.registry.catalog import ARCHITECTURES, Network


def timm_name(architecture: str, image_size: int, patch_stride: int | None = None) -> str:
    """Name of the timm entry point that builds `architecture` at `image_size`.

    Raises:
        RobustzooError: no such architecture, or not at this image size or stride.
    """
    return _network(architecture, image_size, patch_stride).timm_name


def timm_arguments(
    architecture: str, image_size: int, channels: int, patch_stride: int | None = None
) -> dict[str, object]:
    """Every keyword argument (JSON-able) that timm needs besides `num_classes`, defaults spelled out.

    Spelled out so that a stored folder keeps its meaning when a default of timm changes.

    Raises:
        RobustzooError: no such architecture, or not at this image size or stride.
    """
    return dict(_network(architecture, image_size, patch_stride).model_args) | {"in_chans": channels}


def build_network(
    architecture: str,
    image_size: int,
    channels: int,
    num_classes: int,
    *,
    patch_stride: int | None = None,
    device: str | None = None,
) -> nn.Module:
    """A timm network, randomly initialised from torch's global generator.

    The network expects *normalised* input (B, channels, image_size, image_size); PixelModel takes pixels.

    Args:
        architecture: key of `robustzoo.registry.catalog.ARCHITECTURES`.
        image_size: side of the square image in pixels.
        channels: 1 or 3.
        num_classes: K, at least 2.
        patch_stride: pixels from one patch to the next; None: the network's own.
        device: "meta" builds shapes only, without memory or initialisation; default: torch's default device.

    Raises:
        RobustzooError: no such architecture, or not at this image size or stride.
    """
    for label, value, least in (("channels", channels, 1), ("num_classes", num_classes, 2)):
        if not isinstance(value, int) or value < least:
            raise RobustzooError(f"{label} is {value!r}; expected a whole number of at least {least}")
    arguments = timm_arguments(architecture, image_size, channels, patch_stride)
    name = timm_name(architecture, image_size, patch_stride)
    with torch.device(device) if device else nullcontext():
        return timm.create_model(name, num_classes=num_classes, **arguments)


def build_for(recipe: Recipe, *, device: str | None = None) -> nn.Module:
    """The network of a recipe; as `build_network`."""
    return build_network(
        recipe.architecture,
        recipe.image_size,
        recipe.channels,
        recipe.num_classes,
        patch_stride=recipe.patch_stride,
        device=device,
    )


def _network(architecture: str, image_size: int, patch_stride: int | None) -> Network:
    if architecture not in ARCHITECTURES:
        raise RobustzooError(
            f"unknown architecture {architecture!r}; known: {', '.join(sorted(ARCHITECTURES))}"
        )
    try:
        network = ARCHITECTURES[architecture].network(image_size)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        sizes = ", ".join(str(size) for size in sorted(ARCHITECTURES[architecture].networks))
        raise RobustzooError(
            f"{architecture} has no network for image size {image_size!r}; known sizes: {sizes}, and of "
            "one's own images multiples of a patch (4 pixels near 32, 16 near 224)"
        ) from error
    strides = network.strides
    if patch_stride is not None and patch_stride not in strides:
        raise RobustzooError(
            f"{architecture} has no network of patch stride {patch_stride!r} for image size {image_size}; "
            f"known strides: {', '.join(map(str, (*strides, None)))}"
        )
    return ARCHITECTURES[architecture].network(image_size, patch_stride)
