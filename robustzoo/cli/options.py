"""Options that several commands have, word for word, and what their values tell before torch is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from robustzoo import atomic_files
from robustzoo.registry import Recipe

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def together(*options: _Decorator) -> _Decorator:
    """All of these options as one decorator; help lists them in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


class FileToWrite(click.Path):
    """A file that a command will write, judged before it starts; missing parent folders are made then.

    Args:
        endings: of its name, as what it will hold; none: any.
    """

    def __init__(self, *endings: str) -> None:
        super().__init__(dir_okay=False, path_type=Path)
        self.endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file: Path = super().convert(value, param, ctx)
        if self.endings and file.suffix.lower() not in self.endings:
            self.fail(f"{file}: expected a name that ends in {' or '.join(self.endings)}", param, ctx)
        if (reason := atomic_files.why_unwritable(file.parent)) is not None:
            self.fail(f"{file}: {reason}; choose another place", param, ctx)
        return file


class FiniteRange(click.FloatRange):
    """click.FloatRange, which lets NaN pass every limit, for finite numbers alone."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number in the range {self._describe_range()}.", param, ctx)
        return number


def check_data_root(data_root: Path | None, recipe: Recipe | None) -> None:
    """Raise click.UsageError where the folder of a data set's files is absent, missing, or would not be read.

    recipe: of the model, where it is known by now.
    """
    dataset = None if recipe is None else recipe.images
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


data_root = click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    help="Folder of the dataset's files (not for digits); as in --data NAME:DIR.",
)
data = click.option(
    "--data",
    metavar="NAME|NAME:DIR|DIR",
    help="A dataset's name, with its files in DIR, or a folder: of the model's dataset, or (as folder:DIR "
    "always) with one sub-folder of images per class. Default: the model's own dataset.",
)
classes = click.option(
    "--classes",
    type=click.Path(path_type=Path),
    help="File with the names of the class folders in the order of the labels, one a line.",
)
# Which images, and how they are brought to the model's size.
images = together(
    data,
    data_root,
    click.option(
        "--resize",
        metavar="N|HxW|none",
        help="Of a folder's images: scale the short side to N pixels, or both sides to HxW; default: the "
        "model's own way, else 8/7 of the crop. Images of the crop's size are kept unless this is given.",
    ),
    click.option("--crop", metavar="N|HxW", help="Size cropped at the centre; default: the model's."),
    click.option(
        "--interpolation", type=click.Choice(["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"])
    ),
    classes,
)
trust = click.option(
    "--trust",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File of Python that an imported model's folder names, to be run to build its network: read "
    "it first. "
    "Without it no code of a folder runs.",
)
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of every draw."
)
workers = click.option(
    "--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes."
)
# A model that is attacked on a few of its images, without Evidence.
attacked_model = together(
    click.argument("model"),
    images,
    click.option("--threat-model", metavar="NORM:EPS", help="Default: the model's own."),
    click.option(
        "--n",
        type=click.IntRange(min=1),
        default=100,
        show_default=True,
        help="Images at most, a fixed random subset.",
    ),
    seed,
    workers,
    click.option("--device", help="cpu or cuda[:i]; default: where the model is."),
)
