"""What exists: names, threat models, recipes and pinned weights. No torch and no network in this room."""

from __future__ import annotations

from robustzoo.registry.entries import Entry, Weights, entry, find_entry, list_models, published
from robustzoo.registry.names import IncompatibleName, UnknownName, all_names, check_compatible
from robustzoo.registry.recipes import Recipe, recipe
from robustzoo.registry.threat_model import ThreatModel

__all__ = [
    "Entry",
    "IncompatibleName",
    "Recipe",
    "ThreatModel",
    "UnknownName",
    "Weights",
    "all_names",
    "check_compatible",
    "entry",
    "find_entry",
    "list_models",
    "published",
    "recipe",
]
