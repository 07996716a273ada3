"""The grammar of model names, `architecture.dataset_threat.method`: strict, total, and helpful when wrong."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from itertools import product

from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import (
    ARCHITECTURES,
    DATASETS,
    DEFENCES,
    LOSSES,
    OWN_DATA_MARK,
    THREATS,
)
from robustzoo.registry.threat_model import NORMS

OWN = "own-"  # before the name of one's own images, where a catalog's dataset stands in a name
_OWN = re.compile(rf"{OWN}[a-z0-9][a-z0-9_-]*", re.ASCII)
_LOSS = re.compile(r"(?P<loss>[a-z]+)(?P<weight>[0-9][0-9.]*)?", re.ASCII)
# One spelling per number: no leading zeros, no trailing zeros after the point.
_WEIGHT = re.compile(r"[1-9][0-9]{0,5}|(?:0|[1-9][0-9]{0,5})\.[0-9]{0,5}[1-9]", re.ASCII)


class IncompatibleName(RobustzooError):
    """A name that follows the grammar, for a combination that has no recipe."""


class UnknownName(RobustzooError, KeyError):
    """A text that is no model name; its message names the wrong part and the nearest right names."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the repr


@dataclass(frozen=True)
class ModelName:
    """A parsed name: `str(parse(text)) == text`.

    Attributes:
        loss_weight: the loss's weight where the name changes it ("1" in `trades1_trh`), else None.
        modifiers: defences in the catalog's order; () is `base`.
    """

    architecture: str
    dataset: str
    norm: str
    loss: str
    loss_weight: str | None
    modifiers: tuple[str, ...]

    @property
    def method(self) -> str:
        """The last part of the name, such as `trades_trh`."""
        return "_".join([f"{self.loss}{self.loss_weight or ''}", *(self.modifiers or ("base",))])

    @property
    def dataset_id(self) -> str:
        """What Evidence on these images calls them: the dataset's key, or "own:NAME"."""
        return (
            self.dataset.replace(OWN, f"own{OWN_DATA_MARK}", 1)
            if _OWN.fullmatch(self.dataset)
            else self.dataset
        )

    def __str__(self) -> str:
        return f"{self.architecture}.{self.dataset}_{self.norm}.{self.method}"


def suggest(text: str, choices: Iterable[str], n: int = 3) -> list[str]:
    """The up to `n` choices nearest to `text`, best first; none where nothing is near."""
    from difflib import get_close_matches

    by_lower = {choice.lower(): choice for choice in choices}
    return [by_lower[match] for match in get_close_matches(text.lower()[:200], by_lower, n=n, cutoff=0.5)]


def did_you_mean(text: str, choices: Iterable[str], n: int = 3) -> str:
    """` Did you mean a, b?` with the nearest choices, or an empty text."""
    near = suggest(text, choices, n)
    return f" Did you mean {', '.join(near)}?" if near else ""


def parse(text: str) -> ModelName:
    """Read a model name. Grammatical names may still be incompatible: see `catalog.check_compatible`.

    Raises:
        UnknownName: with what is wrong in which part, and the nearest right names.
    """
    if not isinstance(text, str):
        raise UnknownName(f"{text!r} ({type(text).__name__}) is not a model name: expected text")
    parts = text.split(".", 2)  # a weight such as trades0.5 keeps its point
    if len(parts) != 3:
        raise _unknown(
            text, "expected architecture.dataset_threat.method, such as vit_b16.imagenet_linf.at_base"
        )
    architecture, dataset_threat, method = parts
    if architecture not in ARCHITECTURES:
        raise _unknown(text, _not_in("architecture", architecture, ARCHITECTURES))
    dataset, _, norm = dataset_threat.rpartition("_")
    if not dataset:
        raise _unknown(text, f"{dataset_threat!r} is not dataset_threat, such as imagenet_linf")
    if dataset not in DATASETS and not _OWN.fullmatch(dataset):
        raise _unknown(
            text,
            _not_in("dataset", dataset, DATASETS, {d for a in ARCHITECTURES.values() for d in a.datasets}),
        )
    if norm not in NORMS:
        raise _unknown(text, _not_in("norm", norm, NORMS, {n for d, n in THREATS if d == dataset}))
    loss, weight, modifiers = _parse_method(text, method)
    return ModelName(architecture, dataset, norm, loss, weight, modifiers)


def _parse_method(text: str, method: str) -> tuple[str, str | None, tuple[str, ...]]:
    head, *modifiers = method.split("_")
    match = _LOSS.fullmatch(head)
    if match is None or match["loss"] not in LOSSES:
        raise _unknown(text, _not_in("loss", head, LOSSES))
    loss, weight = match["loss"], match["weight"]
    if weight is not None:
        default = LOSSES[loss].default_weight
        if default is None:
            raise _unknown(text, f"{loss} has no weight, so no number may follow it")
        if weight == default:
            raise _unknown(
                text, f"{weight} is the weight of {loss} anyway, so it is written without the number"
            )
        if not _WEIGHT.fullmatch(weight):
            raise _unknown(
                text, f"{weight!r} is not a weight: a positive number without needless zeros, such as 0.5"
            )
    if not modifiers:
        raise _unknown(
            text, f"a bare {head!r} is ambiguous: without a modifier it is {head}_base", f"{text}_base"
        )
    if modifiers == ["base"]:
        return loss, weight, ()
    for modifier in modifiers:
        if modifier == "base":
            raise _unknown(text, "base means no modifier, so it cannot stand beside one")
        if modifier not in DEFENCES:
            raise _unknown(text, _not_in("modifier", modifier, ["base", *DEFENCES]))
    slots = [DEFENCES[modifier].slot for modifier in modifiers]
    if len(set(modifiers)) < len(modifiers):
        raise _unknown(text, "a modifier is repeated")
    if len(set(slots)) < len(slots):
        raise _unknown(text, "trh and s2o exclude each other")
    if slots != sorted(slots):
        ordered = "_".join([head, *sorted(modifiers, key=lambda key: DEFENCES[key].slot)])
        raise _unknown(text, f"modifiers have one order: {ordered}")
    return loss, weight, tuple(modifiers)


def _not_in(noun: str, value: str, known: Iterable[str], usable: Container[str] | None = None) -> str:
    """`usable`: those of `known` that have a recipe beside the other parts of the name; default: all."""
    words = list(known)
    others = [] if usable is None else [word for word in words if word not in usable]
    without = f"; without a recipe here: {', '.join(others)}" if others else ""
    return f"unknown {noun} {value[:80]!r} (known: {', '.join(w for w in words if w not in others)}{without})"


def _unknown(text: str, problem: str, meant: str | None = None) -> UnknownName:
    name, changed, _ = text.partition("+")
    if changed:
        problem = (
            "a changed recipe is not rebuilt from its name: give the model's folder, or to train or show it "
            "its JSON file, or the name with --set"
        )
    names = all_names()
    near = f" Did you mean {meant}?" if meant in names else did_you_mean(name, names)
    return UnknownName(
        f"{text[:120]!r} is not a model name: {problem}.{near} `robustzoo ls --recipes` lists all "
        f"{len(names)} names."
    )


def check_compatible(name: ModelName) -> None:
    """Refuse a grammatical name whose combination has no recipe.

    Raises:
        IncompatibleName: naming the parts that do not go together and names that do.
    """
    problem = _incompatibility(name)
    if problem is not None:
        raise IncompatibleName(f"{str(name)!r}: {problem}.{did_you_mean(str(name), all_names())}")


def _incompatibility(name: ModelName) -> str | None:
    if name.dataset not in DATASETS:
        return (
            f"{name.dataset} are somebody's own images: load the model's folder, or train a recipe of the "
            "catalog with --data NAME:DIR"
        )
    architecture, dataset = ARCHITECTURES[name.architecture], DATASETS[name.dataset]
    if (name.dataset, name.norm) not in THREATS:
        norms = ", ".join(norm for key, norm in THREATS if key == name.dataset)
        return f"{name.dataset} has no {name.norm} threat model, only {norms}"
    if name.dataset not in architecture.datasets:
        fitting = [a.key for a in ARCHITECTURES.values() if name.dataset in a.datasets]
        wanted = f"use {' or '.join(fitting)}"
        return (
            f"{architecture.key} does not go with {dataset.key} "
            f"({dataset.image_size}x{dataset.image_size} images): {wanted}"
        )
    return None


def all_names() -> list[str]:
    """Every compatible name at its loss's default weight, sorted. Each has a recipe."""
    return sorted(
        f"{architecture.key}.{dataset}_{norm}.{method}"
        for architecture in ARCHITECTURES.values()
        for dataset, norm in THREATS
        if dataset in architecture.datasets
        for method in _methods()
    )


def _methods() -> list[str]:
    """Every method that goes together, such as `trades_trh_awp`; defences in the order of their slots."""
    slots = [("", *(f"_{d.key}" for d in DEFENCES.values() if d.slot == slot)) for slot in range(3)]
    endings = ["".join(chosen) or "_base" for chosen in product(*slots)]
    return [f"{loss}{ending}" for loss, ending in product(LOSSES, endings)]


def unpublished_name(name: str, sha256: str) -> str:
    """The registry name with the hash of the weights behind it: no registry name, and no two alike."""
    return f"{name} (weights {sha256[:12]})"


def recipe_name(name: str, sha256: str | None) -> str:
    """The name of the recipe behind that of a model with these weights: the inverse of `unpublished_name`."""
    return name if sha256 is None else name.removesuffix(unpublished_name("", sha256))
