"""The points at which `robustzoo diagnose` looks at a model's loss."""

from __future__ import annotations

from typing import Any

import click

import robustzoo
from robustzoo.cli.models import OpenedModel
from robustzoo.data import evaluation_subset
from robustzoo.data.readers.image_folder import ImageFolder
from robustzoo.diagnostics.model_loss import Points, adversarial_points
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.checks import check_labels
from robustzoo.evaluation.progress import Reporter
from robustzoo.models import PixelModel
from robustzoo.registry.catalog import is_catalog_key


def load_points(
    model: str, chosen: dict[str, Any], split: str | None, n: int, seed: int
) -> tuple[PixelModel, Points, int]:
    """The model, its images with adversarial points, and the number of images that those are taken from.

    chosen: values of the options `images`.
    """
    loaded = robustzoo.load(model)
    if loaded.recipe is None:
        raise RobustzooError(
            f"{loaded.name} was imported, and the loss that it was trained with is not known"
        )
    dataset = OpenedModel(loaded, dataset=loaded.recipe.dataset).images(chosen, split or "train")
    if split is not None and not is_catalog_key(dataset.key):
        raise click.UsageError(
            f"--split {split}: {dataset.key} has no splits and is taken whole; leave it away, or give the "
            "folder of that split"
        )
    with Reporter(True) as reporter:
        reporter.say_all(dataset)
    if dataset.labels is not None:
        check_labels(dataset.labels, loaded.recipe.num_classes, dataset.classes)
    total = len(dataset)
    if isinstance(dataset, ImageFolder) and n < total:  # the first ones are all of one class
        dataset.select(list(evaluation_subset(dataset, n).indices))
    return loaded, adversarial_points(loaded, dataset, min(n, total), seed), total
