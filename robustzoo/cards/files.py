"""Writing a file so that a reader never sees half of it."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomic(path: str | Path, content: bytes) -> None:
    """Write `content` under a temporary name in the same folder, flush it to disk, rename it to `path`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
