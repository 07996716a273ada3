"""The author's notes may say anything, and look like nothing of the card."""

from __future__ import annotations

import pytest

from robustzoo.cards.notes import notes_problem

CARD = "# name\n\n## Results\n\n| clean | none | 400 / 500 |\n\n## Load\n"
HEAD = "## Notes by the author\n\n"

ALIKE = [
    ("## Results", "repeat the heading"),
    ("# name", "repeat the heading"),
    ("###### results ######", "repeat the heading"),
    ("> ## Results", "repeat the heading"),
    ("1. > - ## Results", "repeat the heading"),
    ("## **Results**", "repeat the heading"),
    ("## [Results](https://example.org)", "repeat the heading"),
    ("## R&#101;sults", "repeat the heading"),
    ("## Re\u200bsults", "repeat the heading"),
    ("## Ｒesults", "repeat the heading"),
    ("##\tVerify", "repeat the heading"),
    ("Results\n=======", "underline"),
    ("Results\n---", "underline"),
    ("> Results\n> ---", "underline"),
    ("Some\nResults\n  ===  ", "underline"),
    ("<h2>Results</h2>", "HTML"),
    ("<table><tr><td>500 / 500", "HTML"),
    ("a <b\nstyle='x'>500</b>", "HTML"),
    ("<!-- hidden", "HTML"),
    ("| robust | 500 / 500 |", "table row"),
    ("robust | 500 / 500", "table row"),
    ("| robust | 500/500 |", "table row"),
    ("| robust | 500 of 500 |", "table row"),
    ("| robust | ５００ / ５００ |", "table row"),
    ("| robust | ٥٠٠/500 |", "table row"),
    ("| robust | 500 &#47; 500 |", "table row"),
    ("| robust | 500\u2044500 |", "table row"),
]


@pytest.mark.parametrize(("notes", "words"), ALIKE, ids=lambda value: ascii(value)[:40])
def test_what_a_reader_could_take_for_the_card_is_refused(notes, words):
    assert words in (notes_problem(CARD, HEAD + notes) or "")


@pytest.mark.parametrize(
    "notes",
    [
        "",
        "It is 99 % robust: 500 of 500 images in my own count, 500 / 500.",
        "### My results\n\nSee <https://example.org/a>. For x < y, and 3<4.\n\n---\n\n* * *",
        "| epsilon | clean |\n|---|---|\n| 8/255 | 45.2 % |\n| 16/255 | 1 of 3 runs |",
        "- item\n- item\n\n```\nrobustzoo verify FOLDER  # Results\n```",
    ],
)
def test_anything_else_may_stand_there(notes):
    assert notes_problem(CARD, HEAD + notes) is None


@pytest.mark.parametrize("text", ["#", "# #", "[", "> ", "1", "<", "| 1 / ", "=\n", "&", "\u0300"])
def test_long_notes_are_read_in_a_moment(text):
    """In time that is quadratic in a line's length, these take minutes."""
    notes_problem(CARD, HEAD + "|" + text * (500_000 // len(text)))
    notes_problem(CARD, HEAD + "# " + text * (500_000 // len(text)))
