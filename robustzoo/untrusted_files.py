"""Files that anyone may have written: opened only where they are files, read only where they are small."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from robustzoo.errors import RobustzooError

# What `stat` finds where a file was expected, in words.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_AGAIN = "take the original again"
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_HEADER = 8 * 2**20  # bytes; ViT-L/16 needs 30 kB
_DTYPES = {
    "F64": "torch.float64",
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "I64": "torch.int64",  # batch norm's counter of batches
    "I32": "torch.int32",
    "BOOL": "torch.bool",
}


class UnfitFile(OSError):
    """What lies at a path is no file, or too large: an OSError, as when the system refuses to read it."""

    def __init__(self, path: str | Path, problem: str, number: int = errno.EINVAL) -> None:
        super().__init__(number, problem, str(path))


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The content of a regular file of at most `limit` bytes, links followed.

    Kind and size are known before anything is read: a pipe would block the reader, a device never end.

    Raises:
        UnfitFile: no regular file, a larger one, or a name that no file can have.
        OSError: the system refuses it (FileNotFoundError where there is nothing).
    """
    try:
        _check(path, Path(path).stat(), limit)
        # Should it have become a pipe meanwhile, opening does not wait for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError as error:  # a NUL in the name
        raise UnfitFile(path, f"no file can have this name ({error})") from error
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        _check(path, found, limit)
        content = stream.read(found.st_size + 1)  # makes room for as much at once, so not for the limit
        while len(content) <= limit and (more := stream.read(2**20)):  # it grows
            content += more
    if len(content) > limit:
        raise UnfitFile(path, _too_large(len(content), limit), errno.EFBIG)
    return content


def read_text(path: str | Path, limit: int, encoding: str = "utf-8") -> str:
    """`read_bytes` as text, line ends as `\\n`. Raises: UnicodeDecodeError too."""
    text = read_bytes(path, limit).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_object(path: str | Path, limit: int) -> dict[str, Any]:
    """`read_bytes` as a JSON object. Raises: RobustzooError too, for what is none."""
    try:
        document = json.loads(read_bytes(path, limit))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, endless numbers, too many brackets
        raise RobustzooError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RobustzooError(f"{path} holds a {type(document).__name__}; expected a JSON object")
    return document


def refuse_pointer(path: Path) -> None:
    """Raises RobustzooError for what Git LFS leaves in the place of a file that it has not fetched."""
    with path.open("rb") as stream:
        start = stream.read(len(_POINTER))
    if start == _POINTER:
        raise RobustzooError(
            f"{path} is a pointer of Git LFS, not the weights: run `git lfs install` and `git lfs pull` in "
            "its repository, or download the file itself"
        )


def _refuse_page(path: Path) -> None:
    with path.open("rb") as stream:
        start = stream.read(64).lstrip().lower()
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise RobustzooError(
            f"{path} is a page of a web site, not weights: the download ended at a login or an error. Open "
            f"its address in a browser to see why, then {_AGAIN}"
        )


def safetensors_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensor name -> (dtype, shape) of a safetensors file whose size is what its header describes.

    Raises:
        RobustzooError: truncated or too long, or of another format (a page of a web site, a pickle, a pointer
            of Git LFS), which is never read further than that.
    """
    refuse_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        text = stream.read(length) if length <= min(_LARGEST_HEADER, size - 8) else None
    if text is None:
        _refuse_page(path)
        raise RobustzooError(
            f"{path} is no complete safetensors file: {size} bytes, but its first 8 bytes announce a "
            f"header of {length} bytes. It is truncated or of another format; {_AGAIN}"
        )
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        header = {
            name: (_DTYPES.get(entry["dtype"], entry["dtype"]), tuple(entry["shape"]))
            for name, entry in entries.items()
        }
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        complete = 8 + length + end
        if size != complete:
            raise RobustzooError(
                f"{path} is {'truncated' if size < complete else 'too long'}: {size} bytes, but its header "
                f"describes {complete} bytes; {_AGAIN}"
            )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, RobustzooError):
            raise
        raise RobustzooError(f"{path} has an unreadable safetensors header ({error}); {_AGAIN}") from error
    return header


def _check(path: str | Path, found: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise UnfitFile(path, f"it is {kind}, and a file was expected", number)
    if found.st_size > limit:
        raise UnfitFile(path, _too_large(found.st_size, limit), errno.EFBIG)


def _too_large(size: int, limit: int) -> str:
    return f"it has {size:,} bytes or more, and at most {limit:,} were expected"
