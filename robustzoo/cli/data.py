"""`robustzoo data`: images of one's own, described for the other commands."""

from __future__ import annotations

from pathlib import Path

import click

from robustzoo.cli.models import say_running
from robustzoo.cli.output import say
from robustzoo.errors import RobustzooError
from robustzoo.python_files import file_and_function
from robustzoo.registry.dataset_files import FILE


@click.group()
def data() -> None:
    """Describe images of your own, so that other commands can train on them and measure on them."""


@data.command()
@click.argument("place", metavar="DIR|FILE.py:FUNCTION")
@click.option("--name", help="What the data are called: results say own:NAME. Default: the folder's name.")
@click.option("--image-size", type=click.IntRange(min=1), help="Pixels; default: from the images' own.")
@click.option("--licence", default="unknown", show_default=True, help="Of the images, in words.")
@click.option("--source", default="unknown", show_default=True, help="Where they come from, in words.")
@click.option("--overwrite", is_flag=True, help=f"Replace the {FILE} that is there.")
def describe(
    place: str, name: str | None, image_size: int | None, licence: str, source: str, overwrite: bool
) -> None:
    """Write dataset.json into DIR from its images: classes in order, size, mean and std, splits.

    DIR holds train/CLASS/IMAGE and test/CLASS/IMAGE (or val/), or CLASS/IMAGE, of which a fifth is drawn for
    testing, or parquet files in the Hub's layout. FILE.py is run: FUNCTION("train") and FUNCTION("test") give
    a torch Dataset of (image, label) each. Edit what it writes where it is not what you mean.
    """
    from robustzoo.data.description import describe_images

    code = file_and_function(place)
    if code is not None:
        say_running(code[0])
    folder = Path(place).expanduser() if code is None else code[0].expanduser().parent
    if (folder / FILE).exists() and not overwrite:
        raise RobustzooError(f"{folder / FILE} is there already; edit it, or replace it with --overwrite")
    found, notes = describe_images(
        folder, code, name=name, image_size=image_size, licence=licence, source=source
    )
    found.write(folder / FILE)
    for note in notes:
        say(note)
    shown = place if code is not None else f"{found.name}:{place}"
    say(
        f"wrote {folder / FILE}; next, with a network and method of `robustzoo ls --recipes`:\n"
        f"robustzoo train resnet_mini.cifar10jpg_linf.at_base --data {shown} --set threat_model=linf:4/255"
    )


@data.command()
@click.argument("cifar10", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new or empty folder.")
def jpeg(cifar10: Path, out: Path) -> None:
    """Make the JPEG set cifar10jpg from CIFAR10: its Python batches, binary archive, parquet or PNG files.

    Says whether the result is the catalog's, by two digests that do not depend on the order of the images.
    """
    from robustzoo.data.cifar_jpeg import convert, told

    say("\n".join(told(convert(cifar10, out))))


@data.command()
@click.argument("folder", type=click.Path(path_type=Path))
def digest(folder: Path) -> None:
    """Say whether FOLDER holds the catalog's cifar10jpg."""
    from robustzoo.data.cifar_jpeg import digests, told

    say("\n".join(told(digests(folder))))
