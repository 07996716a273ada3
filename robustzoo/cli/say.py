"""The one way in which commands print: nothing of a file moves a cursor, no message begins as a result."""

from __future__ import annotations

import click

from robustzoo.streams import printable


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
