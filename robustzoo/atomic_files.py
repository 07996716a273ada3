"""Files and folders written whole or not at all, and on the disk when the call returns."""

from __future__ import annotations

import os
from collections.abc import Callable
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
        write(temporary)
        sync(temporary)
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except OSError as error:
        if error.errno is not None and error.filename is None:  # of a full disk, for example
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
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


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
