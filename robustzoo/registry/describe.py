"""A recipe for people: every value with its source, what was changed, the paper's result, how to train it."""

from __future__ import annotations

from functools import cache
from typing import Any

from robustzoo.registry.catalog import ARCHITECTURES, OWN_DATA_MARK
from robustzoo.registry.composition import composed
from robustzoo.registry.extensions import TIMM, is_outside
from robustzoo.registry.fields import FIELDS, value_text
from robustzoo.registry.paper import PROTOCOL, published_cell, read_table
from robustzoo.registry.recipes import Recipe

# What a value means where the field's own words say it of others only.
_MEANINGS = {
    ("lr_schedule", "linear"): "linear decay to 0 after warm-up: with it one cycle",
    ("lr_schedule", "multistep"): "divided by 10 at lr_milestones after warm-up",
    ("optimizer", "adamw"): "optimizer; weight decay is decoupled: rate * 2 gamma (or l2_reg) * theta a step",
    ("attack_start", "label"): "LIET: what a grey image shows of the label, masked by noise",
    ("trh_form", "log"): "2 gamma N log(1 + trace / (2 gamma N)) for N weights: the bound's own form",
    ("trh_form", "relative"): "relative flatness: the trace times the square norm of the head",
    ("augmentation", "shift"): "flip, and crop of the image with 4 pixels of zeros around it",
}
_BY_A_PACKAGE = "what an installed package brings: PACKAGE:NAME"
_OUTSIDE = {
    "architecture": "network of timm, and nothing of the catalog's row but its training",
    "loss": _BY_A_PACKAGE,
    "defences": f"modifiers of the loss, and {_BY_A_PACKAGE}",
    "optimizer": _BY_A_PACKAGE,
}


def describe(recipe: Recipe) -> list[tuple[str, str, str]]:
    """`(field, value, source)` of every science field, in the order of `fields.FIELDS`."""
    return [(key, value_text(getattr(recipe, key)), recipe.sources[key]) for key in FIELDS]


def network_title(architecture: str) -> str:
    """What a recipe's network is called: by the catalog, or by timm."""
    row = ARCHITECTURES.get(architecture)
    return architecture.removeprefix(TIMM) if row is None else row.title


def meaning(key: str, typed: Any) -> str:
    """What a field means at this value, in words for a card."""
    if key in _OUTSIDE and any(map(is_outside, typed if isinstance(typed, tuple) else (typed,))):
        return _OUTSIDE[key]
    if key in ("dataset", "training_data") and typed.startswith(f"own{OWN_DATA_MARK}"):
        return "images of one's own, as the dataset.json beside them names them"
    return _MEANINGS.get((key, typed), FIELDS[key].about)


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
