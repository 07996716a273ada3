"""Commands whose `--json` holds for errors too: one object on standard output, the exit code unchanged."""

from __future__ import annotations

import json
import os
from typing import Any, NoReturn

import click

BAD_INPUT = 2
DEBUG = "ROBUSTZOO_DEBUG"


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
            report_error(error)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if not ctx.params.get("as_json") or passes_through(error):
                raise
            report_error(error)


def passes_through(error: Exception) -> bool:
    """Whether an error is not ours to tell: click ends with it, a reader of the standard output who went away
    wants to read nothing, and with ROBUSTZOO_DEBUG=1 what nobody foresaw keeps its traceback."""
    return (
        isinstance(error, (click.exceptions.Exit, click.Abort, BrokenPipeError))
        or (isinstance(error, click.ClickException) and not isinstance(error, click.UsageError))
        or (not _is_foreseen(error) and os.environ.get(DEBUG, "0") not in ("", "0"))
    )


def _is_foreseen(error: Exception) -> bool:
    """Those of click and of our own rooms are, and so are a full disk or a file that may not be written."""
    ours = type(error).__module__.startswith("robustzoo")
    return ours or isinstance(error, (OSError, click.UsageError))


def message_of(error: Exception) -> str:
    """What an error says; the system's names its file in words and the next step, and one that nobody foresaw
    says so in one line."""
    if isinstance(error, click.UsageError):
        return error.format_message()
    ours = type(error).__module__.startswith("robustzoo")
    if isinstance(error, OSError) and error.strerror is not None and not ours:
        where = "" if error.filename is None else f" {error.filename}"
        return f"the system refused{where}: {error.strerror}. Make it possible, or name another place"
    if isinstance(error, MemoryError):
        return "the memory of this machine does not suffice. Give smaller data, or a smaller --micro-batch"
    if not _is_foreseen(error):
        told = " ".join(str(error).split())[:300]
        return (
            f"something that nobody foresaw: {type(error).__name__}{f': {told}' if told else ''}. Please "
            f"report it with the traceback that {DEBUG}=1 in the environment shows"
        )
    return str(error)


def error_document(error: Exception) -> dict[str, Any]:
    """An error as JSON says it."""
    return {
        "schema": "robustzoo.error/1",
        "error": type(error).__name__,
        "message": message_of(error),
        "exit_code": BAD_INPUT,
    }


def report_error(error: Exception) -> NoReturn:
    """Print the error as JSON and leave."""
    click.echo(json.dumps(error_document(error), indent=1))
    raise SystemExit(BAD_INPUT)
