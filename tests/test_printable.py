"""Text from files as people see it: nothing moves the cursor, hides, reorders or begins a line."""

from __future__ import annotations

import unicodedata

import pytest

from robustzoo.printable import is_one_line, one_line, printable

C0 = [chr(i) for i in range(0x20)]
C1 = [chr(i) for i in range(0x7F, 0xA0)]
BIDI = list("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
ZERO_WIDTH = list("\u00ad\u180e\u200b\u200c\u200d\u2060\u2061\ufeff")
LINES = ["\u2028", "\u2029", "\x85"]
HIDDEN = [*C0, *C1, *BIDI, *ZERO_WIDTH, *LINES, "\U000e0041", "\udce9"]


@pytest.mark.parametrize("character", HIDDEN, ids=ascii)
def test_what_is_not_visible_is_written_out(character):
    shown = one_line(f"a{character}b")
    assert shown.isascii() and shown.isprintable() and shown.startswith("a\\") and shown.endswith("b")
    assert (printable(f"a{character}b") == f"a{character}b") is (character in "\n\t")
    assert is_one_line(character) is (character == "\udce9")


@pytest.mark.parametrize(
    "text", ["", "aa-standard, 8/255", "Größe 8×8", "数字　集", "a\xa0b", "é", "🙂", "ا"]
)
def test_visible_text_stays_as_it_is(text):
    assert one_line(text) == printable(text) == text and is_one_line(text)


def test_nothing_hidden_is_left_of_any_character():
    for category in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        text = "".join(c for c in map(chr, range(0x110000)) if unicodedata.category(c) == category)
        assert text and one_line(text).isascii()
