"""UnfailingStream: what cannot be written is lost, and nothing else happens."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from robustzoo.evaluation.progress import Reporter
from robustzoo.unfailing_stream import UnfailingStream

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
from robustzoo.unfailing_stream import keep_messages_from_failing as keep
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
