"""A recipe for people: every field with its value and its source; the command that trains it."""

from __future__ import annotations

from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.fields import FIELDS, write_value
from robustzoo.registry.recipes import Recipe


def describe(recipe: Recipe) -> list[tuple[str, str, str]]:
    """`(field, value, source)` of every science field, in the order of `fields.FIELDS`."""
    return [(key, _text(write_value(getattr(recipe, key))), recipe.sources[key]) for key in FIELDS]


def training_command(recipe: Recipe) -> str:
    """The command that trains a registry name; with `--data DIR` where the dataset needs files."""
    data = " --data DIR" if DATASETS[recipe.dataset].needs_files else ""
    return f"deepspeed training/train.py {recipe.name}{data} --out runs/{recipe.name}"


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
