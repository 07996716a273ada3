"""Entries: a name, its recipe and, where `weights.lock.json` or a package pins them, its weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry.names import (
    IncompatibleName,
    UnknownName,
    all_names,
    check_compatible,
    did_you_mean,
    parse,
)
from robustzoo.registry.recipes import Recipe, recipe
from robustzoo.untrusted_files import read_text

LOCK_FILE = Path(__file__).with_name("weights.lock.json")
_LARGEST_LOCK = 10**7  # bytes; an entry takes about 300
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


def entry(name: str) -> Entry:
    """The entry of a registry name, or of a name that an installed package brings.

    Raises:
        UnknownName, IncompatibleName: the name has no recipe.
        RobustzooError: the lock file cannot be trusted.
    """
    from robustzoo.registry.packages import brought_entry, is_brought

    if is_brought(name):
        return brought_entry(name)
    found = recipe(_registry_name(name))
    return Entry(found.name, found, read_lock().get(found.name))


def find_entry(name: str) -> Entry | None:
    """The entry of a registry name; None where the text is none (a folder, for example)."""
    try:
        return entry(name)
    except (UnknownName, IncompatibleName):
        return None


def published() -> list[Entry]:
    """Every entry of the registry's own with weights, sorted by name."""
    return [Entry(name, recipe(name), weights) for name, weights in sorted(read_lock().items())]


def list_models(pattern: str | None = None, *, published_only: bool = False) -> list[str]:
    """Names of the zoo, sorted: all that have a recipe, or those with weights to load; packages' names too.

    Args:
        pattern: a shell pattern such as "*.digits_linf.*"; None: every name.

    Raises:
        TypeError: a pattern that is no text, or published_only that is no bool.
    """
    if pattern is not None and not isinstance(pattern, str):
        raise TypeError(f'pattern {pattern!r} is no text; expected a shell pattern such as "*.digits_linf.*"')
    if not isinstance(published_only, bool):
        raise TypeError(f"published_only {published_only!r} is no bool; expected True or False")
    from robustzoo.registry.packages import brought

    locked = read_lock()
    known = {*locked} if published_only else {*all_names(), *locked}
    known |= {name for name, item in brought().items() if item.weights or not published_only}
    names = sorted(known)
    return names if pattern is None else [name for name in names if fnmatchcase(name, pattern)]


def _registry_name(name: str) -> str:
    check_compatible(parse(name))
    return name


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
        return _registry_name(name), weights  # type: ignore[arg-type]  # parse refuses other types itself
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
