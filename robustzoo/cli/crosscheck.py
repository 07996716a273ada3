"""`robustzoo crosscheck`: our attacks beside another package's, on the same model and images."""

from __future__ import annotations

import json
from pathlib import Path

import click

from robustzoo.cli.json_errors import JsonErrors
from robustzoo.cli.models import open_model


@click.command(cls=JsonErrors)
@click.argument("model")
@click.option(
    "--engine",
    type=click.Choice(["autoattack", "torchattacks"]),
    default="autoattack",
    show_default=True,
    help="Package to compare with: pyautoattack (or autoattack), or torchattacks; extra `crosscheck`.",
)
@click.option(
    "--attacks",
    default="apgd-ce,apgd-t,fab-t,square",
    show_default=True,
    help="Which, with commas between them.",
)
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
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of both sides.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Of our side.")
@click.option(
    "--micro-batch", "micro_batch_size", type=click.IntRange(min=1), help="Images per forward pass."
)
@click.option("--device", help="cpu or cuda[:i]; default: where the model is.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable table, with ids; errors too.")
def crosscheck(model: str, attacks: str, data: str | None, as_json: bool, **options) -> None:
    """Compare our attacks with another package's, one by one, on MODEL (named as for `evaluate`).

    The result is a table of agreement, not Evidence: what another package finds keeps that package's name.
    """
    from robustzoo.evaluation.crosscheck import crosscheck as run

    loaded = open_model(model)
    result = run(
        loaded.module,
        loaded.data(data),
        options.pop("threat_model"),
        attacks=[attack.strip() for attack in attacks.split(",") if attack.strip()],
        name=loaded.name,
        **options,
    )
    click.echo(json.dumps(result.to_json(), indent=1) if as_json else result.text())
