"""One row of a listing: a model or recipe, what it is, and the numbers that the Evidence beside it states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

from robustzoo.cards.evidence import Evidence, EvidenceError
from robustzoo.cards.evidence_rules import images_problem
from robustzoo.cards.holdings import main_evidence
from robustzoo.cards.imported import Imported
from robustzoo.cards.statistics import Accuracy
from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, THREATS
from robustzoo.registry.entries import Entry, Weights, pin_problem, read_lock
from robustzoo.registry.lookup import list_models
from robustzoo.registry.names import all_names, parse
from robustzoo.registry.packages import brought
from robustzoo.registry.recipes import Recipe
from robustzoo.registry.threat_model import NORMS, ThreatModel
from robustzoo.streams import one_line
from robustzoo.untrusted_files import safetensors_header
from robustzoo.verification.records import Record, read_records

_COUNTED_OUT = ("running_mean", "running_var", "num_batches_tracked")  # batch norm's, no parameters
SORTS = ("name", "robust", "clean", "parameters")


@dataclass(frozen=True)
class Row:
    """A name of the zoo.

    Attributes:
        recipe: the name of its recipe, which differs from `name` for a model of another package.
        method: the last part of the recipe's name, with the digest of a changed recipe.
        parameters: of its network, class head included; None where neither catalog nor weights tell.
        evidence: the main one; None where there are no weights, or nothing that is its own: `problem` says
            why.
        records: verifications of this Evidence that were recorded beside the weights, newest first.
    """

    name: str
    recipe: str
    architecture: str
    dataset: str
    threat_model: ThreatModel
    loss: str
    method: str
    parameters: int | None
    weights: Weights | None = None
    evidence: Evidence | None = None
    problem: str | None = None
    records: tuple[Record, ...] = field(default=())

    @property
    def clean(self) -> Accuracy | None:
        return None if self.evidence is None else self.evidence.clean_accuracy

    @property
    def robust(self) -> Accuracy | None:
        return None if self.evidence is None else self.evidence.robust_accuracy

    @property
    def protocol(self) -> str | None:
        return None if self.evidence is None else self.evidence.doc["protocol"]["name"]

    def to_json(self) -> dict[str, Any]:
        """Numbers as numbers: accuracies in [0, 1] with exact 95 % intervals; None for what is not there."""
        clean, robust = self.clean, self.robust
        return {
            "name": self.name,
            "recipe": self.recipe,
            "architecture": self.architecture,
            "dataset": self.dataset,
            "threat_model": str(self.threat_model),
            "loss": self.loss,
            "method": self.method,
            "parameters": self.parameters,
            "weights": None if self.weights is None else self.weights.source,
            "clean": None if clean is None else clean.value,
            "clean_interval": None if clean is None else [clean.low, clean.high],
            "robust": None if robust is None else robust.value,
            "robust_interval": None if robust is None else [robust.low, robust.high],
            "n": None if robust is None else robust.n,
            "protocol": self.protocol,
            "verified_by": [record.to_json() for record in self.records],
        }


def row(name: str, locked: dict[str, Weights] | None = None, others: dict[str, Entry] | None = None) -> Row:
    """The row of a name that `list_models` has. A recipe of the registry is not composed for it: there are
    hundreds.

    Args:
        locked, others: of `read_lock` and `brought`, where the caller has them.
    """
    locked, others = read_lock() if locked is None else locked, brought() if others is None else others
    if name in others:
        theirs, weights = others[name].recipe, others[name].weights
        made, threat_model, architecture = theirs.name, theirs.threat_model, theirs.architecture
        parameters = parameters_of(theirs, weights and weights.folder)
    else:
        made, weights, threat_model = name, locked.get(name), None
        of_name = parse(name.partition("+")[0])
        architecture, dataset = of_name.architecture, DATASETS[of_name.dataset]
        parameters = ARCHITECTURES[architecture].parameter_count(dataset.image_size, dataset.num_classes)
    parsed = parse(made.partition("+")[0])
    evidence, problem = (None, None) if weights is None else stated(made, weights)
    records = read_records(weights.folder, weights.sha256) if weights and weights.folder else ()
    records = tuple(record for record in records if evidence is not None and record.is_about(evidence))
    return Row(
        name=name,
        recipe=made,
        architecture=architecture,
        dataset=parsed.dataset,
        threat_model=threat_model or THREATS[parsed.dataset, parsed.norm],
        loss=parsed.loss,
        method=method_of(made),
        parameters=parameters,
        weights=weights,
        evidence=evidence,
        problem=problem,
        records=records,
    )


def parameters_of(recipe: Recipe | Imported, folder: Path | None) -> int | None:
    """Of the network: as the catalog knows it, or counted in the header of the weights in a folder."""
    if recipe.architecture in ARCHITECTURES:
        row, stride = ARCHITECTURES[recipe.architecture], getattr(recipe, "patch_stride", None)
        return row.parameter_count(recipe.image_size, recipe.num_classes, stride)
    file = None if folder is None else folder / "model.safetensors"
    if file is None or not file.is_file():
        return None
    header = safetensors_header(file)
    return sum(prod(shape) for name, (_, shape) in header.items() if not name.endswith(_COUNTED_OUT))


def method_of(recipe_name: str) -> str:
    """`trades_trh`, with the digest of a changed recipe."""
    base, plus, digest = recipe_name.partition("+")
    return parse(base).method + plus + digest


def rows(*, published_only: bool = False) -> list[Row]:
    """Every row, by name."""
    locked, others = read_lock(), brought()
    return [row(name, locked, others) for name in list_models(published_only=published_only)]


def stated(recipe_name: str, weights: Weights) -> tuple[Evidence | None, str | None]:
    """The main evidence of published weights, after a quick look at what it is about, and what is wrong with
    it: so no other model's numbers stand under the name. (None, None): it has none here."""
    folder = weights.folder
    if folder is None or not folder.is_dir():
        return None, None
    problem = pin_problem(recipe_name, weights, folder)
    if problem is not None:
        return None, one_line(problem)
    try:
        evidence = main_evidence(folder, validate=False)
        problem = None if evidence is None else _problem(evidence, recipe_name, weights)
    except EvidenceError as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):  # not validated: that takes long
        problem = "its evidence is malformed"
    return (evidence, None) if problem is None else (None, one_line(problem))


def _problem(evidence: Evidence, recipe_name: str, weights: Weights) -> str | None:
    doc, dataset = evidence.doc, parse(recipe_name.partition("+")[0]).dataset_id
    if (doc["dataset"]["id"], doc["dataset"]["split"]) != (dataset, "test"):
        return f"its evidence is about {doc['dataset']['id']} {doc['dataset']['split']}"
    if doc["model"]["sha256"] != weights.sha256:
        return "its evidence is about other weights"
    if not evidence.robust_accuracy.n == evidence.clean_accuracy.n == len(doc["dataset"]["indices"]):
        return "its evidence has counts of other images"
    if not isinstance(doc["protocol"]["name"], str):
        return "its evidence is malformed"
    return images_problem(doc)


@dataclass(frozen=True)
class Filter:
    """Which rows are wanted: all words and all fields must match.

    Attributes:
        words: a shell pattern of the whole name, a whole part of it (`cifar10`, `linf`, `trades`, `trh`), or,
            where no name has such a part, any piece of it.
        datasets, architectures, losses: any of them; empty: all.
        threats: norms ("linf") or threat models ("linf:8/255"); empty: all.
    """

    words: Sequence[str] = ()
    datasets: Sequence[str] = ()
    threats: Sequence[str] = ()
    architectures: Sequence[str] = ()
    losses: Sequence[str] = ()

    def chosen(self, found: Iterable[Row]) -> list[Row]:
        """The rows that match.

        Raises:
            RobustzooError: a threat that is neither a norm nor a threat model.
        """
        found = list(found)
        threats = [_threat(text) for text in self.threats]
        parts = {part for item in found for part in _parts(item)}
        return [
            item
            for item in found
            if (not self.datasets or item.dataset in self.datasets)
            and (not self.architectures or item.architecture in self.architectures)
            and (not self.losses or item.loss in self.losses)
            and (not threats or item.threat_model in threats or item.threat_model.norm in threats)
            and all(_matches(word, item, parts) for word in self.words)
        ]


def ordered(found: Iterable[Row], by: str) -> list[Row]:
    """Rows by name, or the largest `robust`, `clean` or `parameters` first; without the number, last."""

    def key(item: Row) -> tuple[Any, ...]:
        if by == "name":
            return (item.weights is None, item.name)
        value = item.parameters if by == "parameters" else getattr(item, by)
        number = value.value if isinstance(value, Accuracy) else value
        return (number is None, 0 if number is None else -number, item.name)

    return sorted(found, key=key)


def _threat(text: str) -> ThreatModel | str:
    lower = text.strip().lower()
    if lower in NORMS:
        return lower
    try:
        return ThreatModel.parse(text)
    except RobustzooError as error:
        raise RobustzooError(f"{error}, or a norm alone: {', '.join(NORMS)}") from error


def _parts(item: Row) -> set[str]:
    more = {str(item.threat_model), item.name.lower(), *name_parts(item.recipe)}
    return more | ({item.weights.source} if item.weights else set())


def name_parts(recipe_name: str) -> set[str]:
    """The words that name a recipe: `vit_b16`, `cifar10`, `linf`, `trades`, `trh`, and those joined."""
    parsed = parse(recipe_name.partition("+")[0])
    return {
        *(str(parsed), parsed.architecture, parsed.dataset, parsed.norm, parsed.loss, parsed.method),
        *(parsed.modifiers or ("base",)),
        f"{parsed.loss}{parsed.loss_weight or ''}",
    }


def has_word(recipe_name: str, word: str) -> bool:
    """Whether the name of a recipe matches a word as `Filter.words` has them."""
    if any(sign in word for sign in "*?["):
        return fnmatchcase(recipe_name, word)
    return word.lower() in (name_parts(recipe_name) if word.lower() in _known() else recipe_name)


@lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    return frozenset(part for name in all_names() for part in name_parts(name))


def _matches(word: str, item: Row, parts: set[str]) -> bool:
    if any(sign in word for sign in "*?["):
        return fnmatchcase(item.name, word)
    word = word.lower()
    return word in _parts(item) if word in parts else word in item.name.lower()
