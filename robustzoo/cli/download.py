"""`robustzoo download`: a published model, from the Hub to this machine. No torch import."""

from __future__ import annotations

from pathlib import Path

import click

from robustzoo.cli.output import say
from robustzoo.hub.load import download as fetched


@click.command()
@click.argument("name")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Copy the folder there, for a machine without a network. Default: the Hub's cache only.",
)
def download(name: str, to: Path | None) -> None:
    """Fetch a model: its weights, compared with the pinned hash, its card and its evidence.

    NAME is a registry name or hf-hub:OWNER/REPO, with @ and a commit or tag behind it. Nothing is loaded.
    """
    folder = fetched(name, to)
    say(f"{folder}\nrobustzoo.load({f'local-dir:{folder}'!r})")
