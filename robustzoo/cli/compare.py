"""`robustzoo compare`: two models on the same images, image by image."""

from __future__ import annotations

import json

import click

from robustzoo.cli.json_errors import JsonErrors
from robustzoo.cli.say import say


@click.command(cls=JsonErrors)
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable comparison, and errors.")
def compare(a: str, b: str, as_json: bool) -> None:
    """Compare A and B, each an Evidence file or a model with Evidence, on the same images.

    Prints the paired table, the exact McNemar test and the interval of the difference. Refused (exit code 2)
    where images, threat model or protocol differ.
    """
    from robustzoo.reports.comparison import compare as run

    result = run(stored_evidence(a), stored_evidence(b))
    say(json.dumps(result.to_json(), indent=1) if as_json else result.text())


def stored_evidence(place: str):
    """The Evidence that a command's argument means: a file's, or those of a model's folder, main one
    first."""
    from robustzoo.hub.load import resolve_folder
    from robustzoo.reports.comparison import is_file, open_evidence

    return open_evidence(place if is_file(place) else resolve_folder(place))
