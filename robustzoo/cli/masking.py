"""`robustzoo diagnose masking`: does a model only hide its gradient?"""

from __future__ import annotations

import json
from pathlib import Path

import click

from robustzoo.cli.json_errors import JsonErrors
from robustzoo.cli.models import open_model


@click.command(cls=JsonErrors)
@click.argument("model")
@click.option("--data", metavar="DATASET", help="As for `evaluate`; default: the model's own dataset.")
@click.option("--data-root", type=click.Path(path_type=Path), help="Folder of the dataset's files.")
@click.option("--threat-model", metavar="NORM:EPS", help="Default: the model's own.")
@click.option(
    "--n",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Images at most, a fixed random subset.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of every draw.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--device", help="cpu or cuda[:i]; default: where the model is.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result, and errors.")
def masking(model: str, data: str | None, as_json: bool, **options) -> None:
    """Look for signs of gradient masking in MODEL (named as for `evaluate`), and say them in words.

    Zero gradients, a loss that gradient steps do not raise, Square doing better than gradient attacks, and a
    clean accuracy that changes.
    """
    from robustzoo.evaluation.masking_probe import probe_masking

    loaded = open_model(model)
    found = probe_masking(
        loaded.module,
        loaded.data(data),
        options.pop("threat_model"),
        name=loaded.name,
        **options,
    )
    click.echo(json.dumps(found.to_json(), indent=1) if as_json else found.text())
