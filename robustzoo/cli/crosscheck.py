"""`robustzoo crosscheck`: our attacks beside another package's, on the same model and images."""

from __future__ import annotations

import json

import click

from robustzoo.cli.models import open_model, refuse_unknown
from robustzoo.cli.options import attacked_model
from robustzoo.cli.output import JsonErrors, own_output, say


@click.command(cls=JsonErrors)
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
@attacked_model
@click.option(
    "--micro-batch", "micro_batch_size", type=click.IntRange(min=1), help="Images per forward pass."
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable table, with ids; errors too.")
def crosscheck(model: str, attacks: str, as_json: bool, **options) -> None:
    """Compare our attacks with another package's, one by one, on MODEL (named as for `evaluate`).

    The result is a table of agreement, not Evidence: what another package finds keeps that package's name.
    --seed is that of both sides; --workers and --micro-batch are ours alone.
    """
    refuse_unknown(model)
    from robustzoo.diagnostics.crosscheck import crosscheck as run

    with own_output(as_json):
        loaded = open_model(model)
        result = run(
            loaded.module,
            loaded.images(options),
            options.pop("threat_model"),
            attacks=[attack.strip() for attack in attacks.split(",") if attack.strip()],
            name=loaded.name,
            **options,
        )
    say(json.dumps(result.to_json(), indent=1) if as_json else result.text())
