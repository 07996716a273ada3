"""Text from files as people see it does no harm, and what cannot be written is lost without an error."""

from __future__ import annotations

import io
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from robustzoo.evaluation.progress import Reporter
from robustzoo.streams import UnfailingStream, is_one_line, one_line, printable

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


# ---- streams that never fail -------------------------------------------------------------------------------

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed()], ids=["none", "closed"])
def test_a_stream_that_is_not_there(stream):
    wrapped = UnfailingStream(stream)
    assert wrapped.write("text") == 4 and not wrapped.isatty()
    wrapped.flush()
    reporter = Reporter(True, stream)
    with reporter:
        reporter.say("a note")
        reporter.warn("a warning")
        reporter.update("stage", 1, 2)


@full
def test_a_full_disk():
    stream = Path("/dev/full").open("w")  # noqa: SIM115 - to close it is what fails
    print("text", file=UnfailingStream(stream), flush=True)
    with pytest.raises(OSError, match="No space"):
        stream.close()


def test_a_stream_that_works_gets_everything():
    stream = io.StringIO()
    print("text", file=UnfailingStream(stream), flush=True)
    assert stream.getvalue() == "text\n" and UnfailingStream(stream).getvalue() == "text\n"


CODE = """
import os, sys
from robustzoo.streams import keep_messages_from_failing as keep
keep(); keep()
stream = open(sys.argv[1], "w")
os.write(int(sys.argv[2]), b"noise")
print("said", file=sys.stderr)
print("done", flush=True)
stream.write("kept")
stream.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("number", [1, 2])
def test_the_number_of_a_closed_stream_is_not_given_to_the_next_file(tmp_path, number):
    file = tmp_path / "file"
    command = ["sh", "-c", f'"$0" -c "$@" {number}>&-', sys.executable, CODE, str(file), str(number)]
    done = subprocess.run(command, capture_output=True)
    others = {1: (b"", b"said\n"), 2: (b"done\n", b"")}
    assert (done.returncode, done.stdout, done.stderr) == (0, *others[number])
    assert file.read_text() == "kept"
