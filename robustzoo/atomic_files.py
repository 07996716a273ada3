"""Files and folders written whole or not at all, and on the disk when the call returns."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def write_bytes(path: str | Path, content: bytes) -> None:
    """`write_by` of the content."""
    write_by(path, lambda temporary: temporary.write_bytes(content))


def write_by(path: str | Path, write: Callable[[Path], object]) -> None:
    """Replace the file by the one that `write` makes at the path it is given, or leave the old one: no reader
    ever sees half of it.

    Missing parent folders are made. An old file's permissions are kept; a new file gets the usual ones.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")
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


def replace_folder(staging: Path, folder: Path) -> None:
    """Move `staging` to `folder`, in place of what is there; both have the same parent.

    One rename for a new or empty folder; for another two, and the old one comes back if the second fails.
    """
    if not folder.exists() or not any(folder.iterdir()):
        staging.replace(folder)
    else:
        old = staging.with_name(staging.name + ".old")
        folder.replace(old)
        try:
            staging.replace(folder)
        except OSError:
            old.replace(folder)
            raise
        import shutil  # only here: reading the registry stays quick

        shutil.rmtree(old)
    sync(folder.parent)


def nearest_existing(path: Path) -> Path:
    """The path itself where there is something, else the nearest one above it that exists: what decides
    whether a folder can be made there."""
    place = path.absolute()
    return next(above for above in (place, *place.parents) if above.exists())


def why_unwritable(folder: Path) -> str | None:
    """Why no file can be made in this folder, nor where it would be made; None where one can. Tries it, since
    some file systems say that they are writable and are not, and leaves nothing behind."""
    import tempfile  # only here, as above

    try:
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
