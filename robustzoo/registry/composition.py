"""A recipe from layers: ours | the paper's tables | catalog (dataset, threat, architecture) | method.

Numbers live in `tables/`: the paper's in files of their own, ours in `ours.csv`, each with its source. A row
applies to the names that match its keys; of two rows for one field the later wins, and the paper's over ours.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, LOSSES, THREAT_SOURCES, THREATS
from robustzoo.registry.fields import read_value
from robustzoo.registry.names import ModelName
from robustzoo.registry.paper import Value, hyperparameters, read_table

Layer = dict[str, tuple[Any, str]]  # field -> (value or its text, source)


def compose(name: ModelName) -> tuple[dict[str, Any], dict[str, str]]:
    """The typed values of a compatible name's recipe and the source of each.

    Raises:
        RecipeError: a table holds a value outside its field's range.
    """
    layers = _from_tables(name) | _dataset_threat(name) | _architecture(name)
    layers |= _method(name)
    values = {field: read_value(field, value) for field, (value, _) in layers.items()}
    return values, {field: source for field, (_, source) in layers.items()}


@lru_cache(maxsize=1)
def _ours() -> tuple[Value, ...]:
    keys = ("arch", "dataset", "norm", "loss", "defence", "field", "value", "source")
    return tuple(Value(*(row[key] for key in keys)) for row in read_table("ours"))


def _from_tables(name: ModelName) -> Layer:
    return {row.field: (row.value, row.source) for row in _ours() + hyperparameters() if row.applies_to(name)}


def _dataset_threat(name: ModelName) -> Layer:
    dataset = DATASETS[name.dataset]
    return {
        "dataset": (dataset.key, "the name"),
        "threat_model": (THREATS[name.dataset, name.norm], THREAT_SOURCES[name.dataset]),
        "image_size": (dataset.image_size, "the dataset"),
        "channels": (dataset.channels, "the dataset"),
        "num_classes": (dataset.num_classes, "the dataset"),
        "mean": (dataset.mean, dataset.normalisation_source),
        "std": (dataset.std, dataset.normalisation_source),
    }


def _architecture(name: ModelName) -> Layer:
    architecture = ARCHITECTURES[name.architecture]
    if architecture.init is None:
        init = ("random", "ours: no pre-trained checkpoint of this network")
    else:
        init = (
            f"timm:{architecture.init}@{architecture.init_revision}",
            "table 4 (an ImageNet-21k checkpoint); which one is ours",
        )
    return {"architecture": (architecture.key, "the name"), "init": init}


def _method(name: ModelName) -> Layer:
    layer: Layer = {"loss": (name.loss, "the name"), "defences": (name.modifiers, "the name")}
    if name.loss_weight is not None:
        layer["trades_weight"] = (name.loss_weight, f"the name ({LOSSES[name.loss].key}{name.loss_weight})")
    if "trh" in name.modifiers:
        layer["l2_reg"] = (0.0, "the paper's algorithm: gamma replaces l2_reg")
    return layer
