"""Changes to a recipe: `KEY=VALUE` texts, and typed, range-checked values with an honest source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.dataset_files import expand, is_own
from robustzoo.registry.fields import FIELDS, read_value, unknown_field, value_text
from robustzoo.registry.rules import originals_per_batch

# What pixels in [0, 1] become inside the model -> mean and std, one value for all channels (table 3).
_DATA_RANGES = {"[-1,1]": (0.5, 0.5), "[0,1]": (0.0, 1.0), "centered": (0.47, 0.25)}
ALIASES = ("epochs", "data_range")  # set a field in other words
# Fields that a name fixes for the catalog's images, and dataset.json for one's own.
OF_IMAGES = ("dataset", "image_size", "channels", "num_classes", "classes")


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """Read `--set KEY=VALUE` texts.

    Raises:
        RobustzooError: a text without "=", an unknown key, or a key set twice.
    """
    changes: dict[str, str] = {}
    for text in assignments:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key or not value.strip():
            raise RobustzooError(f"--set {text!r} is not KEY=VALUE: write for example --set total_steps=100")
        _check_key(key)
        if key in changes:
            raise RobustzooError(f"--set {key} is given twice ({changes[key]!r} and {value!r}): keep one")
        changes[key] = value.strip()
    return changes


def apply_overrides(
    values: Mapping[str, Any],
    sources: Mapping[str, str],
    changes: Mapping[str, object],
    origin: str,
    notes: Mapping[str, str] | None = None,
    of_name: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """New values and sources with `changes` made; a value that stays equal keeps its source.

    Args:
        changes: field -> typed value or text; `epochs` (a positive number) sets total_steps, and `data_range`
            ("[-1,1]", "[0,1]" or "centered") mean and std; `dataset` may be a folder with a dataset.json,
            which sets all that depends on the images.
        origin: how the changes came about, for the source of each changed value.
        notes: sources given with the changes; used where they differ from the present source.
        of_name: the values that the model's name stands for; default: `values`.

    Raises:
        RobustzooError: an unknown key, a value that is not allowed, or a field that the name fixes.
    """
    new_values, new_sources = dict(values), dict(sources)
    changes, notes = expand(changes, notes or {})
    named = values if of_name is None else of_name
    typed = {key: read_value(key, value) for key, value in changes.items() if _check_key(key) not in ALIASES}
    free = OF_IMAGES if is_own(typed.get("dataset", values["dataset"])) else ()
    for key, value in typed.items():
        if key not in free and not FIELDS[key].goes_with_name(named[key], value):
            raise RobustzooError(
                f"{key}: {value_text(value)} differs from {value_text(named[key])}, which the model's name "
                f"fixes: choose another name (`robustzoo ls --recipes`)"
            )
    if "epochs" in changes:
        if "total_steps" in changes:
            raise RobustzooError("epochs and total_steps both set the training length: give one of them")
        typed["total_steps"] = _steps(changes["epochs"], {**values, **typed})
    if "data_range" in changes:
        if "mean" in changes or "std" in changes:
            raise RobustzooError("data_range sets mean and std: give it, or mean and std")
        typed |= _normalisation(changes["data_range"])
    for key, value in typed.items():
        if value == values[key]:
            continue
        new_values[key] = value
        note = notes.get(key)
        was = f"{origin} (was {value_text(values[key])}; {sources[key]})"
        new_sources[key] = note if note and note != sources[key] else was
    return new_values, new_sources


def _check_key(key: str) -> str:
    if key == "epsilon":
        raise RobustzooError(
            "unknown key 'epsilon': the radius is part of threat_model, such as threat_model=linf:4/255"
        )
    if key not in ALIASES and key not in FIELDS:
        raise unknown_field(key, "to set", {**FIELDS, **dict.fromkeys(ALIASES)})
    return key


def _normalisation(data_range: object) -> dict[str, tuple[float, ...]]:
    if not isinstance(data_range, str) or data_range.replace(" ", "") not in _DATA_RANGES:
        raise RobustzooError(
            f"data_range: {data_range!r} is not allowed: expected one of {', '.join(_DATA_RANGES)}; any "
            "other normalisation is set with mean=VALUE and std=VALUE"
        )
    mean, std = _DATA_RANGES[data_range.replace(" ", "")]
    return {"mean": (mean,), "std": (std,)}


def _steps(epochs: object, values: Mapping[str, Any]) -> int:
    """Optimizer steps of so many passes over the original training images."""
    try:
        number = (
            float(epochs) if isinstance(epochs, (int, float, str)) and not isinstance(epochs, bool) else 0.0
        )
    except (ValueError, OverflowError):
        number = 0.0
    data = DATASETS.get(values["training_data"]) or DATASETS.get(values["dataset"])
    images = values["training_images"] or (data.train_size if data else 0)
    steps = number * images / max(originals_per_batch(values), 1)
    if not (math.isfinite(steps) and number > 0):
        raise RobustzooError(f"epochs: {epochs!r} is not allowed: expected a number above 0")
    return math.ceil(steps)
