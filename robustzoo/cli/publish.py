"""`robustzoo card` and `robustzoo publish`: state the claims of a model folder, and put it into the zoo."""

from __future__ import annotations

from pathlib import Path

import click

from robustzoo.cli.output import say

_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("folder", type=_FOLDER)
def card(folder: Path) -> None:
    """Write FOLDER/README.md, the card, from the folder's recipe and evidence."""
    from robustzoo.hub.publish import write_card

    say(f"wrote {write_card(folder)}")


@click.command()
@click.argument("folder", type=_FOLDER)
def publish(folder: Path) -> None:
    """Bundle FOLDER with this checkout: copy it into the package, write its card, pin its hash.

    Weights of at most 6 MB; publishing to the Hub is not part of this version.
    """
    from robustzoo.hub.publish import publish_bundled

    item = publish_bundled(folder)
    say(f"published {item.name} as bundled weights, sha256 {item.weights.sha256}")
