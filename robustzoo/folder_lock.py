"""A folder held by one process at a time, through a locked file `.lock` in it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows: nothing is held
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


class FolderInUse(RuntimeError):
    """Another process holds the folder."""


def hold(folder: Path) -> BinaryIO | None:
    """Make `folder` and hold it until what is returned is closed, forgotten, or the process ends.

    Returns:
        `folder/.lock`, open, and still the file of that name; None on Windows. On file systems that know no
        locks nothing is held.

    Raises:
        FolderInUse: another process holds it. OSError: nothing can be written there.
    """
    path = folder / NAME
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        if fcntl is None:
            return None
        try:
            file = path.open("ab")
        except FileNotFoundError:  # the holder before has just removed its empty folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise FolderInUse(f"another process holds {folder}") from error
        except OSError:
            return file  # a file system without locks
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the holder before removed the file after it was opened here
