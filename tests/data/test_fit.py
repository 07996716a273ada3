"""How images of any size are brought to the model's: as torchvision and timm do it, and never silently."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from timm.data.transforms_factory import transforms_imagenet_eval
from torchvision.transforms.functional import pil_to_tensor

from robustzoo.data import DataError
from robustzoo.data.fit import IMAGENET, Fit


def picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("share, interpolation", [(1.0, "bicubic"), (0.875, "bilinear"), (0.95, "bicubic")])
@pytest.mark.parametrize("width, height", [(64, 48), (30, 41), (100, 36)])
def test_pixels_are_those_of_timm(mode, share, interpolation, width, height):
    stated = {"crop_pct": share, "crop_mode": mode, "interpolation": interpolation, "mean": (0.5, 0.4, 0.3)}
    expected = transforms_imagenet_eval(
        32, share, mode, None, interpolation, (0.5, 0.4, 0.3), normalize=False
    )
    found = Fit.of_timm(stated, (32, 32)).apply(picture(width, height), "x")
    assert (pil_to_tensor(found) == expected(picture(width, height))).all()


@pytest.mark.parametrize(
    "fit",
    [
        Fit((8, 8)),
        Fit((8, 6), (16, 12), "squash", "nearest"),
        Fit((8, 8), (4, 4), "contain", "lanczos", fill=(1, 2, 3)),
        IMAGENET,
    ],
)
def test_a_fit_survives_json_and_says_itself(fit):
    assert Fit.from_json(fit.to_json()) == fit
    assert f"{fit.size[0]} x {fit.size[1]}" in fit.text()


def test_images_of_the_size_are_kept_unless_a_resize_is_asked_for():
    image = picture(32, 32)
    assert Fit.usual((32, 32)).apply(image, "x") is image
    assert Fit((32, 32), None, "crop").apply(image, "x") is image
    assert IMAGENET.apply(picture(224, 224), "x").tobytes() != picture(224, 224).tobytes()


@pytest.mark.parametrize(
    "fit, words",
    [
        (Fit((40, 40), None, "crop"), r"x: an image of 32 x 50 .*smaller than the crop of 40 x 40"),
        (Fit((32, 32)), r"x: an image of 32 x 50 .*expected 32 x 32"),
    ],
)
def test_what_cannot_be_brought_to_size_is_named(fit, words):
    with pytest.raises(DataError, match=words):
        fit.apply(picture(50, 32), "x")


@pytest.mark.parametrize(
    "stated",
    [
        {"crop_pct": 0, "crop_mode": "center", "interpolation": "bicubic"},
        {"crop_pct": 1.5, "crop_mode": "center", "interpolation": "bicubic"},
        {"crop_pct": 0.9, "crop_mode": "diagonal", "interpolation": "bicubic"},
        {"crop_pct": 0.9, "crop_mode": "center", "interpolation": "random"},
        {},
        "x",
    ],
)
def test_preprocessing_that_is_none_of_timms_is_refused(stated):
    with pytest.raises(DataError, match=r"preprocessing is .*--resize, --crop and --interpolation"):
        Fit.of_timm(stated, (32, 32))
