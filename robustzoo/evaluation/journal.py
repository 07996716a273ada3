"""The journal: what an evaluation has found so far, on disk, so that the next run goes on from there.

A file of frames that is only ever appended to: the key of the evaluation, then one frame a batch of
findings. A frame is its length, a checksum and its content. Reading ends at the first that is not whole, be
it cut short, zeros (the usual trace of a power cut) or anything else, and everything before it stands.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.ledger import Finding, decode, encode
from robustzoo.evaluation.terms import differing_terms

_MAGIC = b"robustzoo journal 1\n"
_FRAME = struct.Struct("<II")  # length and CRC-32 of the content
_LONGEST_KEY = 2**26  # bytes; it lists the images
# What the decoder raises of bytes that it did not encode.
_FOREIGN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error)
WAY_OUT = (
    "start over with restart=True, on the command line --restart (what it holds is then lost), or choose "
    "another folder (out=..., --out DIR)"
)


class Journal:
    """Reads the journal at `path`, or begins a new one, which is written with its first findings.

    Args:
        path: None keeps nothing.
        key: which evaluation this is, as JSON.
        restart: discard the one that is there.

    Attributes:
        findings: what earlier sessions found, in their order. sessions: how many there were. elapsed: seconds
            that they took together.

    Raises:
        RobustzooError: the file is no journal, or that of another evaluation.
    """

    def __init__(self, path: Path | None, key: dict[str, Any], *, restart: bool = False) -> None:
        self.path, self._key = path, json.loads(json.dumps(key))
        self.findings: list[Finding] = []
        self.sessions, self.elapsed = 0, 0.0
        self._start = time.monotonic()
        self._stream: BinaryIO | None = None
        self._end = 0
        self._appended = False
        if path is not None and restart:
            path.unlink(missing_ok=True)
        elif path is not None and path.exists():
            try:
                self._read(path)
            except OSError as error:
                raise RobustzooError(
                    f"{path} would be continued, but it cannot be read ({error.strerror or error}): {WAY_OUT}"
                ) from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, findings: Sequence[Finding]) -> None:
        """Add a batch; it is on the disk when the call returns.

        Raises:
            RobustzooError: it cannot be written.
        """
        if self.path is None or not findings:
            return
        seconds = round(time.monotonic() - self._start, 3)
        content = _framed(encode(findings, {"session": self.sessions, "elapsed": seconds}))
        try:
            if self._stream is None:
                self._stream = self._open(self.path)
            self._stream.write(content)
            self._stream.flush()
            os.fsync(self._stream.fileno())
        except OSError as error:
            self._let_go(self.path)
            raise RobustzooError(
                f"the journal {self.path} cannot be written ({error.strerror or error}); "
                + (
                    "what it holds stays valid: make room there and run the same command again, and it goes "
                    "on from the journal"
                    if self.keeps
                    else "nothing was kept: make room there, or choose another folder (out=..., --out DIR), "
                    "and run the same command again"
                )
            ) from error
        self._appended = True

    @property
    def keeps(self) -> bool:
        """Whether the file holds findings, from which the same evaluation goes on."""
        return self.sessions > 0 or self._appended

    def _let_go(self, path: Path) -> None:
        """Close after a failed write, whose buffer fails once more; a file without findings is not left."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            self._stream = None
        if not self.keeps:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file; it stays."""
        if self._stream is not None:
            self._stream.close()

    def remove(self) -> None:
        """Delete the file: what it held is in the Evidence."""
        self.close()
        if self.path is not None and self.path.exists():
            self.path.unlink()
            atomic_files.sync(self.path.parent)

    def _open(self, path: Path) -> BinaryIO:
        """The file, to be written behind its last whole frame; a new one has the key in it."""
        if self._end:
            stream = path.open("r+b")
            stream.seek(self._end)
            stream.truncate()
            return stream
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = path.open("wb")
        stream.write(_MAGIC + _framed(json.dumps(self._key).encode("ascii")))
        atomic_files.sync(path.parent)
        return stream

    def _read(self, path: Path) -> None:
        refused = f"{path} would be continued, but"
        if not path.is_file():  # a pipe would hold the reader for ever
            raise RobustzooError(f"{refused} it is no file: {WAY_OUT}")
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(len(_MAGIC))
            if start != _MAGIC:
                if _MAGIC.startswith(start.rstrip(b"\0")) and not _any_byte(file):
                    return  # cut short within its first bytes: nothing was in it
                raise RobustzooError(f"{refused} it is no journal of this version: {WAY_OUT}")
            frame = _next_frame(file, size)
            if frame is None:
                if _torn_key(file):
                    return
                raise RobustzooError(f"{refused} its beginning is damaged, which says whose it is: {WAY_OUT}")
            there = _key_in(frame)
            if there is None:
                raise RobustzooError(f"{refused} it does not say whose it is: {WAY_OUT}")
            if problem := differing_terms(there, self._key):
                raise RobustzooError(f"{refused} it belongs to another evaluation: {problem}. {WAY_OUT}")
            self._end = file.tell()
            ends: dict[int, float] = {}
            while (frame := _next_frame(file, size)) is not None:
                try:
                    findings, head = decode(frame)
                    session, elapsed = int(head["session"]), float(head["elapsed"])
                except _FOREIGN:  # a whole frame that we did not write: the end of what we did
                    break
                self.findings += findings
                ends[session] = elapsed
                self._end = file.tell()
        self.sessions, self.elapsed = len(ends), sum(ends.values())


def stored_key(path: Path) -> dict[str, Any] | None:
    """The key of the journal at `path`; None without a journal that can be read."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            known = file.read(len(_MAGIC)) == _MAGIC
            frame = _next_frame(file, path.stat().st_size) if known else None
    except OSError:
        return None
    return None if frame is None else _key_in(frame)


def _key_in(frame: bytes) -> dict[str, Any] | None:
    try:
        key = json.loads(frame)
    except (ValueError, RecursionError):
        return None
    return key if isinstance(key, dict) else None


def _torn_key(file: BinaryIO) -> bool:
    """Whether the file was cut short within its key, which is text and goes to the disk before all else; if
    not, the key is damaged, and findings may follow it."""
    file.seek(len(_MAGIC))
    head, text = file.read(_FRAME.size), b""
    if len(head) == _FRAME.size:
        (length, _) = _FRAME.unpack(head)
        if not length:  # zeros where the frame should be
            return not _any_byte(file)
        text = file.read(min(length, _LONGEST_KEY)).rstrip(b"\0")
        if len(text) == length or b"\0" in text:
            return False
    return not _any_byte(file)


def _any_byte(file: BinaryIO) -> bool:
    """Whether anything but zeros is left to read."""
    return any(block.strip(b"\0") for block in iter(lambda: file.read(2**20), b""))


def _framed(content: bytes) -> bytes:
    return _FRAME.pack(len(content), zlib.crc32(content)) + content


def _next_frame(file: BinaryIO, size: int) -> bytes | None:
    """The content of the frame that begins here, of a file of `size` bytes; None where none is whole."""
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(head)
    if not 0 < length <= size - file.tell():  # eight zero bytes are no frame, though their checksum is right
        return None
    content = file.read(length)
    return content if len(content) == length and zlib.crc32(content) == checksum else None
