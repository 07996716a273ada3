"""How an image of any size becomes one of the size that a model takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from robustzoo.data.decoder import check_pixels
from robustzoo.data.image_dataset import DataError
from robustzoo.data.transforms import centre_crop, cover_size

INTERPOLATIONS = {
    "nearest": Image.Resampling.NEAREST,
    "box": Image.Resampling.BOX,
    "bilinear": Image.Resampling.BILINEAR,
    "hamming": Image.Resampling.HAMMING,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
WAYS = ("cover", "squash", "contain", "crop", "exact")
_TIMM_MODES = {"center": "cover", "squash": "squash", "border": "contain"}


@dataclass(frozen=True)
class Fit:
    """The way to `size`, (height, width) in pixels.

    way: "cover" scales the image to just cover `resize` and crops the centre, which keeps its ratio and loses
    its ends; "squash" scales it to `resize` exactly, and crops; "contain" scales it to fit into `resize`,
    crops, and fills the rest with `fill` (0 to 255, per channel). Without a `resize`: "crop" takes the centre
    and refuses smaller images, "exact" refuses all of another size.
    keeps_exact: images that have `size` already are taken as they are, whatever else is asked for.

    Raises ValueError where the crop does not fit, or a word is unknown.
    """

    size: tuple[int, int]
    resize: tuple[int, int] | None = None
    way: str = "exact"
    interpolation: str = "bilinear"
    keeps_exact: bool = True
    fill: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.way not in WAYS or (self.resize is None) != (self.way in ("crop", "exact")):
            raise ValueError(f"way {self.way!r} with resize {self.resize}; ways: {', '.join(WAYS)}")
        if self.interpolation not in INTERPOLATIONS:
            raise ValueError(
                f"interpolation {self.interpolation!r}; expected one of {', '.join(INTERPOLATIONS)}"
            )
        covering = self.resize or self.size
        if min(self.size) < 1 or (self.way != "contain" and any(map(int.__gt__, self.size, covering))):
            raise ValueError(
                f"cannot crop {_by(self.size)} pixels from {_by(covering)}; choose resize >= crop >= 1"
            )

    @classmethod
    def usual(cls, size: tuple[int, int]) -> Fit:
        """Scaled to cover 8/7 of the size, as of ImageNet models; what has the size already is kept."""
        height, width = size
        return cls(size, (round(height * 256 / 224), round(width * 256 / 224)), "cover")

    @classmethod
    def of_timm(cls, stated: Mapping[str, Any], size: tuple[int, int]) -> Fit:
        """What timm does for a model that states {"crop_pct", "crop_mode", "interpolation", "mean"}.

        Raises DataError on values that are none of timm's.
        """
        try:
            share, mode = float(stated["crop_pct"]), _TIMM_MODES[stated["crop_mode"]]
            resize = (math.floor(size[0] / share), math.floor(size[1] / share))
            fill = tuple(round(255 * v) for v in stated["mean"]) if mode == "contain" else ()
            return cls(size, resize, mode, stated["interpolation"], fill=fill)
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError) as error:
            raise DataError(
                f"the model's preprocessing is {stated!r}, which gives no transform ({error}); "
                "state one with --resize, --crop and --interpolation"
            ) from error

    @classmethod
    def of_model(cls, stated: Mapping[str, Any] | None, size: tuple[int, int]) -> Fit:
        """What a model states in its attribute `preprocessing`, as `of_timm`; None: what is usual."""
        return cls.usual(size) if stated is None else cls.of_timm(stated, size)

    @classmethod
    def from_json(cls, stated: Mapping[str, Any]) -> Fit:
        """The inverse of `to_json`. Raises ValueError."""
        resize = stated["resize"]
        return cls(
            (stated["size"][0], stated["size"][1]),
            None if resize is None else (resize[0], resize[1]),
            stated["way"],
            stated["interpolation"],
            stated["keeps_exact"],
            tuple(stated.get("fill", ())),
        )

    def to_json(self) -> dict[str, Any]:
        """As an Evidence states it."""
        stated = {
            "size": list(self.size),
            "resize": None if self.resize is None else list(self.resize),
            "way": self.way,
            "interpolation": self.interpolation,
            "keeps_exact": self.keeps_exact,
        }
        return {**stated, "fill": list(self.fill)} if self.fill else stated

    def text(self) -> str:
        """For people; sizes are height x width."""
        size, resize = _by(self.size), "" if self.resize is None else _by(self.resize)
        then = (
            "" if self.resize == self.size and self.way == "squash" else f", cropped at the centre to {size}"
        )
        how = {
            "cover": f"scaled to just cover {resize} ({self.interpolation}){then}",
            "squash": f"scaled to {resize} whatever their ratio ({self.interpolation}){then}",
            "contain": f"scaled to just fit into {resize} ({self.interpolation}), with a border up to {size}",
            "crop": f"cropped at the centre to {size}, not scaled",
            "exact": f"taken as they are, all of {size}",
        }[self.way]
        if not self.keeps_exact or self.way in ("crop", "exact"):
            return how
        return f"taken as they are where they have {size} (height x width), else {how}"

    def apply(self, image: Image.Image, origin: str) -> Image.Image:
        """The image in `size`. Raises DataError, naming it by `origin`, where that cannot be."""
        (height, width), found = self.size, (image.height, image.width)
        if found == self.size and (self.keeps_exact or self.resize is None):
            return image
        if self.way == "exact":
            raise DataError(
                f"{origin}: an image of {_by(found)} pixels (height x width), expected "
                f"{_by(self.size)}; check that the folder holds the right images"
            )
        if self.resize is not None:
            image = self.resized(image, origin)
        if self.way == "contain":
            return self._bordered(image)
        if image.width < width or image.height < height:
            raise DataError(
                f"{origin}: an image of {_by(found)} pixels (height x width), smaller than the crop of "
                f"{_by(self.size)}; let it be scaled with --resize"
            )
        return centre_crop(image, height, width)

    def resized(self, image: Image.Image, origin: str) -> Image.Image:
        """The image scaled, not cropped yet; only with a `resize`. Raises DataError as `apply`."""
        assert self.resize is not None
        if self.way == "squash":
            target = self.resize[1], self.resize[0]
        elif self.way == "cover":
            target = cover_size(image, *self.resize)
        else:
            ratio = max(image.height / self.resize[0], image.width / self.resize[1])
            target = max(1, round(image.width / ratio)), max(1, round(image.height / ratio))
        if target == image.size:
            return image
        check_pixels(*target, f"{origin}, {image.width} x {image.height} and scaled to its short side")
        return image.resize(target, INTERPOLATIONS[self.interpolation])

    def _bordered(self, image: Image.Image) -> Image.Image:
        height, width = self.size
        image = centre_crop(image, min(height, image.height), min(width, image.width))
        fill = self.fill if image.mode == "RGB" else round(sum(self.fill) / max(1, len(self.fill)))
        whole = Image.new(image.mode, (width, height), fill)
        whole.paste(image, ((width - image.width) // 2, (height - image.height) // 2))
        return whole


# Of the catalog: as RobustBench's "Res256Crop224" (ours: the paper does not say), so that numbers compare.
IMAGENET = Fit((224, 224), (256, 256), "cover", keeps_exact=False)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
