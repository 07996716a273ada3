"""One item of anyone's Dataset: a pair or a dictionary, with a tensor or an image of Pillow."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from robustzoo.data.image_dataset import DataError, to_bytes, to_unit

FLOAT_LABELS = "labels must be integer class ids; convert them with .long()"
_IMAGE_KEYS = ("image", "img", "pixel_values")
_LABEL_KEYS = ("label", "labels", "fine_label")


def read_item(item: Any, i: int) -> tuple[Tensor, int]:
    """(x, label) of item i of a Dataset: x float32 (C, H, W) in [0, 1], label an int that is not compared
    with any number of classes. Raises DataError, naming the item."""
    image, label = _pair(item, i)
    x = as_pixels(image, i)
    if isinstance(label, Tensor) and label.numel() == 1:
        label = label.item()
    if not isinstance(label, numbers.Integral) or isinstance(label, bool):
        raise DataError(f"item {i} has label {label!r} ({type(label).__name__}); {FLOAT_LABELS}")
    return x, int(label)


def _pair(item: Any, i: int) -> tuple[Any, Any]:
    if isinstance(item, Mapping):
        keys = [[key for key in known if key in item] for known in (_IMAGE_KEYS, _LABEL_KEYS)]
        if any(len(found) != 1 for found in keys):
            raise DataError(
                f"item {i} is a dictionary with the keys {', '.join(map(str, item))}; expected one of "
                f"{', '.join(_IMAGE_KEYS)} and one of {', '.join(_LABEL_KEYS)}, or a pair: pass "
                '[(item["IMAGE"], item["LABEL"]) for item in data], with your keys'
            )
        return item[keys[0][0]], item[keys[1][0]]
    try:
        image, label = item
    except (TypeError, ValueError) as error:
        raise DataError(f"item {i} is no pair (image, label): {error}") from error
    return image, label


def as_pixels(image: Any, i: int) -> Tensor:
    """float32 (C, H, W) in [0, 1] of a tensor, checked, or of an image of Pillow with 8 bits a channel."""
    if isinstance(image, Image.Image):
        if image.mode.startswith(("I", "F")):
            raise DataError(
                f"the image of item {i} has the mode {image.mode}; expected 8 bits a channel, or a tensor "
                "(C, H, W) in [0, 1]"
            )
        return to_unit(to_bytes(image if image.mode == "L" else image.convert("RGB")))
    if not isinstance(image, Tensor) or image.ndim != 3:
        found = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise DataError(
            f"the image of item {i} must be a tensor (C, H, W), got {found}; add a ToTensor transform"
        )
    check_pixels(image, f"the image of item {i}")
    return image.detach().to("cpu", torch.float32)


def check_dense(x: Tensor, what: str) -> None:
    """Raise DataError where a tensor has no plain values."""
    if x.layout != torch.strided:
        raise DataError(f"{what}: a tensor of layout {x.layout}; expected a dense one: use .to_dense()")
    if x.device.type == "meta":
        raise DataError(f"{what}: a tensor on the meta device, without values; expected one on cpu or cuda")


def check_pixels(x: Tensor, what: str) -> None:
    """Raise DataError unless these are floating point numbers in [0, 1], and at least one."""
    if not x.dtype.is_floating_point:
        raise DataError(
            f"{what}: dtype {x.dtype}, expected floating point in [0, 1]; for bytes, divide by 255"
        )
    check_dense(x, what)
    if x.numel() == 0:
        raise DataError(f"{what}: shape {tuple(x.shape)} has no pixels")
    low, high = x.min().item(), x.max().item()
    if low >= 0 and high <= 1:  # also false for NaN
        return
    if x.isnan().any():
        first = f", first in image {int(x.flatten(1).isnan().any(1).nonzero()[0])}" if x.ndim == 4 else ""
        raise DataError(f"{what}: NaN among the pixels{first}; expected numbers in [0, 1]")
    shown = str if x.dtype == torch.float64 else np.float32  # all digits: 1.0000001 must not read 1
    raise DataError(
        f"{what}: values from {shown(low)!s} to {shown(high)!s}, expected [0, 1]; pass pixels before "
        "normalisation (PixelModel normalises inside), with .clamp(0, 1) where rounding left the range"
    )
