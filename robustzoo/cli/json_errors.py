"""Commands whose `--json` holds for errors too: one object on standard output, the exit code unchanged."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import click

BAD_INPUT = 2


class JsonErrors(click.Command):
    """A command with a flag `--json` (parameter `as_json`); without the flag, errors are text as ever."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        asked = "--json" in args  # click takes the arguments out of the list as it reads them
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if not asked:
                raise
            _report(error, error.format_message())

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            if not ctx.params.get("as_json"):
                raise
            _report(error, error.format_message())
        except Exception as error:
            # Errors of our own rooms are messages for the user; anything else is a fault of ours and keeps
            # its traceback.
            if not ctx.params.get("as_json") or not type(error).__module__.startswith("robustzoo"):
                raise
            _report(error, str(error))


def error_document(error: Exception, message: str) -> dict[str, Any]:
    """An error as JSON says it."""
    kind = type(error).__name__
    return {"schema": "robustzoo.error/1", "error": kind, "message": message, "exit_code": BAD_INPUT}


def _report(error: Exception, message: str) -> NoReturn:
    click.echo(json.dumps(error_document(error, message), indent=1))
    raise SystemExit(BAD_INPUT)
