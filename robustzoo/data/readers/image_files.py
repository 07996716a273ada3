"""The image files of a folder, and what else lies there."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from robustzoo.data.decoder import suffixes
from robustzoo.data.image_dataset import DataError

# What systems leave in folders of images; hidden files are left out too, such as macOS' "._x.png".
_OF_SYSTEMS = {"thumbs.db", "desktop.ini", "__macosx", "@eadir", "$recycle.bin", "lost+found"}


def hidden(name: str) -> bool:
    """Whether a file or folder of this name is none of the user's."""
    return name.startswith(".") or name.lower() in _OF_SYSTEMS


def suffix_of(name: str) -> str:
    """The end of a file's name, in lower case with its dot; empty without."""
    stem, dot, end = name.rpartition(".")
    return dot + end.lower() if stem else ""


def images_under(folder: Path, left_out: Counter[str]) -> list[str]:
    """Image files in a folder and the folders in it, as paths relative to it, in a fixed order.

    left_out: counts, by kind, what is neither hidden nor an image. Links are followed; raises DataError where
    one leads back to a folder that it lies in.
    """
    return _images(folder, "", left_out, set())


def _images(folder: Path, prefix: str, left_out: Counter[str], above: set[tuple[int, int]]) -> list[str]:
    place = folder.stat()
    here = (place.st_dev, place.st_ino)
    if here in above and place.st_ino:
        raise DataError(f"{folder} is a link to a folder that it lies in; remove the link")
    files, inside = [], []
    for entry in os.scandir(folder):
        if hidden(entry.name):
            continue
        if entry.is_dir():
            inside.append(entry.name)
        elif (end := suffix_of(entry.name)) not in suffixes():
            left_out[end or "without a suffix"] += 1
        elif entry.is_file() or not Path(entry.path).exists():  # a link to nothing fails when it is read
            files.append(prefix + entry.name)
        else:
            left_out["no regular file"] += 1
    files.sort()
    for name in sorted(inside):
        files += _images(folder / name, f"{prefix}{name}/", left_out, above | {here})
    return files


def left_out_text(where: Path, left_out: Counter[str], outside: int) -> str:
    """What to say of files that are not read; empty where there are none.

    outside: images in the folder itself, beside the class folders.
    """
    parts = []
    if left_out:
        kinds = ", ".join(f"{count} {printable(kind)}" for kind, count in left_out.most_common(5))
        more = f" and {len(left_out) - 5} more kinds" if len(left_out) > 5 else ""
        parts.append(f"{sum(left_out.values())} files are no images that Pillow reads here ({kinds}{more})")
    if outside:
        parts.append(f"{outside} images lie outside the class folders")
    return f"left out of {printable(str(where))}: {'; '.join(parts)}" if parts else ""


def printable(name: str) -> str:
    """A name without what moves a terminal's cursor or cannot be written."""
    return "".join(c if c.isprintable() else "?" for c in name)
