"""The images of a run: originals, generated ones mixed in, their order, and those held out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

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
from robustzoo.registry.recipes import partial
from robustzoo.registry.rules import generated_images
from robustzoo.training.arguments import Job
from robustzoo.training.readable_images import ReadableImages

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


def open_training_data(recipe: Recipe, job: Job) -> TrainingData:
    """Open the images that `recipe` trains on, from the folders of the command line.

    Raises:
        DataError, MissingData: absent, damaged or unfitting data.
    """
    images = load_dataset(recipe.training_data, job.data, "train")
    holdout = load_dataset(recipe.training_data, job.data, "holdout")
    if job.skip_corrupt:
        images, holdout = ReadableImages(images), ReadableImages(holdout)
    if recipe.batch_size > len(images):
        raise DataError(
            f"a batch of {recipe.batch_size:,} is more than the {len(images):,} training images; choose a "
            f"smaller --batch-size"
        )
    at_hand = None if images.complete else len(images)
    if recipe.training_images not in (None, at_hand):
        raise DataError(
            f"{recipe.name} is a training on {recipe.training_images:,} of the images of "
            f"{recipe.training_data}, but {len(images):,} are at hand: give the data it was made with, or "
            "set training_images=none"
        )
    recipe = partial(recipe, images=at_hand)
    order = TrainingOrder(len(images), recipe.batch_size, job.seed)
    data = TrainingData(recipe, images, images, order, holdout)
    if recipe.extra_data == "none":
        return data
    generated = GeneratedImages(job.extra_data, images.image_shape, images.num_classes)
    expected = generated_images(recipe.extra_data)
    if ":" in recipe.extra_data and len(generated) != expected:
        raise DataError(
            f"{recipe.name} is a training with {expected:,} generated images, but {job.extra_data} has "
            f"{len(generated):,}: give the file it was made with, or set extra_data=ddpm"
        )
    recipe = partial(recipe, generated=len(generated))
    order = MixedOrder(len(images), len(generated), recipe.batch_size, recipe.extra_fraction, job.seed)
    mixed = MixedImages(images, generated)
    return replace(data, recipe=recipe, images=mixed, order=order, generated=generated)
