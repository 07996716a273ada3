"""What a result calls a model of a registry name's recipe whose weights are not the published ones."""

from __future__ import annotations

from typing import Any

from robustzoo.registry.entries import read_lock


def unpublished_name(name: str, sha256: str) -> str:
    """The registry name with the hash of the weights behind it: no registry name, and no two alike."""
    return f"{name} (weights {sha256[:12]})"


def public_name(name: str, sha256: str) -> str:
    """The name that weights may go by: a locked registry name stands for the published weights alone."""
    locked = read_lock().get(name)
    return name if locked is None or locked.sha256 == sha256 else unpublished_name(name, sha256)


def recipe_name(model: dict[str, Any]) -> str:
    """The name of the recipe behind an Evidence's section `model`: the inverse of `unpublished_name`."""
    name, sha256 = model["name"], model["sha256"]
    return name if sha256 is None else name.removesuffix(unpublished_name("", sha256))
