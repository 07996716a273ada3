"""The command `robustzoo`: each subcommand is a function in this folder, imported when it is called."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

INTERRUPTED = 128 + 2  # the signal's number is 2

# Subcommand -> module of this package that holds a click command of the same name.
_COMMANDS = {
    "ls": "zoo",
    "show": "zoo",
    "recipe": "zoo",
    "evaluate": "evaluate",
    "evidence": "evidence",
    "verify": "verify",
    "report": "report",
    "compare": "compare",
    "crosscheck": "crosscheck",
    "diagnose": "diagnose",
    "plot": "plot",
    "doctor": "doctor",
    "card": "publish",
    "publish": "publish",
}


class _LazyGroup(click.Group):
    """Imports a subcommand's module when it is asked for, so that `robustzoo ls` answers at once."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        return getattr(importlib.import_module(f"robustzoo.cli.{_COMMANDS[name]}"), name)

    def invoke(self, ctx: click.Context) -> Any:
        """As click, but that Ctrl-C ends with the shells' 130: click's 1 is "refuted" here."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("robustzoo: interrupted", err=True)
            sys.exit(INTERRUPTED)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
# The deepspeed launcher passes it before all else; the environment says the same.
@click.option("--local_rank", hidden=True, expose_value=False)
@click.version_option(package_name="robustzoo", prog_name="robustzoo")
def group() -> None:
    """Robust vision models whose clean and AutoAttack numbers anyone can re-check."""


def main() -> None:
    """Run the command line; our own errors and the system's become one readable message and exit code 2."""
    try:
        group(prog_name="robustzoo")
    except Exception as error:
        # Errors raised by our own rooms are messages for the user, and so are a full disk or a file that may
        # not be written; anything else is a fault of ours and keeps its traceback.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("robustzoo"):
            raise
        click.echo(f"robustzoo: {error}", err=True)
        sys.exit(2)
