"""Files that anyone may have written: refused by kind and size before a byte is read."""

from __future__ import annotations

import os
import socket

import pytest

from robustzoo.untrusted_files import UnfitFile, read_bytes, read_text


def pipe(path):
    os.mkfifo(path)


def listening(path):
    socket.socket(socket.AF_UNIX).bind(str(path))


def huge(path):
    with path.open("wb") as file:
        file.truncate(3 * 10**9)  # a hole: no disk is filled, and reading would still take 3 GB of memory


KINDS = {
    "folder": (lambda path: path.mkdir(), "a folder"),
    "pipe": (pipe, "a named pipe"),
    "socket": (listening, "a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a device"),
    "size": (huge, "3,000,000,000 bytes"),
}


@pytest.mark.skipif(os.name == "nt", reason="Windows has other kinds of files")
@pytest.mark.parametrize("kind", KINDS)
def test_kind_and_size_are_looked_at_before_reading(tmp_path, monkeypatch, kind):
    make, words = KINDS[kind]
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    path = tmp_path / "x"
    make(path.relative_to(tmp_path) if kind == "socket" else path)
    monkeypatch.setattr(os, "open", lambda *args, **more: pytest.fail("it was opened"))
    with pytest.raises(UnfitFile, match=words):
        read_bytes(path, 1000)


def test_a_file_that_grows_is_read_to_the_limit(tmp_path, monkeypatch):
    path = tmp_path / "x"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    found = path.stat()
    path.write_bytes(b"123456")
    monkeypatch.setattr(os, "fstat", lambda handle: found)
    monkeypatch.setattr(type(path), "stat", lambda self, **more: found)
    with pytest.raises(UnfitFile, match="at most 5"):
        read_bytes(path, 5)


def test_links_are_followed_and_lines_end_alike(tmp_path):
    (tmp_path / "x").write_bytes("é\r\nb\rc".encode())
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert read_text(tmp_path / "link", 100) == "é\nb\nc"


@pytest.mark.parametrize(
    ("name", "error"), [("nothing", FileNotFoundError), ("a\0b", UnfitFile), ("x" * 5000, OSError)]
)
def test_names_that_no_file_has(tmp_path, name, error):
    with pytest.raises(error):
        read_bytes(tmp_path / name, 10)
