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


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
def test_the_number_of_a_closed_standard_error_is_not_given_to_the_next_file(tmp_path):
    code = (
        "import os; from robustzoo.unfailing_stream import keep_stderr_from_failing as keep; keep(); keep(); "
        f"stream = open({str(tmp_path / 'file')!r}, 'w'); os.write(2, b'noise'); print('lost', "
        "file=__import__('sys').stderr); stream.write('kept'); stream.close(); print('done')"
    )
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" 2>&-', sys.executable, code], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"done\n")
    assert (tmp_path / "file").read_text() == "kept"
