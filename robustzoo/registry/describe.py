"""A recipe for people: every value with its source, what was changed, the paper's result, how to train it."""

from __future__ import annotations

from functools import cache

from robustzoo.registry.composition import composed
from robustzoo.registry.fields import FIELDS, value_text
from robustzoo.registry.paper import PROTOCOL, published_cell, read_table
from robustzoo.registry.recipes import Recipe


def describe(recipe: Recipe) -> list[tuple[str, str, str]]:
    """`(field, value, source)` of every science field, in the order of `fields.FIELDS`."""
    return [(key, value_text(getattr(recipe, key)), recipe.sources[key]) for key in FIELDS]


def changes(recipe: Recipe) -> list[tuple[str, str, str]]:
    """`(field, value, value in the registry's recipe)` of every field that differs from it."""
    if recipe.name == recipe.base_name:
        return []
    was, _ = composed(recipe.base_name)
    return [
        (key, value, value_text(was[key]))
        for key, value, _ in describe(recipe)
        if getattr(recipe, key) != was[key]
    ]


def paper_result(recipe: Recipe) -> str:
    """What the paper reports for the recipe's registry name, in words."""
    cell = published_cell(recipe.base_name)
    if cell is None:
        return f"no result for {recipe.base_name}"
    of = "" if recipe.name == recipe.base_name else f" for {recipe.base_name}, which this recipe changes"
    return (
        f"{cell[0]} % clean, {cell[1]} % under {PROTOCOL}{of} (what it calls AutoAttack is AutoPGD + "
        "AutoDLR, which tries less than aa-standard)"
    )


def training_command(recipe: Recipe, name: str | None = None) -> str:
    """The command that trains a registry name; with `--data DIR` where the dataset needs files.

    Args:
        recipe: its recipe.
        name: what train.py is to be given, where that is not the recipe's name: PREFIX:NAME of a package.
    """
    data = " --data DIR" if recipe.images.needs_files else ""
    return f"deepspeed training/train.py {name or recipe.name}{data} --out runs/{recipe.name}"


@cache
def class_names(dataset: str) -> tuple[str, ...] | None:
    """What the classes of a dataset of the catalog are called, in the order of the labels; None where no
    table of ours says it (ImageNet's are timm's)."""
    return tuple(row["class"] for row in read_table("classes") if row["dataset"] == dataset) or None
