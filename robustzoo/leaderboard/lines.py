"""What the verified table has: one entry for each Evidence that a model's listing speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from robustzoo.cards.check import lint_card
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import all_evidence, evidence_files
from robustzoo.cards.imported import Imported
from robustzoo.cards.metadata import LARGEST_CARD
from robustzoo.errors import RobustzooError
from robustzoo.leaderboard.page import size_of
from robustzoo.leaderboard.picture import Point
from robustzoo.leaderboard.rows import method_of, parameters_of
from robustzoo.registry.entries import Entry
from robustzoo.registry.recipes import Recipe
from robustzoo.untrusted_files import read_text
from robustzoo.verification.records import Record, read_records


@dataclass(frozen=True)
class Model:
    """A model folder whose card and Evidence were read and agree.

    Attributes:
        name: what to call it; `slug`: the same as a file's name.
        documents: the Evidence with its file, one for each split and subset of a dataset and threat model,
            the main one first.
        records: recorded verifications of these, newest first.
    """

    name: str
    slug: str
    folder: Path
    recipe: Recipe
    documents: Sequence[tuple[Evidence, Path]]
    card: str
    records: Sequence[Record]

    @property
    def parameters(self) -> int:
        return parameters_of(self.recipe, self.folder) or 0

    @property
    def page(self) -> str:
        return f"models/{self.slug}/index.html"


@dataclass(frozen=True)
class Line:
    """A row of the verified table; accuracies are the Evidence's own."""

    model: Model
    evidence: Evidence
    file: Path

    @property
    def link(self) -> str:
        """Path of the Evidence from the site's root."""
        return f"models/{self.model.slug}/evidence/{quote(self.file.name)}"

    @property
    def dataset(self) -> str:
        """The dataset, with its split where that is not the test split."""
        stated = self.evidence.doc["dataset"]
        return stated["id"] if stated["split"] == "test" else f"{stated['id']} {stated['split']}"

    @property
    def records(self) -> tuple[Record, ...]:
        """The recorded verifications of what this row states."""
        return tuple(record for record in self.model.records if record.is_about(self.evidence))

    def to_json(self) -> dict[str, Any]:
        clean, robust, recipe = self.evidence.clean_accuracy, self.evidence.robust_accuracy, self.model.recipe
        dataset = self.evidence.doc["dataset"]
        return {
            "kind": "verified",
            "name": self.model.name,
            "dataset": dataset["id"],
            "split": dataset["split"],
            "subset": dataset["subset"],
            "threat_model": str(self.evidence.threat_model),
            "architecture": recipe.architecture,
            "method": method_of(recipe.name),
            "extra_data": recipe.extra_data or "none",
            "parameters": self.model.parameters,
            "parameters_class": size_of(self.model.parameters),
            "clean": clean.to_json(),
            "robust": robust.to_json(),
            "protocol": self.evidence.doc["protocol"]["name"],
            "weights_sha256": self.evidence.doc["model"]["sha256"],
            "page": self.model.page,
            "evidence": self.link,
            "verified_by": [record.to_json() for record in self.records],
        }

    def point(self, row: str, rank: int) -> Point:
        clean, robust = self.evidence.clean_accuracy, self.evidence.robust_accuracy
        return Point(
            row=row,
            rank=rank,
            name=self.model.name,
            href=self.model.page,
            clean=100 * clean.value,
            robust=100 * robust.value,
            clean_interval=(100 * clean.low, 100 * clean.high),
            robust_interval=(100 * robust.low, 100 * robust.high),
        )


def read_model(folder: Path, name: str | None = None) -> Model:
    """A model folder for the page, its card held against recipe and Evidence.

    name: default: that of its recipe, and the folder's.

    Raises:
        RobustzooError: no card or no Evidence, Evidence of other weights, or a card that they do not give.
    """
    from robustzoo.models import ModelFolder

    held = ModelFolder(folder)
    recipe = held.config.recipe
    if isinstance(recipe, Imported):
        raise RobustzooError(
            f"{recipe.name} was imported, and the page is of models with a recipe; leave it out"
        )
    name = name or f"{recipe.name} ({folder.resolve().name})"
    files = evidence_files(folder)
    if not files:
        raise RobustzooError(f"{folder} has no evidence: measure with `robustzoo evaluate {folder}`")
    main_first = all_evidence(folder)
    by_bytes = {Evidence.load(file, validate=False).deterministic_bytes(): file for file in files}
    documents: dict[tuple[str, ...], tuple[Evidence, Path]] = {}
    for evidence in main_first:
        if evidence.doc["model"]["sha256"] != held.sha256:
            raise RobustzooError(f"{folder}: its evidence is about other weights; evaluate these again")
        about = (evidence.doc["dataset"][key] for key in ("id", "split", "subset"))
        key = (*about, str(evidence.threat_model))
        documents.setdefault(key, (evidence, by_bytes[evidence.deterministic_bytes()]))
    try:
        card = read_text(folder / "README.md", LARGEST_CARD)
    except (OSError, ValueError) as error:
        raise RobustzooError(
            f"{folder} has no card: {error}; write it with `robustzoo card {folder}`"
        ) from error
    if problems := lint_card(card, recipe, main_first):
        raise RobustzooError(f"{folder}: the card is not good: {problems[0]}; see `robustzoo card {folder}`")
    return Model(
        name=name,
        slug="".join(c if c.isalnum() or c in "._-" else "-" for c in name),
        folder=folder,
        recipe=recipe,
        documents=tuple(documents.values()),
        card=card,
        records=tuple(
            record
            for record in read_records(folder, held.sha256)
            if any(record.is_about(evidence) for evidence, _ in documents.values())
        ),
    )


def models_of(published: Iterable[Entry], folders: Iterable[Path]) -> list[Model]:
    """The registry's models that are on this machine, and those in folders.

    Raises:
        RobustzooError: as `read_model`; two models of one name.
    """
    found = []
    for item in published:
        if item.weights is not None and item.weights.folder is not None and item.weights.folder.is_dir():
            found.append(read_model(item.weights.folder, item.name))
    found += map(read_model, folders)
    slugs = [model.slug for model in found]
    if twice := next((slug for slug in slugs if slugs.count(slug) > 1), None):
        raise RobustzooError(f"two models would both be {twice} on the page; rename one of the folders")
    return found
