"""The journal: what an evaluation has found so far, on disk, so that the next run goes on from there.

A file of frames that is only ever appended to: the key of the evaluation, then one frame a batch of
findings. A frame is its length, a checksum and its content; one that was cut short by a crash is dropped on
reading, and everything before it stands.
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
from robustzoo.evaluation.evidence_files import differing_terms
from robustzoo.evaluation.findings import Finding, decode, encode
from robustzoo.evaluation.guards import GuardError

_MAGIC = b"robustzoo journal 1\n"
_FRAME = struct.Struct("<II")  # length and CRC-32 of the content


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
        GuardError: the file is no journal, or that of another evaluation.
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
            self._read(path)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, findings: Sequence[Finding]) -> None:
        """Add a batch; it is on the disk when the call returns.

        Raises:
            GuardError: it cannot be written.
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
            raise GuardError(
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
        way_out = (
            "start over with restart=True, on the command line --restart (what it holds is then lost), or "
            "choose another folder (out=..., --out DIR)"
        )
        try:
            file = path.open("rb")
        except OSError as error:
            raise GuardError(f"{refused} it cannot be read ({error.strerror or error}): {way_out}") from error
        with file:
            start = file.read(len(_MAGIC))
            if start != _MAGIC:
                if _MAGIC.startswith(start):  # cut short within its first bytes: nothing was in it
                    return
                raise GuardError(f"{refused} it is no journal of this version: {way_out}")
            frame = _next_frame(file)
            if frame is None:
                return
            there = json.loads(frame)
            if problem := differing_terms(there, self._key):
                raise GuardError(f"{refused} it belongs to another evaluation: {problem}. {way_out}")
            self._end = file.tell()
            ends: dict[int, float] = {}
            while (frame := _next_frame(file)) is not None:
                findings, head = decode(frame)
                self.findings += findings
                ends[head["session"]] = head["elapsed"]
                self._end = file.tell()
        self.sessions, self.elapsed = len(ends), sum(ends.values())


def stored_key(path: Path) -> dict[str, Any] | None:
    """The key of the journal at `path`; None without a journal that can be read."""
    try:
        with path.open("rb") as file:
            frame = _next_frame(file) if file.read(len(_MAGIC)) == _MAGIC else None
    except OSError:
        return None
    return None if frame is None else json.loads(frame)


def _framed(content: bytes) -> bytes:
    return _FRAME.pack(len(content), zlib.crc32(content)) + content


def _next_frame(file: BinaryIO) -> bytes | None:
    """The content of the frame that begins here; None where there is no whole one."""
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    length, checksum = _FRAME.unpack(head)
    content = file.read(length)
    return content if len(content) == length and zlib.crc32(content) == checksum else None
