"""The author's notes behind a card: anything, but nothing that a reader could take for the generated part."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator

from robustzoo.cards.render import SECTIONS
from robustzoo.streams import one_line

# A tag, a comment or an instruction of HTML; <https://...> is a link of Markdown.
_HTML = re.compile(r"<(?!https?://)[A-Za-z/!?][^\n]*")
_ADDRESS = re.compile(r"<([^\s<>@]{1,100}@[^\s<>@]{1,100})>")
NOTES = "## Notes by the author"
_NOTES = re.compile(rf"^{NOTES}[ \t]*$", re.MULTILINE | re.IGNORECASE)
_HEADING = re.compile(r"#{1,6}[ \t]+")
_UNDERLINE = re.compile("=+|-+")
_CONTAINERS = re.compile(r"(?:[ \t]*(?:>|[-*+](?=[ \t])|\d{1,9}[.)](?=[ \t])))*[ \t]*")
_MARKUP = re.compile(r"!?\[(?P<text>[^\]]*)\](?:\([^)]*\)|\[[^\]]*\])?|[*_`~\\]")
_COUNT = re.compile(r"(?<!\d)\d+ +/ +\d+")
_ALIKE = {0x2044: "/", 0x2215: "/", 0x2223: "|"}  # characters that look like these
_LONGEST_TITLE = 1000  # characters that are looked at
_OF_THE_CARD = re.compile(r"\d+ / (\d+)")


def split_notes(text: str) -> tuple[str, str]:
    """The generated part of a card and the notes by its author, from their heading on ("" without)."""
    found = _NOTES.search(text)
    return (text, "") if found is None else (text[: found.start()], text[found.start() :])


def with_notes(text: str, notes: str) -> str:
    """A card with the notes of an older one behind it."""
    return f"{text}\n{notes}" if notes else text


def notes_problem(generated: str, notes: str) -> str | None:
    """What in the notes a reader could take for the card, in words; None for nothing.

    That is a heading of the card, however it is written, a table row with a count of its images, and HTML,
    which can draw both.

    Args:
        generated: the card without its notes.
        notes: from their heading on.
    """
    lines = notes.splitlines()[1:]
    problem = _html_problem("\n".join(lines))
    if problem is not None:
        return f"the author's notes have {problem}"
    own = {_plain(title) for title in (*_headings(generated.splitlines()), *SECTIONS)} - {""}
    for title in _headings(lines):
        if _plain(title) in own:
            return f"the author's notes repeat the heading {_shown(title)} of the generated card: rename it"
    for above, line in zip(["", *lines], lines, strict=False):
        if _UNDERLINE.fullmatch(_inside(line).rstrip()) and _inside(above).strip():
            return (
                f"the author's notes underline {_shown(above)}, which makes a heading of it: write headings "
                "with ### before them, and an empty line before a rule"
            )
    sizes = "|".join(sorted(set(_OF_THE_CARD.findall(generated)))) or "(?!)"
    of_the_card = re.compile(rf"(?<!\d)\d+ *(?:/|of|out of) *(?:{sizes})(?!\d)")
    for line in lines:
        text = _normal(line)
        if "|" in text and (_COUNT.search(text) or of_the_card.search(text)):
            return (
                f"the author's notes have the table row {_shown(line)}, which looks like a result of the "
                "card: give numbers that the evidence does not prove in sentences"
            )
    return None


def said_problem(text: str) -> str | None:
    """What makes a text no author, contact or citation, in words; None for nothing."""
    if not _normal(text).strip():
        return "is an empty text: say it, or leave it out"
    if next(_headings(text.splitlines()), None) is not None:
        return f"begins a heading, {_shown(text)}: write a sentence or a name, without `#` before it"
    problem = _html_problem(text)
    return None if problem is None else f"has {problem}"


def _html_problem(text: str) -> str | None:
    address = _ADDRESS.search(text)
    if address is not None:
        return (
            f"the address {_shown(address.group())} in angle brackets, which is HTML too: give it with "
            f"--contact and without them, or write &lt;{one_line(address[1][:100])}&gt;"
        )
    found = _HTML.search(text)
    if found is not None:
        return (
            f"the HTML {_shown(found.group())}, which can look like a result of the card: write Markdown "
            "alone, and `<` with a space behind it or as &lt;"
        )
    return None


def _headings(lines: list[str]) -> Iterator[str]:
    """Titles of `#` headings, in quotes and lists too."""
    for line in lines:
        inside = _inside(line)
        match = _HEADING.match(inside)
        if match is not None:
            yield inside[match.end() :].strip(" \t#")[:_LONGEST_TITLE]


def _inside(line: str) -> str:
    """A line without the marks of the quotes and lists that it is in."""
    return line[_CONTAINERS.match(line).end() :]  # type: ignore[union-attr]  # matches the empty text too


def _plain(title: str) -> str:
    """What a heading reads like: without emphasis, links, case and spaces."""
    text = _MARKUP.sub(lambda match: match["text"] or "", _normal(title))
    return "".join(text.split()).casefold()


def _normal(text: str) -> str:
    """Written as a reader sees it: entities, other forms of letters and digits, nothing invisible."""
    text = unicodedata.normalize("NFKC", html.unescape(text)).translate(_ALIKE)
    return "".join(str(unicodedata.digit(c, c)) for c in text if unicodedata.category(c) != "Cf")


def _shown(text: str) -> str:
    return repr(one_line(text.strip()[:100]))
