"""From a photograph to what a model takes, and from its logits to words."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from timm.data import ImageNetInfo
from torch import Tensor

from robustzoo.data.decoder import convert, decode
from robustzoo.data.fit import Fit
from robustzoo.data.image_dataset import to_bytes, to_unit
from robustzoo.errors import RobustzooError
from robustzoo.registry.dataset_files import is_own
from robustzoo.registry.describe import class_names

if TYPE_CHECKING:
    from robustzoo.cards.imported import Imported
    from robustzoo.registry import Recipe


def names_of_classes(described: Recipe | Imported | None, num_classes: int) -> tuple[str, ...]:
    """What the classes are called, in the order of the logits; their numbers where nobody says."""
    dataset = None if described is None else described.dataset
    names = getattr(described, "classes", None) or class_names(dataset or "")
    if names is None and dataset == "imagenet":
        names = tuple(ImageNetInfo().label_descriptions())
    return names if names is not None and len(names) == num_classes else tuple(map(str, range(num_classes)))


def preprocessing_of(recipe: Recipe) -> dict[str, Any]:
    """How images of other sizes become those that a recipe's model is evaluated on, in timm's words.

    Photographs of ImageNet are scaled to 256 pixels and cropped to 224, smaller and one's own images taken
    whole, of those that are no squares the centre.
    """
    own = is_own(recipe.dataset)
    return {
        "interpolation": "bicubic" if recipe.image_size < 64 and not own else "bilinear",
        "crop_pct": 1.0 if recipe.image_size < 64 or own else 0.875,
        "crop_mode": "center",
    }


class PixelTransform:
    """From a photograph to the pixels that a model takes: float32 (C, H, W) in [0, 1], not normalised.

    What an evaluation does with a folder of such photographs.

    Args:
        shape: (C, H, W) of the result, C 1 (grey) or 3 (RGB).
        preprocessing: as of `PixelModel`.

    Raises:
        RobustzooError: the model states no image size, or one that no photograph becomes.
        DataError: preprocessing that gives no transform.
    """

    def __init__(self, shape: tuple[int, int, int] | None, preprocessing: dict[str, Any] | None) -> None:
        if shape is None or shape[0] not in (1, 3):
            raise RobustzooError(
                f"the model takes images of {shape}; expected (1 or 3, height, width) for photographs"
            )
        self.channels = shape[0]
        self.fit = Fit.of_model(preprocessing, (shape[1], shape[2]))

    def __call__(self, image: Image.Image | str | Path | bytes) -> Tensor:
        """image: one of Pillow, the path of a file, or the bytes of one.

        Raises: DataError: no readable image.
        """
        origin = str(image) if isinstance(image, str | Path) else "the image"
        if isinstance(image, Image.Image):
            decoded = convert(image, self.channels)
        else:
            decoded = decode(io.BytesIO(image) if isinstance(image, bytes) else image, self.channels, origin)
        return to_unit(to_bytes(self.fit.apply(decoded, origin)))
