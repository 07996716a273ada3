"""Image files as pixels: which kinds are read, how large they may be, and what their shades mean."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
from PIL import Image

from robustzoo.data.image_dataset import DataError, reading

LIMIT_VARIABLE = "ROBUSTZOO_MAX_PIXELS"
# Of what Pillow opens: EPS runs an interpreter of programs, the others are stubs without a decoder.
_NOT_READ = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}
_USUAL = ["JPEG", "PNG"]  # tried first, since they are nearly all
_LFS_POINTER = b"version https://git-lfs"


@functools.cache
def formats() -> list[str]:
    """What is read: every format that the installed Pillow decodes by itself."""
    Image.init()
    return [*_USUAL, *sorted(set(Image.OPEN) - _NOT_READ - set(_USUAL))]


@functools.cache
def suffixes() -> frozenset[str]:
    """Ends of file names of these formats, in lower case with their dot."""
    known = set(formats())
    return frozenset(end for end, kind in Image.registered_extensions().items() if kind in known)


def pixel_limit() -> int | None:
    """Pixels that an image may have, decoded or resized: a small file can ask for gigabytes.

    The environment variable ROBUSTZOO_MAX_PIXELS, else Pillow's own `Image.MAX_IMAGE_PIXELS` (None: any).
    Raises DataError where the variable is no positive whole number.
    """
    stated = os.environ.get(LIMIT_VARIABLE)
    if stated is None:
        return Image.MAX_IMAGE_PIXELS
    if not (stated.isascii() and stated.isdecimal() and 0 < len(stated) < 16 and int(stated) > 0):
        raise DataError(f"{LIMIT_VARIABLE} is {stated!r}; expected a whole number of pixels, at least 1")
    limit = int(stated)
    if Image.MAX_IMAGE_PIXELS is not None and limit > Image.MAX_IMAGE_PIXELS:
        Image.MAX_IMAGE_PIXELS = limit  # else Pillow refuses what the user has just allowed
    return limit


def check_pixels(width: int, height: int, what: str) -> None:
    """Raise DataError where an image of this size is over the limit. what: how the error names it."""
    limit = pixel_limit()
    if limit is not None and width * height > limit:
        raise DataError(_too_large(what, f"{width} x {height}", width * height, limit))


def _too_large(what: str, size: str, pixels: int, limit: int) -> str:
    return (
        f"{what}: an image of {size} = {pixels:,} pixels, over the limit of {limit:,}; leave it out, make it "
        f"smaller, or allow it with the environment variable {LIMIT_VARIABLE}={pixels}"
    )


def decode(file, channels: int, origin: str) -> Image.Image:
    """Read one image (a path or an open file) completely, as RGB or, for one channel, grey.

    16-bit grey is brought to the nearest of 8 bits; of several frames or pages the first is read. origin: how
    an error names the image. Raises DataError where the bytes are no image, break off, or are of an image
    over `pixel_limit`.
    """
    limit = pixel_limit()
    advice = (
        "fetch the file again, or take it out of the data (`robustzoo train --skip-corrupt` passes over it)"
    )
    if isinstance(file, str | Path) and _is_pointer(Path(file)):
        raise DataError(
            f"{origin}: a Git LFS pointer and not the image; fetch the images with `git lfs pull`"
        )
    with reading(f"{origin}: no readable image", advice):
        try:
            opened = Image.open(file, formats=formats())
        except Image.DecompressionBombError as error:
            raise DataError(
                f"{origin}: {str(error).rstrip('.')}; leave the image out, make it smaller, or allow it with "
                f"the environment variable {LIMIT_VARIABLE}=PIXELS"
            ) from error
        with opened as image:
            if limit is not None and image.width * image.height > limit:
                check_pixels(image.width, image.height, origin)
            return _converted(image, channels)


def convert(image: Image.Image, channels: int) -> Image.Image:
    """An image of Pillow's as `decode` gives it. Raises: DataError for pixels of neither 8 nor 16 bits."""
    with reading("the image cannot be taken", "give one of 8 or 16 bits a channel"):
        return _converted(image, channels)


def _converted(image: Image.Image, channels: int) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        image = _to_8_bits(image)
    return image.convert("L" if channels == 1 else "RGB")


def _is_pointer(file: Path) -> bool:
    try:
        with file.open("rb") as opened:
            return opened.read(len(_LFS_POINTER)) == _LFS_POINTER
    except OSError:
        return False  # left to the reader, which says what is wrong


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Grey of 16 bits as grey of 8 bits; Pillow's own conversion would make all above 255 white."""
    pixels = np.asarray(image)
    if image.mode == "I" and image.format == "TIFF":  # of 32 bits: nothing says which of them is white
        raise ValueError("whole numbers of 32 bits, expected 8 or 16 bits")
    if pixels.dtype.kind == "f" or pixels.min() < 0 or pixels.max() > 65535:
        raise ValueError(f"pixels of mode {image.mode}, expected 8 or 16 bits")
    return Image.fromarray(np.rint(pixels / 257).astype(np.uint8))  # 65535 / 257 = 255
