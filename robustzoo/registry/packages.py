"""Entries that other installed packages bring, through the entry-point group `robustzoo.zoo`.

Such an entry point names a package, in which a file `zoo.json` lists models: see docs/zoo_entries.md. Only
data is read; no code of the package runs. What cannot be used is left out and named in `problems`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, DEFENCES, LOSSES
from robustzoo.registry.entries import Entry, read_weights
from robustzoo.registry.names import UnknownName, did_you_mean
from robustzoo.registry.pinned import pin_problem
from robustzoo.registry.recipes import recipe
from robustzoo.untrusted_files import read_text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "robustzoo.zoo"
SCHEMA = "robustzoo.zoo/1"
LIST = "zoo.json"
_PREFIX = re.compile(r"[a-z][a-z0-9_-]{1,63}", re.ASCII)  # one letter would be a drive of Windows
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_SOURCES = ("package", "hub")
# Other ways to name a model, and the zoo's own words: a name must not look like the registry's.
_RESERVED = (
    *("local-dir", "hf-hub", "timm", "file", "http", "https", "robustzoo"),
    *(key for table in (ARCHITECTURES, DATASETS, LOSSES, DEFENCES) for key in table),
)
_LARGEST_LIST = 10**7  # bytes; a model takes about 300


def _reserved(prefix: str) -> bool:
    """Whether a prefix is one of the zoo's own words, however its parts are joined: vit-micro2 too."""
    return re.sub("[_-]", "", prefix) in {re.sub("[_-]", "", word) for word in _RESERVED}


def is_brought(name: object) -> bool:
    """Whether a text has the form of a name that a package brings, PREFIX:NAME."""
    prefix, colon, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    return bool(colon and not _reserved(prefix) and _PREFIX.fullmatch(prefix) and _NAME.fullmatch(rest))


def brought() -> dict[str, Entry]:
    """Name -> entry of every usable model that an installed package brings, sorted by name."""
    return dict(_installed(tuple(sys.path))[0])


def problems() -> tuple[str, ...]:
    """What was left out of `brought`, one sentence each: the package, the model, and what is wrong."""
    return _installed(tuple(sys.path))[1]


def brought_entry(name: str) -> Entry:
    """The entry of a name PREFIX:NAME.

    Raises:
        UnknownName: no installed package brings it, or it was left out; the message says why.
    """
    found = brought()
    if name in found:
        return found[name]
    why = [text for text in problems() if name.partition(":")[0] in text]
    raise UnknownName(
        f"{name[:120]!r} is brought by no installed package.{did_you_mean(name, found)}"
        + (f" Left out: {'; '.join(why)}" if why else f" Packages bring: {', '.join(found) or 'nothing'}.")
    )


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> tuple[dict[str, Entry], tuple[str, ...]]:
    found: dict[str, Entry] = {}
    wrong: list[str] = []
    for point in _entry_points(wrong):
        where = f"{point.name} ({point.dist.name} {point.dist.version})" if point.dist else point.name
        try:
            _check_prefix(point, found)
            folder = _folder(point.value)
            rows = _rows(folder)
        except (ValueError, OSError, RecursionError) as error:
            wrong.append(f"{where}: {error}")
            continue
        for row in rows:
            try:
                item = _entry(point.name, row, folder, where)
                if item.name in found:
                    raise RobustzooError(f"{item.name} is there twice; keep one")
                found[item.name] = item
            except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
                wrong.append(f"{where}: {error}")
    return dict(sorted(found.items())), tuple(wrong)


def _entry_points(wrong: list[str]) -> list[EntryPoint]:
    """The group's entry points, in a fixed order; a distribution with unreadable ones is added to `wrong`."""
    from importlib.metadata import distributions  # only here: slower than the rest of the room

    points: dict[tuple[str, str], EntryPoint] = {}
    for distribution in distributions():  # in the order of sys.path: of two versions the first is in force
        try:
            text = distribution.read_text("entry_points.txt") or ""
            if GROUP not in text:
                continue
            for point in distribution.entry_points.select(group=GROUP):
                points.setdefault((distribution.name, point.name), point)
        except Exception as error:  # metadata of others, written by anything
            wrong.append(f"the entry points of {getattr(distribution, '_path', distribution)}: {error!r}")
    return sorted(points.values(), key=lambda point: (point.name, point.value))


def _check_prefix(point: EntryPoint, found: Mapping[str, Entry]) -> None:
    if not _PREFIX.fullmatch(point.name):
        raise RobustzooError(
            f"the entry point's name {point.name!r} cannot be a prefix: expected at least two lower-case "
            "letters, digits, _ and -"
        )
    if _reserved(point.name):
        raise RobustzooError(
            f"the entry point's name {point.name!r} cannot be a prefix: it reads like one of the zoo's own "
            f"or a place ({', '.join(_RESERVED)}); take the package's name"
        )
    if any(name.startswith(f"{point.name}:") for name in found):
        raise RobustzooError(f"another package already brings names with the prefix {point.name}")


def _folder(package: str) -> Path:
    """The folder of a package; the search for a top-level package imports nothing."""
    first, *rest = package.split(".")
    spec = find_spec(first) if all(part.isidentifier() for part in (first, *rest)) else None
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise RobustzooError(f"{package!r} is no installed package: the entry point must name one")
    for place in places:
        folder = Path(place).joinpath(*rest)
        if (folder / LIST).is_file():
            return folder
    raise RobustzooError(f"the package {package} has no file {LIST}")


def _rows(folder: Path) -> list[Any]:
    try:
        document = json.loads(read_text(folder / LIST, _LARGEST_LIST))
    except (ValueError, RecursionError) as error:
        raise RobustzooError(f"{folder / LIST}: {error}") from error
    if (
        not isinstance(document, dict)
        or set(document) != {"schema", "models"}
        or not isinstance(document["models"], list)
    ):
        raise RobustzooError(f'{folder / LIST}: expected {{"schema": "{SCHEMA}", "models": [...]}}')
    if document["schema"] != SCHEMA:
        raise RobustzooError(
            f"{folder / LIST}: schema {document['schema']!r} is not {SCHEMA!r}: another version of robustzoo?"
        )
    return document["models"]


def _entry(prefix: str, row: object, folder: Path, where: str) -> Entry:
    if not isinstance(row, Mapping):
        raise RobustzooError(f"expected an object for each model, not {row!r}")
    for key in row:
        if key not in ("name", "recipe", "weights"):
            raise RobustzooError(
                f"unknown key {key!r}: a model has name, recipe and, where published, weights"
            )
    name = f"{prefix}:{row.get('name')}"
    if not isinstance(row.get("name"), str) or not is_brought(name):
        raise RobustzooError(f"name {row.get('name')!r} is not allowed: letters, digits and . _ + - only")
    try:
        made = recipe(_recipe_place(row.get("recipe"), folder))
        weights = None
        if row.get("weights") is not None:
            weights = read_weights(row["weights"], "weights", _SOURCES, root=folder)
    except (ValueError, KeyError, TypeError) as error:
        raise RobustzooError(f"{name}: {error}") from error
    if weights is not None and weights.folder is not None:
        problem = pin_problem(made.name, weights, weights.folder)
        if problem is not None:
            raise RobustzooError(f"{name}: {problem}")
    return Entry(name, made, weights, brought_by=where)


def _recipe_place(text: object, folder: Path) -> str | Path:
    """A registry name, or a recipe file inside the package."""
    if not isinstance(text, str) or ":" in text or "\\" in text:
        raise RobustzooError(f"recipe {text!r} is not a registry name or a relative path of a .json file")
    if not text.endswith(".json"):
        return text
    path = (folder / text).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise RobustzooError(f"recipe {text!r} leaves the package")
    return path
