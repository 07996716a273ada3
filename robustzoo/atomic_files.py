"""Files and folders written whole or not at all, and on the disk when the call returns; a folder that one
process holds at a time."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from robustzoo.errors import RobustzooError

try:
    import fcntl
except ImportError:  # Windows: nothing is held
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"  # the file in a folder that its holder has locked
_ABANDONED = 3600.0  # seconds without a change, after which what has a temporary name is a dead process's
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of Linux


def write_bytes(path: str | Path, content: bytes) -> None:
    """`write_by` of the content."""
    write_by(path, lambda temporary: temporary.write_bytes(content))


def write_by(path: str | Path, write: Callable[[Path], object]) -> None:
    """Replace the file by the one that `write` makes at the path it is given, or leave the old one: no reader
    ever sees half of it.

    Missing parent folders are made. An old file's permissions are kept; a new file gets the usual ones. What
    a killed process left under a temporary name of this file is removed.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    temporary = _beside(path)
    try:
        temporary.touch()  # with what the umask gives: some libraries leave a private file, mode 0600
        mode = (path if path.exists() else temporary).stat().st_mode & 0o777
        write(temporary)
        temporary.chmod(mode)
        sync(temporary)
        temporary.replace(path)
    except OSError as error:
        # Of a full disk it has no name, and nobody gave the temporary one.
        if error.errno is not None and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # a folder that cannot be looked into has just said so
            temporary.unlink()
    sync(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """`write_bytes` of the text as UTF-8."""
    write_bytes(path, text.encode("utf-8"))


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, to be filled and handed to `replace_folder`; it is gone after the block.
    What a killed process left there is put back or removed."""
    import shutil  # only here: reading the registry stays quick

    recover_folder(folder)
    _sweep(folder)
    staging = _beside(folder)
    staging.mkdir(parents=True)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def replace_folder(staging: Path, folder: Path) -> None:
    """Move `staging` to `folder`, in place of what is there; both have the same parent.

    At every moment there is a folder, the old or the new one, where the system can exchange two. Elsewhere
    the old one is renamed first: it comes back if the second rename fails, or with `recover_folder` if the
    process is killed between the two.
    """
    import shutil  # only here, as above

    if not folder.exists() or not any(folder.iterdir()):
        staging.replace(folder)
    else:
        old = staging.with_name(f"{staging.name.removesuffix('.tmp')}.old")
        if _exchange(staging, folder):
            staging.replace(old)
        else:
            folder.replace(old)
            try:
                staging.replace(folder)
            except OSError:
                old.replace(folder)
                raise
        shutil.rmtree(old, ignore_errors=True)  # what stays of it is swept another time
    sync(folder.parent)


def recover_folder(folder: Path) -> None:
    """Put back the folder that a process took away to replace it, where it was killed before it could."""
    if os.path.lexists(folder):
        return
    with suppress(OSError):  # no such parent, or nothing can be renamed there: there is no folder, then
        left = [path for path in _left_beside(folder) if path.suffix == ".old" and path.is_dir()]
        if not left:
            return
        time.sleep(0.2)  # a living process is between its two renames for far less
        if not os.path.lexists(folder):
            max(left, key=lambda path: path.stat().st_mtime).rename(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; False where the system or the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):  # not Linux, or one of long ago
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _beside(path: Path) -> Path:
    """A temporary name that nothing has, in the same folder."""
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")


def _left_beside(path: Path) -> list[Path]:
    """What has a temporary name of `path`."""
    form = re.compile(rf"\.{re.escape(path.name)}\.[0-9a-f]{{8}}\.(?:tmp|old)")
    return [entry for entry in path.parent.iterdir() if form.fullmatch(entry.name)]


def _sweep(path: Path) -> None:
    """Remove what a process that was killed left under temporary names of `path`."""
    import shutil  # only here, as above

    with suppress(OSError):  # what cannot be removed stays
        for left in _left_beside(path):
            if time.time() - left.lstat().st_mtime < _ABANDONED:
                continue  # a living process may be writing it
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def nearest_existing(path: Path) -> Path:
    """The path itself where there is something, else the nearest one above it that exists: what decides
    whether a folder can be made there."""
    place = path.absolute()
    return next(above for above in (place, *place.parents) if above.exists())


def why_unwritable(folder: Path) -> str | None:
    """Why no file can be made in this folder, nor where it would be made; None where one can. Tries it, since
    some file systems say that they are writable and are not, and leaves nothing behind."""
    import tempfile  # only here, as above

    if "\0" in str(folder):
        return "no path holds a null byte"
    try:
        if folder.is_symlink() and not folder.exists():
            return f"{folder} is a link that leads nowhere"
        place = nearest_existing(folder)
        if not place.is_dir():
            return f"{place} is a file"
        with tempfile.TemporaryDirectory(prefix=".robustzoo-", dir=place):
            return None
    except OSError as error:
        return f"nothing can be written in {folder} ({error.strerror or error})"


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FolderInUse(RobustzooError):
    """Another process holds the folder."""


def hold(folder: Path) -> BinaryIO | None:
    """Make `folder` and hold it until what is returned is closed, forgotten, or the process ends.

    Returns:
        `folder/.lock`, open, and still the file of that name; None on Windows. On file systems that know no
        locks nothing is held.

    Raises:
        FolderInUse: another process holds it. OSError: nothing can be written there.
    """
    path = folder / LOCK
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
