"""From a name to its recipe or entry. Here alone it is known that packages bring names of their own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path

from robustzoo.errors import RobustzooError
from robustzoo.registry.entries import Entry, read_lock
from robustzoo.registry.names import IncompatibleName, UnknownName, all_names
from robustzoo.registry.packages import brought, brought_entry, is_brought
from robustzoo.registry.recipe_files import from_file
from robustzoo.registry.recipes import Recipe, changed, registered


def recipe(name: str | PathLike[str], overrides: Mapping[str, object] | None = None) -> Recipe:
    """The recipe of a registry name, of a name that a package brings, or of a JSON file, with changes.

    Args:
        name: registry name, PREFIX:NAME of a package (see `packages.py`), or the path of a `.json` file:
            `base_name` and the values that differ from its recipe, for which a document of `to_json` will do.
        overrides: field -> value, typed or command-line text ("none": no value); `epochs` sets total_steps.

    Returns:
        The registry's recipe where nothing differs; otherwise one whose name ends in `+` and its digest.

    Raises:
        UnknownName, IncompatibleName: `name`, or the file's base_name, has no recipe.
        RobustzooError: an unknown key or a value that is not allowed, in the file or in `overrides`.
    """
    base = _unchanged(name)
    return changed(base.base_name, overrides, "set by hand", base=base) if overrides else base


def _unchanged(name: str | PathLike[str]) -> Recipe:
    if isinstance(name, PathLike) or (isinstance(name, str) and name.endswith(".json")):
        return from_file(Path(name))
    if is_brought(name):
        return brought_entry(name).recipe
    if isinstance(name, str) and os.path.isfile(name):
        raise RobustzooError(f"{name!r} is a file, and a recipe file's name ends in .json: rename it")
    return registered(name)


def entry(name: str) -> Entry:
    """The entry of a registry name, or of a name that an installed package brings.

    Raises:
        UnknownName, IncompatibleName: the name has no recipe.
        RobustzooError: the lock file cannot be trusted.
    """
    if is_brought(name):
        return brought_entry(name)
    return Entry(name, registered(name), read_lock().get(name))


def find_entry(name: str) -> Entry | None:
    """The entry of a registry name; None where the text is none (a folder, for example)."""
    try:
        return entry(name)
    except (UnknownName, IncompatibleName):
        return None


def published() -> list[Entry]:
    """Every entry of the registry's own with weights, sorted by name."""
    return [Entry(name, registered(name), weights) for name, weights in sorted(read_lock().items())]


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
    locked = read_lock()
    known = {*locked} if published_only else {*all_names(), *locked}
    known |= {name for name, item in brought().items() if item.weights or not published_only}
    names = sorted(known)
    return names if pattern is None else [name for name in names if fnmatchcase(name, pattern)]
