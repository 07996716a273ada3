"""config.json of a model folder: timm's own layout, and our block under the root key "robustzoo"."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from robustzoo.cards.imported import Imported
from robustzoo.errors import RobustzooError
from robustzoo.models.architectures import build_for, network_of
from robustzoo.models.imported_networks import timm_part
from robustzoo.models.preprocessing import preprocessing_of
from robustzoo.models.weights import require_file
from robustzoo.registry import Recipe
from robustzoo.registry.entries import read_configuration
from robustzoo.untrusted_files import UnfitFile

WEIGHTS = "model.safetensors"
SCHEMA = 1
REFERENCE_SEED = 0
UNLICENSED = (
    "unknown"  # what the Hub calls weights whose author has not said; `robustzoo card --licence` does
)
_EXAMPLE = "apache-2.0"
_SPDX = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_FREE_TEXT = ("license", "description", "origin_url", "notes", "tag", "paper_name", "paper_ids")


@dataclass(frozen=True)
class FolderConfig:
    """What config.json says: the recipe (of weights that others trained: where they come from), the licence
    of the weights (an SPDX identifier in the Hub's lower case), and the logits (2, K) of the reference
    inputs of the seed. skeleton: the network that it describes, on the meta device; None of imported
    weights."""

    recipe: Recipe | Imported
    skeleton: nn.Module | None
    license: str
    reference_seed: int
    reference_logits: list[list[float]]


def timm_config(recipe: Recipe, network: nn.Module) -> dict[str, Any]:
    """The part that timm reads. `network` may be on the meta device.

    An unknown key inside `pretrained_cfg` is a TypeError in timm, and its mean and std are per channel.
    """
    channels, size = recipe.channels, recipe.image_size
    pool = getattr(network, "global_pool", None)
    name, arguments = network_of(recipe)
    stated = network.pretrained_cfg
    return {
        "architecture": name,
        "num_classes": recipe.num_classes,
        "num_features": network.num_features,
        # A convolutional network of timm has a module there, and its default is its own.
        **({"global_pool": pool} if isinstance(pool, str) else {}),
        "model_args": arguments | {"num_classes": recipe.num_classes},
        "pretrained_cfg": {
            "custom_load": False,
            "input_size": [channels, size, size],
            # Where it is true timm hands the size to the network: convolutions have no argument for it.
            "fixed_input_size": bool(stated.get("fixed_input_size")),
            **preprocessing_of(recipe),
            "mean": _per_channel(recipe.mean, channels),
            "std": _per_channel(recipe.std, channels),
            "num_classes": recipe.num_classes,
            "pool_size": None,
            "first_conv": stated.get("first_conv"),
            "classifier": stated.get("classifier"),
            "license": UNLICENSED,
        },
    }


def render_config(recipe: Recipe, network: nn.Module, reference_logits: list[list[float]]) -> str:
    """Text of config.json, the same for the same arguments."""
    ours = {
        "schema": SCHEMA,
        "name": recipe.name,
        "recipe": recipe.to_json(),
        "recipe_digest": recipe.digest,
        "reference": {"seed": REFERENCE_SEED, "logits": reference_logits},
    }
    return json.dumps(timm_config(recipe, network) | {"robustzoo": ours}, indent=2, allow_nan=False) + "\n"


def read_config(path: Path) -> FolderConfig:
    """Parse and check config.json: nothing in it is executed, and every value is compared with the recipe's.

    Raises:
        RobustzooError: absent, no JSON, no robustzoo block, a bad value, an unknown architecture, or timm's
            part and the recipe do not describe the same network and normalisation.
    """
    inner = path.parent / "model"
    if not (path.parent / WEIGHTS).exists() and (inner / WEIGHTS).is_file():
        raise RobustzooError(f"{path.parent} is the folder of a training, not of a model: name {inner}")
    require_file(path)
    try:
        document = read_configuration(path.parent)
    except UnfitFile as error:
        raise RobustzooError(f"{path} is no model configuration: {error.strerror}") from error
    ours = document.get("robustzoo")
    if not isinstance(ours, dict):
        raise RobustzooError(
            f'{path} has no "robustzoo" block, so this is no robustzoo model folder; '
            "load other timm folders with timm.create_model and wrap them in robustzoo.models.PixelModel"
        )
    if ours.get("schema") != SCHEMA:
        raise RobustzooError(
            f"{path}: schema {ours.get('schema')!r}; this version reads {SCHEMA}. Update robustzoo"
        )
    if "imported" in ours:
        return _read_imported(path, document, ours)
    try:
        recipe = Recipe.from_json(ours.get("recipe"))
    except (ValueError, KeyError, TypeError) as error:
        raise RobustzooError(f"{path}: the recipe is invalid: {error}") from error
    if json.dumps(recipe.to_json(), sort_keys=True) != json.dumps(ours["recipe"], sort_keys=True):
        raise RobustzooError(f"{path}: robustzoo.recipe is not as a recipe is written (numbers as text?)")
    for key, found, expected in (
        ("name", ours.get("name"), recipe.name),
        ("recipe_digest", ours.get("recipe_digest"), recipe.digest),
    ):
        if found != expected:
            raise RobustzooError(f"{path}: robustzoo.{key} is {found!r}, but its recipe gives {expected!r}")
    try:
        skeleton = build_for(recipe, device="meta")
    except RobustzooError as error:
        raise RobustzooError(f"{path}: {error}") from error
    _compare(path, document, timm_config(recipe, skeleton))
    seed, logits = _reference(path, ours.get("reference"), recipe.num_classes)
    return FolderConfig(recipe, skeleton, _license(path, document["pretrained_cfg"]), seed, logits)


def render_imported(imported: Imported, network: nn.Module, reference_logits: list[list[float]]) -> str:
    """As `render_config`, of imported weights."""
    ours = {
        "schema": SCHEMA,
        "name": imported.name,
        "imported": imported.to_json(),
        "reference": {"seed": REFERENCE_SEED, "logits": reference_logits},
    }
    document = timm_part(imported, network) | {"robustzoo": ours}
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def compare_imported(path: Path, imported: Imported, network: nn.Module) -> None:
    """Raise RobustzooError where what timm reads of config.json is not the imported network."""
    _compare(path, read_configuration(path.parent), timm_part(imported, network))


def _read_imported(path: Path, document: dict[str, Any], ours: dict[str, Any]) -> FolderConfig:
    try:
        imported = Imported.from_json(ours["imported"])
    except RobustzooError as error:
        raise RobustzooError(f"{path}: {error}") from error
    if ours.get("name") != imported.name:
        raise RobustzooError(f"{path}: robustzoo.name is {ours.get('name')!r}, not {imported.name!r}")
    seed, logits = _reference(path, ours.get("reference"), imported.num_classes)
    return FolderConfig(imported, None, imported.license, seed, logits)


def _license(path: Path, block: dict[str, Any]) -> str:
    """timm's key for it, which our cards state."""
    found = block.get("license", UNLICENSED)
    if not isinstance(found, str) or not _SPDX.fullmatch(found):
        raise RobustzooError(
            f"{path}: pretrained_cfg.license is {found!r}; expected an SPDX identifier in lower case, for "
            f"example {_EXAMPLE}"
        )
    return found


def _compare(path: Path, found: dict[str, Any], expected: dict[str, Any], where: str = "") -> None:
    """Every value of timm's part must be the one that `timm_config` writes, free text excepted."""
    surplus = set(found) - set(expected) - ({"robustzoo"} if not where else set()) - set(_FREE_TEXT)
    if surplus:
        raise RobustzooError(
            f"{path}: unknown key {where}{min(surplus)}; known keys: {', '.join(sorted(expected))}"
        )
    for key, value in expected.items():
        if key in _FREE_TEXT:
            continue
        value = list(value) if isinstance(value, tuple) else value  # what JSON makes of it
        if key not in found:
            raise RobustzooError(f"{path}: {where}{key} is missing; expected {value!r}")
        if isinstance(value, dict) and isinstance(found[key], dict):
            _compare(path, found[key], value, f"{where}{key}.")
        elif type(found[key]) is not type(value) or found[key] != value:
            raise RobustzooError(f"{path}: {where}{key} is {found[key]!r}, but its recipe gives {value!r}")


def _reference(path: Path, block: Any, num_classes: int) -> tuple[int, list[list[float]]]:
    seed, logits = (block.get("seed"), block.get("logits")) if isinstance(block, dict) else (None, None)
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise RobustzooError(
            f"{path}: robustzoo.reference.seed is {seed!r}; expected a whole number below 2^32"
        )
    rows = logits if isinstance(logits, list) else []
    good = len(rows) == 2 and all(isinstance(row, list) and len(row) == num_classes for row in rows)
    if not good or not all(type(v) is float and math.isfinite(v) for row in rows for v in row):
        raise RobustzooError(f"{path}: robustzoo.reference.logits must be 2 x {num_classes} finite numbers")
    return seed, rows


def _per_channel(values: tuple[float, ...], channels: int) -> list[float]:
    return [float(value) for value in (values * channels if len(values) == 1 else values)]
