"""What can be said of a command's model, data and numbers before torch is loaded, which takes seconds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from robustzoo.hub.references import is_folder, refuse_unpublished, registered_entry, shortened
from robustzoo.registry import Recipe
from robustzoo.registry.catalog import DATASETS


class FiniteRange(click.FloatRange):
    """click.FloatRange, which lets NaN pass every limit, for finite numbers alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number in the range {self._describe_range()}.", param, ctx)
        return number


def recipe_of(model: str) -> Recipe | None:
    """The recipe of a registry name with weights; None for a folder or a Hub reference, not looked into here.

    Raises:
        UnknownName, IncompatibleName, RobustzooError: as `robustzoo.load`.
        click.UsageError: no such folder.
    """
    registered = registered_entry(model)
    if registered is not None:
        refuse_unpublished(registered)
        return registered.recipe
    folder = Path(model.removeprefix("local-dir:"))
    if not model.startswith("hf-hub:") and not is_folder(folder):
        raise click.UsageError(
            f"{shortened(folder)} is not a folder; expected a model folder (model.safetensors and "
            "config.json), or a name that `robustzoo ls` lists"
        )
    return None


def check_data_root(data_root: Path | None, recipe: Recipe | None) -> None:
    """Raise click.UsageError where the folder of a data set's files is absent, missing, or would not be read.

    recipe: of the model, where it is known by now.
    """
    dataset = None if recipe is None else DATASETS[recipe.dataset]
    if dataset is not None and not dataset.needs_files:
        if data_root is not None:
            raise click.UsageError(
                f"--data-root {data_root}: {dataset.key} come with a dependency and need no data folder, so "
                "leave it away"
            )
    elif data_root is not None and not data_root.expanduser().is_dir():
        raise click.UsageError(f"--data-root {data_root}: no such folder; give the folder of the images")
    elif dataset is not None and data_root is None:
        raise click.UsageError(
            f"{dataset.key} needs its images: add --data-root DIR, the folder that holds them "
            f"(source: {dataset.source})"
        )
