"""What is said to people: text from files that does no harm, and streams that never fail.

Nothing in such a text moves a cursor, hides, reorders or begins a line, and no closed terminal and no full
disk turns a message into an error.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

# Control characters (C0, DEL, C1), format characters (bidirectional and zero-width ones among them), halves
# of surrogate pairs, line and paragraph separators: what a terminal or a reader would not show as itself.
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    """The text with everything that is no visible character written out, as `\\x1b`; line ends and tabs stay.

    For what is printed as a whole. A value of a file within it must be `one_line`, or its line ends stay too.
    """
    return _written_out(text, "\n\t")


def one_line(text: str) -> str:
    """`printable` with line ends and tabs written out too: a value of a file can begin no line."""
    return _written_out(text, "")


def is_one_line(text: str) -> bool:
    """Whether `one_line` leaves the text as it is, surrogates aside: names of files hold bytes that are no
    text, and JSON keeps them."""
    return text.isprintable() or not any(
        unicodedata.category(c) in _HIDDEN and not "\ud800" <= c <= "\udfff" for c in text
    )


def _written_out(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept or unicodedata.category(c) not in _HIDDEN else _escape(c)
        for c in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def duration(seconds: float) -> str:
    """`seconds` as people say it: under 1 s, 4.2 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


class UnfailingStream:
    """A text stream whose `write` and `flush` never raise: what cannot be written is lost.

    For what is said beside a result. Hours of work must not end because nobody listens any more.

    Args:
        stream: where to write; None, as `sys.stderr` is in a process without one, loses everything.
    """

    encoding, errors = "utf-8", "backslashreplace"  # of None

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: it is closed
            if self._stream is not None:
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            if self._stream is not None:
                self._stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal; False once it cannot be asked."""
        with suppress(OSError, ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def keep_messages_from_failing(*, stdout: bool = False) -> None:
    """Put an UnfailingStream in place of `sys.stderr`; for the start of a command.

    A process that was started without a standard output or error gets a null device there: the next file that
    is opened would take its number, and what libraries write to that number would go into it.

    Args:
        stdout: that no result is printed there, so that it may be lost too where it is full.
    """
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            _occupy(number)
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - to the end
    for name in ("stderr", *(["stdout"] if stdout else [])):
        if not isinstance(getattr(sys, name), UnfailingStream):
            setattr(sys, name, UnfailingStream(getattr(sys, name)))


def _occupy(number: int) -> None:
    """Open the null device under the number of a stream, unless something else is open there."""
    try:
        os.fstat(number)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
