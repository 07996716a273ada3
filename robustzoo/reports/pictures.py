"""The pictures of a model folder: accuracy after each attack, and images before and after an attack."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robustzoo.cards.evidence import Evidence, Verdict
from robustzoo.cards.head import ATTACKS, PERTURBATIONS, attacked_first, attacks_svg, shown_perturbations
from robustzoo.cards.holdings import evidence_files
from robustzoo.cards.witnesses import Witnesses

if TYPE_CHECKING:
    from PIL import Image

    from robustzoo.data import ImageDataset

_SMALLEST, _LARGEST, _GAP, _LINE = 48, 96, 6, 14  # sides of a tile, in pixels
_WITNESSES = "robustzoo:witnesses"  # key of the PNG's text: sha256 of the file that was drawn


def draw(folder: Path, documents: Sequence[Evidence], images: ImageDataset | None = None) -> dict[str, bytes]:
    """Path in the folder -> content, the same for the same Evidence, witnesses and images.

    Args:
        images: those of the first Evidence about an attack, drawn beside the fooling points. Without them the
            picture of before stays, if it is of these witnesses.

    Raises:
        RobustzooError: a witness file that is not the one of its Evidence.
    """
    files = {ATTACKS: attacks_svg(documents).encode()}
    main = attacked_first(documents)
    chosen = [] if main is None else shown_perturbations(main)
    if main is None or not chosen:
        return files
    sha256, witnesses = _witnesses(folder, main)
    if images is None and _drawn_before(folder / PERTURBATIONS) == sha256:
        files[PERTURBATIONS] = (folder / PERTURBATIONS).read_bytes()
    else:
        files[PERTURBATIONS] = _png(main, chosen, witnesses, images, sha256)
    return files


def _witnesses(folder: Path, evidence: Evidence) -> tuple[str, Witnesses | None]:
    """The hash and the content of the witness file that an Evidence of the folder names; None without one."""
    stated, shape = evidence.doc["witnesses"], evidence.doc["dataset"]["image_shape"]
    for path in evidence_files(folder) if stated is not None else []:
        place = path.with_name(stated["file"])
        if Evidence.load(path).doc == evidence.doc and place.is_file():
            return stated["sha256"], Witnesses.load(place, stated["sha256"], stated["count"], shape)
    return "none", None


def _drawn_before(path: Path) -> str | None:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.info.get(_WITNESSES)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def _png(
    evidence: Evidence,
    chosen: Sequence[Verdict],
    witnesses: Witnesses | None,
    dataset: ImageDataset | None,
    sha256: str,
) -> bytes:
    from PIL import Image, ImageDraw, PngImagePlugin

    rows = {} if witnesses is None else {int(number): row for row, number in enumerate(witnesses.ids)}
    points = [
        None if witnesses is None or verdict.id not in rows else witnesses.points([rows[verdict.id]])[0]
        for verdict in chosen
    ]
    images = [None if dataset is None else _image(dataset, verdict) for verdict in chosen]
    deltas = [None if a is None or b is None else a - b for a, b in zip(points, images, strict=True)]
    largest = max((float(np.abs(delta).max()) for delta in deltas if delta is not None), default=0.0) or 1.0
    differences = [None if delta is None else 0.5 + delta / (2 * largest) for delta in deltas]
    lines = [points] if dataset is None else [images, points, differences]
    height, width = (_side(side) for side in evidence.doc["dataset"]["image_shape"][1:])
    canvas = Image.new(
        "RGB",
        (len(chosen) * (width + _GAP) + _GAP, len(lines) * (height + _GAP) + _GAP + 2 * _LINE),
        "white",
    )
    for number, tiles in enumerate(lines):
        for column, tile in enumerate(tiles):
            if tile is not None:
                at = (_GAP + column * (width + _GAP), _GAP + number * (height + _GAP))
                canvas.paste(_tile(tile), at)
    pen = ImageDraw.Draw(canvas)
    for column, verdict in enumerate(chosen):
        at = (_GAP + column * (width + _GAP), canvas.height - 2 * _LINE)
        said = [f"class {verdict.label}", verdict.broken_by.attack if verdict.broken_by else ""]
        for line, text in enumerate(said):
            pen.text((at[0], at[1] + line * _LINE - 2), text[:14], fill="black", font_size=10)
    info = PngImagePlugin.PngInfo()
    info.add_text(_WITNESSES, sha256)
    stream = io.BytesIO()
    canvas.save(stream, "PNG", optimize=True, pnginfo=info)
    return stream.getvalue()


def _image(dataset: ImageDataset, verdict: Verdict) -> np.ndarray | None:
    """The image of a verdict, float32 (C, H, W), where there is one with its label."""
    if verdict.id >= len(dataset):
        return None
    pixels, label = dataset[verdict.id]
    return pixels.numpy() if int(label) == verdict.label else None


def _side(side: int) -> int:
    """Of a tile: small images are magnified by a whole number, large ones made smaller by one."""
    return side * max(1, _SMALLEST // side) if side <= _LARGEST else side // math.ceil(side / _LARGEST)


def _tile(pixels: np.ndarray) -> Image.Image:
    from PIL import Image

    channels, height, width = pixels.shape
    for axis, side in ((1, height), (2, width)):
        if side <= _LARGEST:
            pixels = pixels.repeat(max(1, _SMALLEST // side), axis)
        else:
            step = math.ceil(side / _LARGEST)
            pixels = np.moveaxis(pixels, axis, 0)[: side // step * step]
            pixels = np.moveaxis(pixels.reshape(-1, step, *pixels.shape[1:]).mean(1), 0, axis)
    shown = pixels if channels == 3 else np.broadcast_to(pixels.mean(0), (3, *pixels.shape[1:]))
    values = np.rint(np.clip(shown, 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(values.transpose(1, 2, 0)))
