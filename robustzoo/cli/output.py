"""What commands print: text in which nothing of a file moves a cursor, errors as text or as JSON, and a
standard output that holds the command's own result alone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from robustzoo.errors import RobustzooError
from robustzoo.streams import one_line, printable

BAD_INPUT = 2
DEBUG = "ROBUSTZOO_DEBUG"
_OUT, _ERR = 1, 2


def say(text: str = "", *, err: bool = False) -> None:
    """Print text and a line end: on the standard output, or for messages on the standard error.

    What is no visible character is written out (`robustzoo.streams`). Values of files within the text were
    made `one_line` by whoever put them there.
    """
    click.echo(printable(text), err=err)


def say_error(message: str) -> None:
    """Print an error. Further lines are set in, so that none of them looks like the outcome of a command,
    whatever name or value of a file stands in it."""
    say("robustzoo: " + message.replace("\n", "\n  "), err=True)


def table(rows: list[list[str]], widest: int | None = None) -> str:
    """Rows of cells in columns; a cell of more than `widest` letters moves its own row only."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if widest is not None:
        widths = [min(width, widest) for width in widths]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


@contextlib.contextmanager
def own_output(wanted: bool) -> Iterator[None]:
    """Within the block everything that is printed, by a user's model, by a library, or by processes started
    meanwhile, goes to the standard error: a program that reads JSON would stumble over it.

    Args:
        wanted: False changes nothing.
    """
    if not wanted:
        yield
        return
    sys.stdout.flush()
    with contextlib.ExitStack() as restored:
        with contextlib.suppress(OSError):  # a process without a standard output has nothing to keep clean
            kept = os.dup(_OUT)
            restored.callback(os.close, kept)
            restored.callback(os.dup2, kept, _OUT)
            os.dup2(_ERR, _OUT)
        restored.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield


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
    return _is_ours(error) or isinstance(error, (OSError, click.UsageError))


def _is_ours(error: Exception) -> bool:
    """Whether the error is a message for a user."""
    # The module's name: while there are rooms whose errors have no common base.
    return isinstance(error, RobustzooError) or type(error).__module__.startswith("robustzoo")


def message_of(error: Exception) -> str:
    """What an error says; the system's names its file in words and the next step, and one that nobody foresaw
    says so in one line."""
    if isinstance(error, click.UsageError):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror is not None and not _is_ours(error):
        where = "" if error.filename is None else f" {error.filename}"
        return f"the system refused{where}: {error.strerror}. Make it possible, or name another place"
    # torch has a class of its own for a GPU's memory, and a bare RuntimeError for the machine's.
    if isinstance(error, MemoryError) or any(
        word in repr(error) for word in ("OutOfMemory", "allocate memory")
    ):
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
    say(json.dumps(error_document(error), indent=1))
    raise SystemExit(BAD_INPUT)
