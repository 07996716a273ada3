"""A recipe from layers: borrowed values | ours | the paper's | dataset and threat | architecture | method.

Numbers live in `tables/`: the paper's in files of their own, ours in `ours.csv`, each with its source. A row
applies to the names that match its keys; of two rows for one field the later wins, and the paper's over ours.
Where no table has a value of a method for a name, it is that of a name which has one, and its source says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any

from robustzoo.registry.catalog import (
    ARCHITECTURES,
    DATASETS,
    LOSSES,
    THREAT_SOURCES,
    THREATS,
    UNPINNED,
)
from robustzoo.registry.fields import FIELDS, read_value
from robustzoo.registry.names import ModelName, check_compatible, parse
from robustzoo.registry.paper import ARCHITECTURES as PAPER_ARCHITECTURES
from robustzoo.registry.paper import LOSSES as PAPER_LOSSES
from robustzoo.registry.paper import Value, hyperparameters, read_table

Layer = dict[str, tuple[Any, str]]  # field -> (value or its text, source)

# Whose values a name takes where the paper has none for it.
_LIKE_LOSS = {"alp": "at", "mart": "trades"}
_LIKE_ARCHITECTURE = "vit_l16"
_LIKE_THREAT = ("cifar10", "linf")


def composed(base_name: str) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    """The typed values of a registry name's recipe and the source of each, composed once in a process.

    Raises:
        UnknownName, IncompatibleName: the name has no recipe.
        RobustzooError: a table holds a value outside its field's range.
    """
    name = parse(base_name)
    check_compatible(name)
    return _compose(name)


@lru_cache(maxsize=1024)
def _compose(name: ModelName) -> tuple[Mapping[str, Any], Mapping[str, str]]:
    layers = _unused() | _borrowed(name) | _from_tables(name) | _dataset_threat(name) | _architecture(name)
    layers |= _method(name)
    values = {field: read_value(field, value) for field, (value, _) in layers.items()}
    sources = {field: source for field, (_, source) in layers.items()}
    return MappingProxyType(values), MappingProxyType(sources)


@cache
def neutral(key: str) -> tuple[Any, str] | None:
    """The value at which a recipe leaves a later field out, and its source; None for any other field."""
    if not FIELDS[key].later:
        return None
    value, source = _unused()[key]
    return read_value(key, value), source


@lru_cache(maxsize=1)
def former_sources() -> frozenset[tuple[str, str]]:
    """(field, source) as the registry had it when models were published that still say so on their cards."""
    return frozenset((row["field"], row["source"]) for row in read_table("former_sources"))


@lru_cache(maxsize=1)
def _ours() -> tuple[Value, ...]:
    keys = ("arch", "dataset", "norm", "loss", "defence", "field", "value", "source")
    return tuple(Value(*(row[key] for key in keys)) for row in read_table("ours"))


@lru_cache(maxsize=1)
def _unused() -> Layer:
    return {row["field"]: (row["value"], row["source"]) for row in read_table("unused")}


def _from_tables(name: ModelName) -> Layer:
    of_paper = [row for row in hyperparameters() if row.defence == "*" or _in_grid(name)]
    layer = {row.field: (row.value, row.source) for row in _ours() if row.applies_to(name)}
    if name.architecture in PAPER_ARCHITECTURES:  # shared values that the paper gives for its ViTs alone
        like = ModelName(_LIKE_ARCHITECTURE, name.dataset, name.norm, name.loss, None, ())
        layer |= {
            row.field: (row.value, f"ours: as {like} ({row.source})")
            for row in hyperparameters()
            if row.defence == "*" and row.applies_to(like)
        }
    return layer | {row.field: (row.value, row.source) for row in of_paper if row.applies_to(name)}


def _in_grid(name: ModelName) -> bool:
    """Whether the paper speaks of this very method and network; its rows for a defence hold for no other.

    Tables 5 and 6 are at lambda_t = 6, the default of a name.
    """
    of_paper = name.architecture in PAPER_ARCHITECTURES and name.loss in PAPER_LOSSES
    return of_paper and name.loss_weight is None and len(name.modifiers) <= 1


def _borrowed(name: ModelName) -> Layer:
    """Values of the paper for the name's modifiers, each alone, on the nearest network that it speaks of."""
    layer: Layer = {}
    for modifier in name.modifiers:
        for like in _likes(name, modifier):
            for row in hyperparameters():
                if row.defence == modifier and row.field not in layer and row.applies_to(like):
                    layer[row.field] = (row.value, f"ours: as {like} ({row.source})")
    return layer


def _likes(name: ModelName, modifier: str) -> Iterator[ModelName]:
    loss = _LIKE_LOSS.get(name.loss, name.loss)
    if name.architecture in PAPER_ARCHITECTURES:
        for architecture in (name.architecture, _LIKE_ARCHITECTURE):
            yield ModelName(architecture, name.dataset, name.norm, loss, None, (modifier,))
    else:
        yield ModelName(_LIKE_ARCHITECTURE, *_LIKE_THREAT, loss, None, (modifier,))


def _dataset_threat(name: ModelName) -> Layer:
    dataset = DATASETS[name.dataset]
    return {
        "dataset": (dataset.key, "the name"),
        "threat_model": (THREATS[name.dataset, name.norm], THREAT_SOURCES[name.dataset, name.norm]),
        "image_size": (dataset.image_size, "the dataset"),
        "channels": (dataset.channels, "the dataset"),
        "num_classes": (dataset.num_classes, "the dataset"),
        "training_data": (dataset.key, "the dataset"),
        "mean": (dataset.mean, dataset.normalisation_source),
        "std": (dataset.std, dataset.normalisation_source),
    }


def _architecture(name: ModelName) -> Layer:
    architecture = ARCHITECTURES[name.architecture]
    if architecture.init is None:
        init = ("random", "ours: no pre-trained checkpoint of this network")
    else:
        of_vits = "section 4.1" if name.architecture == "hybrid_l16" else "table 4"
        table = "table 3" if DATASETS[name.dataset].image_size == 32 else of_vits
        which = "which one is ours"
        if UNPINNED in architecture.init_revision:
            which += (
                ", and unpinned is what the Hub has now: its revision is in no public record that we found"
            )
        init = (
            f"timm:{architecture.init}@{architecture.init_revision}",
            f"{table} (an ImageNet-21k checkpoint); {which}",
        )
    return {"architecture": (architecture.key, "the name"), "init": init}


def _method(name: ModelName) -> Layer:
    layer: Layer = {"loss": (name.loss, "the name"), "defences": (name.modifiers, "the name")}
    if name.loss_weight is not None:
        layer["loss_weight"] = (name.loss_weight, f"the name ({LOSSES[name.loss].key}{name.loss_weight})")
    if "trh" in name.modifiers:
        layer["l2_reg"] = (0.0, "the paper's algorithm: gamma replaces l2_reg")
    return layer
