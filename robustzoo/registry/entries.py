"""Entries: a name, its recipe and, where `weights.lock.json` or a package pins them, its weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry.names import (
    IncompatibleName,
    UnknownName,
    check_compatible,
    did_you_mean,
    parse,
    unpublished_name,
)
from robustzoo.registry.recipes import Recipe
from robustzoo.untrusted_files import read_object, read_text

LOCK_FILE = Path(__file__).with_name("weights.lock.json")
_LARGEST_LOCK = 10**7  # bytes; an entry takes about 300
CONFIG = "config.json"
_LARGEST_CONFIG = 2**20  # bytes
SOURCES = ("bundled", "zoo", "hub")
_PACKAGE = Path(__file__).parents[1]
_COMMON = ("source", "sha256", "bytes")
_PLACE = {"bundled": ("path",), "zoo": ("path",), "package": ("path",), "hub": ("repo", "commit")}
_PATTERNS = {
    "sha256": (re.compile(r"[0-9a-f]{64}"), "64 lower-case hex digits"),
    "commit": (re.compile(r"[0-9a-f]{40}"), "40 lower-case hex digits, never a branch or a tag"),
    "repo": (re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*", re.ASCII), "OWNER/NAME"),
}


@dataclass(frozen=True)
class Weights:
    """Pinned weights of one model: where they are, and the hash and size of `model.safetensors`.

    Attributes:
        source: "bundled" (inside the package), "zoo" (a folder of the repository), "hub" (published) or
            "package" (inside another package that brings the entry).
        path: model folder, relative to `robustzoo/bundled` or to the repository's root, absolute for package;
            None for hub.
        repo, commit: Hub repository and its 40-hex commit; None for the others.
    """

    source: str
    path: str | None
    repo: str | None
    commit: str | None
    sha256: str
    bytes: int

    @property
    def folder(self) -> Path | None:
        """The model folder on this machine, whether or not it is there; None for hub weights."""
        if self.path is None:
            return None
        if self.source == "package":
            return Path(self.path)
        root = _PACKAGE / "bundled" if self.source == "bundled" else _PACKAGE.parent
        return root.joinpath(*PurePosixPath(self.path).parts)


@dataclass(frozen=True)
class Entry:
    """What the zoo knows under a name. Without weights it can be trained but not loaded.

    Attributes:
        name: a registry name, or PREFIX:NAME for an entry of another package. Its recipe then has a name of
            its own, that of the registry recipe it is or was changed from.
        brought_by: the package that brings it, in words; None for the registry's own.
    """

    name: str
    recipe: Recipe
    weights: Weights | None
    brought_by: str | None = None


def read_lock(path: str | os.PathLike[str] | None = None) -> dict[str, Weights]:
    """Name -> weights of a lock file (default: the package's), strictly.

    Raises:
        RobustzooError: missing or malformed file, unknown or repeated name, ill-formed hash, commit or path.
    """
    file = LOCK_FILE if path is None else Path(path)
    try:
        document = json.loads(read_text(file, _LARGEST_LOCK))
    except (OSError, ValueError, RecursionError) as error:  # no UTF-8, no JSON, endless numbers
        raise RobustzooError(
            f"cannot read the lock file {file}: {error}; restore it from the repository"
        ) from error
    if not isinstance(document, dict) or set(document) != {"schema", "models"} or document["schema"] != 1:
        raise RobustzooError(
            f'{file}: expected {{"schema": 1, "models": [...]}}; restore it from the repository'
        )
    if not isinstance(document["models"], list):
        raise RobustzooError(f"{file}: models must be a list; restore it from the repository")
    locked: dict[str, Weights] = {}
    for position, row in enumerate(document["models"]):
        name, weights = _read_row(row, f"{file}: model {position}")
        if name in locked:
            raise RobustzooError(f"{file}: {name!r} is there twice; keep one")
        locked[name] = weights
    return locked


def write_lock(entries: Iterable[Entry], path: str | os.PathLike[str] | None = None) -> None:
    """Write a lock file (default: the package's) with these entries, sorted by name, all or nothing.

    Raises:
        RobustzooError: an entry without weights, a repeated name, or weights that `read_lock` would refuse.
    """
    file = LOCK_FILE if path is None else Path(path)
    rows: dict[str, dict[str, Any]] = {}
    for item in entries:
        if item.weights is None:
            raise RobustzooError(
                f"{item.name!r} has no weights to lock; give them with `robustzoo publish FOLDER`"
            )
        if item.name in rows:
            raise RobustzooError(f"{item.name!r} is given twice; keep one")
        row = {"name": item.name} | {k: v for k, v in vars(item.weights).items() if v is not None}
        _read_row(row, item.name)
        rows[item.name] = row
    text = json.dumps({"schema": 1, "models": [rows[name] for name in sorted(rows)]}, indent=1) + "\n"
    atomic_files.write_text(file, text)


def _read_row(row: object, where: str) -> tuple[str, Weights]:
    if not isinstance(row, Mapping):
        raise RobustzooError(f"{where}: expected an object, not {row!r}")
    name = row.get("name")
    where = f"{where} ({name})"
    weights = read_weights({key: value for key, value in row.items() if key != "name"}, where)
    try:
        check_compatible(parse(name))  # type: ignore[arg-type]  # refuses other types itself
        return str(name), weights
    except (UnknownName, IncompatibleName) as error:
        raise RobustzooError(f"{where}: {error}") from error


def read_weights(
    row: object, where: str, sources: tuple[str, ...] = SOURCES, root: Path | None = None
) -> Weights:
    """Weights as a lock file or a package's list states them, strictly.

    Args:
        row: their JSON object.
        where: for the messages.
        sources: the allowed sources.
        root: folder of the package that brings them, to which a path is relative.

    Raises:
        RobustzooError: an unknown or missing key, or an ill-formed hash, commit, path or size.
    """
    if not isinstance(row, Mapping):
        raise RobustzooError(f"{where}: expected an object, not {row!r}")
    source = row.get("source")
    if source not in sources:
        raise RobustzooError(f"{where}: source {source!r} must be one of {', '.join(sources)}")
    wanted = (*_COMMON, *_PLACE[source])
    for key in row:
        if key not in wanted:
            raise RobustzooError(
                f"{where}: unknown key {key!r} for source {source}.{did_you_mean(str(key), wanted)}"
            )
    missing = [key for key in wanted if key not in row]
    if missing:
        raise RobustzooError(f"{where}: source {source} needs {', '.join(missing)}")
    for key, (pattern, form) in _PATTERNS.items():
        if key in row and not (isinstance(row[key], str) and pattern.fullmatch(row[key])):
            raise RobustzooError(f"{where}: {key} {row[key]!r} must be {form}")
    if isinstance(row["bytes"], bool) or not isinstance(row["bytes"], int) or row["bytes"] <= 0:
        raise RobustzooError(f"{where}: bytes {row['bytes']!r} must be a whole number above 0")
    if "path" in row and not _inside(row["path"]):
        raise RobustzooError(
            f"{where}: path {row['path']!r} must be relative, with forward slashes and no '..'"
        )
    path = row.get("path")
    if root is not None and path is not None:
        path = str(root.joinpath(*PurePosixPath(path).parts))
    return Weights(source, path, row.get("repo"), row.get("commit"), sha256=row["sha256"], bytes=row["bytes"])


def _inside(path: object) -> bool:
    if not isinstance(path, str) or not path or "\\" in path or ":" in path:
        return False
    pure = PurePosixPath(path)
    return not pure.is_absolute() and bool(pure.parts) and ".." not in pure.parts


def read_configuration(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """config.json of a model folder, ours or timm's, unchecked. Raises: OSError; RobustzooError: no JSON."""
    return read_object(Path(folder, CONFIG), _LARGEST_CONFIG)


def pin_problem(recipe_name: str, pin: Weights, folder: Path) -> str | None:
    """What in a folder contradicts the entry that pins it: the size of model.safetensors, or the recipe that
    config.json names; None where nothing does.

    The hash is not compared here: that takes as long as reading the weights, and a list must be quick.

    Args:
        recipe_name, pin: of the entry.
        folder: where they are on this machine.
    """
    weights = folder / "model.safetensors"
    try:
        size = weights.stat().st_size
        held = read_configuration(folder)["robustzoo"]["name"]
    except OSError as error:
        return f"{error.filename or folder} cannot be read ({error.strerror or error})"
    except (RobustzooError, KeyError, TypeError):
        return f"{folder / CONFIG} is no configuration of a robustzoo model"
    if held != recipe_name:
        return f"{folder} is pinned as {recipe_name} but holds {held}"
    if size != pin.bytes:
        return f"{weights} is pinned with {pin.bytes} bytes but has {size}"
    return None


def public_name(name: str, sha256: str) -> str:
    """The name that weights may go by: a locked registry name stands for the published weights alone."""
    locked = read_lock().get(name)
    return name if locked is None or locked.sha256 == sha256 else unpublished_name(name, sha256)
