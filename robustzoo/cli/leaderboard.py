"""`robustzoo leaderboard`: a static page of the models and their numbers."""

from __future__ import annotations

from pathlib import Path

import click

from robustzoo.cli.output import say
from robustzoo.leaderboard import site
from robustzoo.leaderboard.lines import models_of
from robustzoo.registry import entry, list_models


@click.group()
def leaderboard() -> None:
    """Make a static web page of models and their numbers."""


@leaderboard.command()
@click.argument("folders", nargs=-1, metavar="[FOLDER]...", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--out",
    required=True,
    metavar="SITE",
    type=click.Path(path_type=Path, file_okay=False),
    help="A new or empty folder, or a site made before, which is replaced.",
)
@click.option("--own", is_flag=True, help="The FOLDERs alone, without the zoo's own models.")
def build(folders: tuple[Path, ...], out: Path, own: bool) -> None:
    """Build the page of the zoo's models on this machine and of the model folders FOLDER.

    A model's card must be what its recipe and Evidence give; every number of the page links to its Evidence.
    Open SITE/index.html: it needs no network.
    """
    if own and not folders:
        raise click.UsageError("--own leaves the zoo's models out: name at least one FOLDER")
    published = [] if own else [entry(name) for name in list_models(published_only=True)]
    models = models_of(published, folders)
    site.build(models, out)
    say(f"{out / 'index.html'}: {len(models)} model{'s' if len(models) != 1 else ''} with evidence")
