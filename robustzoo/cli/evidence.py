"""`robustzoo evidence`: what is done with Evidence files that are there."""

from __future__ import annotations

from pathlib import Path

import click

from robustzoo.cli.say import say


@click.group()
def evidence() -> None:
    """Work with the Evidence files of evaluations."""


@evidence.command()
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the merged evidence.")
def merge(folders: tuple[Path, ...], out: Path) -> None:
    """Merge the shards in each FOLDER (`robustzoo evaluate --shard i/n`) into the Evidence of the whole.

    Shards may come in any order and from several machines. The result is what a single run would have
    written; a shard that is missing, there twice, or of another evaluation is an error that names it.
    """
    from robustzoo.evaluation.shards import merge as run
    from robustzoo.evaluation.terms import with_witnesses
    from robustzoo.reports.text import report

    for path in run(folders, out):
        say(f"wrote {path}\n\n{report(with_witnesses(path))}")
