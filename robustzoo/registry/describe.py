"""A recipe for people: every field with its value and its source."""

from __future__ import annotations

from robustzoo.registry.fields import FIELDS, write_value
from robustzoo.registry.recipes import Recipe


def describe(recipe: Recipe) -> list[tuple[str, str, str]]:
    """`(field, value, source)` of every science field, in the order of `fields.FIELDS`."""
    return [(key, _text(write_value(getattr(recipe, key))), recipe.sources[key]) for key in FIELDS]


def _text(value: object) -> str:
    """The value as `--set KEY=VALUE` takes it."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    if isinstance(value, list):
        return ",".join(_text(item) for item in value)
    return str(value)
