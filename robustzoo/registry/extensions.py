"""What a recipe names that no table has: networks of timm; losses, defences, optimizers of other packages.

`timm:NAME` is a network of timm, PACKAGE:NAME what an installed package brings by an entry point of one of
the `GROUPS`. Here only names are read: nothing is imported before `load_point`, which training alone calls,
for a recipe that names it. See docs/extending.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from robustzoo.errors import RobustzooError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TIMM = "timm:"
LARGEST_ARGUMENTS = 1000  # characters of JSON
GROUPS = {
    "loss": "robustzoo.losses",
    "defences": "robustzoo.defences",
    "optimizer": "robustzoo.optimizers",
}
KEY = r"[a-z0-9][a-z0-9._-]{0,98}:[A-Za-z0-9_][A-Za-z0-9_.-]{0,98}"  # PACKAGE:NAME
# Arguments of timm's create_model that would fetch or read files, or that a recipe says elsewhere.
REFUSED = (
    "cache_dir",
    "checkpoint_path",
    "num_classes",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
)


class Arguments(dict[str, Any]):
    """Keyword arguments as JSON has them. Never changed, so that a recipe that holds some has a hash."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True))

    @classmethod
    def read(cls, value: object) -> Arguments:
        """From an object, or its text in JSON. Raises: TypeError for another value, or one REFUSED."""
        if isinstance(value, str):
            value = json.loads(value)
        if not isinstance(value, dict) or not is_plain(value) or any(name in REFUSED for name in value):
            raise TypeError
        return cls(json.loads(json.dumps(value)))


def is_plain(value: object) -> bool:
    """Whether it is an object that JSON keeps as it is, of at most LARGEST_ARGUMENTS."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        return False
    try:
        return len(json.dumps(value, allow_nan=False)) <= LARGEST_ARGUMENTS
    except (TypeError, ValueError, RecursionError):
        return False


def is_outside(value: object) -> bool:
    """Whether the value of a field names what no table of the catalog has."""
    return isinstance(value, str) and ":" in value


def of_packages(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(field, PACKAGE:NAME) of everything in a recipe's values that other packages bring."""
    named = [("loss", values["loss"]), *(("defences", key) for key in values["defences"])]
    return [(field, key) for field, key in (*named, ("optimizer", values["optimizer"])) if is_outside(key)]


def find_point(field: str, key: str) -> EntryPoint:
    """The entry point of PACKAGE:NAME among those for a recipe's field. Imports nothing.

    Raises:
        RobustzooError: no such package is installed, or it brings no such name; with those that there are.
    """
    from importlib.metadata import PackageNotFoundError, distribution  # slower than the rest of the room

    package, _, name = key.partition(":")
    group = GROUPS[field]
    try:
        found = distribution(package).entry_points.select(group=group)
    except PackageNotFoundError as error:
        raise RobustzooError(
            f"{field} {key}: the package {package!r} is not installed, whose entry points {group} bring it: "
            f"install it, or take one of the catalog"
        ) from error
    points = {point.name: point for point in found}
    if name not in points:
        raise RobustzooError(
            f"{field} {key}: the package {package} has no {name!r} among its entry points {group}; it has "
            f"{', '.join(sorted(points)) or 'none'}"
        )
    return points[name]


def load_point(field: str, key: str) -> Any:
    """The object of PACKAGE:NAME: the package's code runs.

    Raises:
        RobustzooError: as `find_point`, or its module cannot be imported.
    """
    point = find_point(field, key)
    try:
        return point.load()
    except Exception as error:  # code of others: anything
        raise RobustzooError(
            f"{field} {key}: {point.value} cannot be loaded ({type(error).__name__}: {error}); mend the "
            "package"
        ) from error


def versions(values: Mapping[str, Any]) -> dict[str, str]:
    """Package -> installed version, of those that a recipe's values name. Raises: as `find_point`."""
    from importlib.metadata import version

    for field, key in of_packages(values):
        find_point(field, key)
    packages = {key.partition(":")[0] for _, key in of_packages(values)}
    return {package: version(package) for package in sorted(packages)}
