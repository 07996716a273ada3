"""Messages for people that no closed terminal and no full disk can turn into an error."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO


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
