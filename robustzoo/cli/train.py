"""`robustzoo train NAME ...`: what `python -m robustzoo.training NAME ...` does, in one process."""

from __future__ import annotations

import click

from robustzoo.training import __main__ as training


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def train(arguments: tuple[str, ...]) -> None:
    """Train a recipe with DeepSpeed and export its model (`robustzoo train --help`)."""
    training.main(lambda: training.train(arguments))
