"""Text from files, shown to people: nothing in it moves a cursor, hides, reorders or begins a line."""

from __future__ import annotations

import unicodedata

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
