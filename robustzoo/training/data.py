"""The images of a run: originals, generated ones mixed in, their order, those held out, broken ones."""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from robustzoo.data import (
    DataError,
    ImageDataset,
    MixedImages,
    MixedOrder,
    TrainingOrder,
    evaluation_subset,
    load_dataset,
)
from robustzoo.data.readers.generated_images import GeneratedImages
from robustzoo.registry import Recipe
from robustzoo.registry.dataset_files import is_own
from robustzoo.registry.recipes import partial
from robustzoo.registry.rules import generated_images
from robustzoo.training.metrics import say
from robustzoo.training.plan import Plan

MOST_SKIPPED = 0.01  # of the images; more is no accident of single files, but a wrong folder or a bad disk
_LOOKED_AT = 16  # images whose pixels a digest covers: reading all of ImageNet takes minutes


@dataclass(frozen=True)
class TrainingData:
    """What a run reads.

    Attributes:
        recipe: the recipe asked for, or where other data are at hand (a part of the images, another number
            of generated ones) the one of those data.
        images: the training images, with generated ones behind the originals where the recipe has them.
        originals: the training images without generated ones.
        order: which of them make up the batch of a step.
        holdout: images kept out of training, to choose by.
        generated: the generated ones among `images`, None where there are none.
    """

    recipe: Recipe
    images: ImageDataset
    originals: ImageDataset
    order: TrainingOrder | MixedOrder
    holdout: ImageDataset
    generated: ImageDataset | None = None

    def describe(self) -> str:
        """One line for people."""
        what = f"{len(self.images):,} images"
        if self.generated:
            what += (
                f", {len(self.generated):,} of them generated ({self.recipe.extra_fraction:.0%} of a batch)"
            )
        return what

    def identity(self) -> dict[str, Any]:
        """What tells these images from others, JSON-able: their numbers and `digest`s.

        Raises:
            DataError, MissingData: an image that a digest looks at cannot be read.
        """
        return {
            "training_images": len(self.images),
            "generated_images": 0 if self.generated is None else len(self.generated),
            "training_data_digest": digest(self.originals),
            "generated_data_digest": None if self.generated is None else digest(self.generated),
        }


def digest(images: ImageDataset) -> str:
    """sha256 (hex) over all labels, as little-endian int64, and over the pixels of a few images, always the
    same ones: other data are told by it, but not every change of a single image.
    """
    looked_at = evaluation_subset(images, min(len(images), _LOOKED_AT)).digest
    return hashlib.sha256(images.labels.astype("<i8").tobytes() + bytes.fromhex(looked_at)).hexdigest()


def open_training_data(plan: Plan) -> TrainingData:
    """Open the images that the plan's recipe trains on, from the folders of the command line.

    Raises:
        DataError, MissingData: absent, damaged or unfitting data.
    """
    recipe, flags = plan.recipe, plan.flags
    images = load_dataset(recipe.training_data, flags.data, "train")
    holdout = load_dataset(recipe.training_data, flags.data, "holdout")
    if flags.skip_corrupt:
        images, holdout = ReadableImages(images), ReadableImages(holdout)
    if recipe.batch_size > len(images):
        raise DataError(
            f"a batch of {recipe.batch_size:,} is more than the {len(images):,} training images; choose a "
            f"smaller --batch-size"
        )
    own = is_own(recipe.training_data)  # counted in the recipe
    at_hand = len(images) if own or not images.complete else None
    if recipe.training_images not in (None, at_hand):
        raise DataError(
            f"{recipe.name} is a training on {recipe.training_images:,} of the images of "
            f"{recipe.training_data}, but {len(images):,} are at hand: give the data it was made with, or "
            "set training_images=none"
        )
    recipe = partial(recipe, images=at_hand)
    order = TrainingOrder(len(images), recipe.batch_size, flags.seed)
    data = TrainingData(recipe, images, images, order, holdout)
    if recipe.extra_data == "none":
        return data
    generated = GeneratedImages(flags.extra_data, images.image_shape, images.num_classes)
    expected = generated_images(recipe.extra_data)
    if ":" in recipe.extra_data and len(generated) != expected:
        raise DataError(
            f"{recipe.name} is a training with {expected:,} generated images, but {flags.extra_data} has "
            f"{len(generated):,}: give the file it was made with, or set extra_data=ddpm"
        )
    recipe = partial(recipe, generated=len(generated))
    order = MixedOrder(len(images), len(generated), recipe.batch_size, recipe.extra_fraction, flags.seed)
    mixed = MixedImages(images, generated)
    return replace(data, recipe=recipe, images=mixed, order=order, generated=generated)


class ReadableImages(ImageDataset):
    """A data set in which an image that cannot be read is replaced by the next one that can.

    Each broken image is named once on stderr, with what it lacks and which image stands in. What stands in
    depends on the data alone, so that a resumed run is the uninterrupted one.

    Raises DataError where more than MOST_SKIPPED of the images, and more than one, are broken.
    """

    def __init__(self, images: ImageDataset) -> None:
        super().__init__(images.key, images.split, images.labels, images.image_shape, images.classes)
        self.images = images
        self.shortfall = images.shortfall
        self.skipped: dict[int, str] = {}
        self._lock = threading.Lock()  # images are read by several threads

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self._readable(i, lambda j: self.images[j])

    def training_item(self, i: int, seed: int, epoch: int, augmentation: str) -> tuple[Tensor, int]:
        return self._readable(i, lambda j: self.images.training_item(j, seed, epoch, augmentation))

    def _image(self, i: int) -> Tensor:
        return self[i][0]

    def _readable(self, i: int, read) -> tuple[Tensor, int]:
        for step in range(len(self)):
            j = (i + step) % len(self)
            try:
                return read(j)
            except DataError as error:
                self._skip(j, error)
        raise DataError(f"none of the {len(self):,} images can be read")

    def _skip(self, i: int, error: DataError) -> None:
        with self._lock:
            if i in self.skipped:
                return
            self.skipped[i] = str(error)
            say(f"skipped, the next readable image stands in: {error}")
            if len(self.skipped) > max(1, MOST_SKIPPED * len(self)):
                raise DataError(
                    f"{len(self.skipped)} of {len(self):,} images cannot be read, more than the "
                    f"{MOST_SKIPPED:.0%} that --skip-corrupt passes over; mend or remove them. "
                    f"The last: {error}"
                ) from error
