"""`robustzoo diagnose masking`: does a model only hide its gradient?"""

from __future__ import annotations

import json

import click

from robustzoo.cli.json_errors import JsonErrors
from robustzoo.cli.models import open_model, refuse_unknown
from robustzoo.cli.options import attacked_model
from robustzoo.cli.own_output import own_output
from robustzoo.cli.say import say


@click.command(cls=JsonErrors)
@attacked_model
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result, and errors.")
def masking(model: str, as_json: bool, **options) -> None:
    """Look for signs of gradient masking in MODEL (named as for `evaluate`), and say them in words.

    Zero gradients, a loss that gradient steps do not raise, Square doing better than gradient attacks, and a
    clean accuracy that changes.
    """
    refuse_unknown(model)
    from robustzoo.diagnostics.masking import probe_masking

    with own_output(as_json):
        loaded = open_model(model)
        found = probe_masking(
            loaded.module,
            loaded.images(options),
            options.pop("threat_model"),
            name=loaded.name,
            **options,
        )
    say(json.dumps(found.to_json(), indent=1) if as_json else found.text())
