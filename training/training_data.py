"""The images of a run: which data set, with or without generated images, and whether it is all there."""

from __future__ import annotations

from dataclasses import dataclass

from robustzoo.data import (
    GeneratedImages,
    ImageDataset,
    MixedImages,
    MixedOrder,
    TrainingOrder,
    load_dataset,
)
from robustzoo.registry import Recipe
from robustzoo.registry.recipes import partial
from training.arguments import Job, check_extra_data


@dataclass(frozen=True)
class TrainingData:
    """What a run trains and validates on.

    Attributes:
        recipe: the recipe of a training on these images; another, with another name, where they are a part.
        train: original images, then generated ones where the recipe has them.
        holdout: original training images kept out, to choose by.
        order: the batch of every step.
    """

    recipe: Recipe
    train: ImageDataset
    holdout: ImageDataset
    order: TrainingOrder | MixedOrder

    @property
    def warning(self) -> str:
        """What to say loudly before a training on a part of the data; "" where nothing is missing."""
        if not self.train.shortfall:
            return ""
        return (
            f"WARNING: only a part of the training data is here: {self.train.shortfall}. The model will be "
            f"{self.recipe.name}, not {self.recipe.base_name}"
        )

    def describe(self) -> str:
        """One line for people."""
        if not isinstance(self.order, MixedOrder):
            return f"{len(self.train):,} images of {self.train.key}"
        share = self.order.generated_per_batch
        return (
            f"{self.order.n_original:,} images of {self.train.key} and "
            f"{self.order.n - self.order.n_original:,} generated ones ({self.order.batch_size - share} and "
            f"{share} in a batch)"
        )


def open_training_data(job: Job, recipe: Recipe) -> TrainingData:
    """Open the images that the recipe names, at the places that the command line gives.

    Raises:
        DataError, MissingData: see `load_dataset` and `GeneratedImages`.
        ExtraDataError: generated images that are asked for and not given, or the reverse.
    """
    check_extra_data(job, recipe)
    train: ImageDataset = load_dataset(recipe.training_data, job.data, "train")
    holdout = load_dataset(recipe.training_data, job.data, "holdout")
    order: TrainingOrder | MixedOrder = TrainingOrder(len(train), recipe.batch_size, job.seed)
    if not train.complete:
        recipe = partial(recipe, images=len(train))
    if recipe.extra_data != "none":
        generated = GeneratedImages(job.extra_data, train.image_shape, train.num_classes)
        order = MixedOrder(len(train), len(generated), recipe.batch_size, recipe.extra_fraction, job.seed)
        train = MixedImages(train, generated)
    return TrainingData(recipe, train, holdout, order)
