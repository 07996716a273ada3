"""Whether a model folder is the one that an entry pins, as far as its files tell without their weights."""

from __future__ import annotations

import json
from pathlib import Path

from robustzoo.registry.entries import Weights
from robustzoo.untrusted_files import read_bytes

_LARGEST_CONFIG = 2**20  # bytes


def pin_problem(recipe_name: str, pin: Weights, folder: Path) -> str | None:
    """What in a folder contradicts the entry that pins it: the size of model.safetensors, or the recipe that
    config.json names; None where nothing does.

    The hash is not compared here: that takes as long as reading the weights, and a list must be quick.

    Args:
        recipe_name, pin: of the entry.
        folder: where they are on this machine.
    """
    weights, config = folder / "model.safetensors", folder / "config.json"
    try:
        size = weights.stat().st_size
        document = json.loads(read_bytes(config, _LARGEST_CONFIG))
        held = document["robustzoo"]["name"]
    except OSError as error:
        return f"{error.filename or folder} cannot be read ({error.strerror or error})"
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{config} is no configuration of a robustzoo model"
    if held != recipe_name:
        return f"{folder} is pinned as {recipe_name} but holds {held}"
    if size != pin.bytes:
        return f"{weights} is pinned with {pin.bytes} bytes but has {size}"
    return None
