"""What the Evidence of one model says together: what a folder holds, the main one, and the best known."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import ENSEMBLES, EvidenceError
from robustzoo.cards.statistics import Accuracy
from robustzoo.errors import RobustzooError
from robustzoo.registry.entries import Entry
from robustzoo.registry.threat_model import ThreatModel
from robustzoo.streams import one_line


def evidence_files(folder: str | Path) -> list[Path]:
    """The evidence files of a model folder, sorted by name; none where it has no folder `evidence`.

    Raises:
        OSError: the folder cannot be looked into. (Path.glob would find nothing there.)
        EvidenceError: a file whose name is no printable text.
    """
    place = Path(folder, "evidence")
    try:
        with os.scandir(place) as found:
            files = sorted(place / entry.name for entry in found if entry.name.endswith(".json"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    for file in files:
        if not file.name.isprintable():
            raise EvidenceError("the file's name", f"{one_line(file.name)} is not printable text; rename it")
    return files


def main_evidence(folder: str | Path, *, validate: bool = True) -> Evidence | None:
    """The evidence that listings speak of: the first of `all_evidence`.

    None where the folder has no evidence.

    Raises:
        EvidenceError: a malformed file in the folder's `evidence/`.
        OSError: as `evidence_files`.
    """
    return next(iter(all_evidence(folder, validate=validate)), None)


def all_evidence(folder: str | Path, *, validate: bool = True) -> list[Evidence]:
    """Every evidence of a folder, the main one first: a card states all, so that none hides another.

    Training images come last; aa-standard comes before aa-plus, on the most images first, and before other
    attacks, of which the lowest robust accuracy comes first.

    Raises:
        EvidenceError: a malformed file in the folder's `evidence/`, or a shard.
        OSError: as `evidence_files`.
    """
    paths = evidence_files(folder)
    found = [Evidence.load(path, validate=validate) for path in paths]
    return sorted(found, key=_rank)


def _rank(evidence: Evidence) -> tuple[float, ...]:
    name, n = evidence.doc["protocol"]["name"], evidence.doc["counts"]["n"]
    robust = evidence.robust_accuracy.value
    strength = ENSEMBLES.index(name) if name in ENSEMBLES else len(ENSEMBLES)
    of_training = evidence.doc["dataset"]["split"] == "train"
    if name in ENSEMBLES:
        return (of_training, strength, -n, robust)
    return (of_training, strength, robust, -n)  # weak attacks on many images hide no stronger ones on few


def evidence_documents(folder: Path) -> list[tuple[Evidence, Path]]:
    """Every Evidence of the folder with its file. Raises: RobustzooError for none, EvidenceError."""
    paths = evidence_files(folder)
    if not paths:
        raise RobustzooError(
            f"{folder / 'evidence'} holds no Evidence (*.json); expected what the card's numbers come from: "
            f"get the complete model folder, or measure with `robustzoo evaluate {folder}`"
        )
    return [(Evidence.load(path), path) for path in paths]


def covers(new: Evidence, old: Evidence) -> bool:
    """Whether an evaluation says of a model all that another says: the same threat model, all of its images,
    and every attack of it at least as long (aa-standard is as strong as any but aa-plus)."""
    a, b = new.doc, old.doc
    if new.threat_model != old.threat_model or not set(b["dataset"]["indices"]) <= {*a["dataset"]["indices"]}:
        return False
    if any(a["dataset"][key] != b["dataset"][key] for key in ("id", "split")):
        return False
    ours, theirs = (
        ENSEMBLES.index(name) if name in ENSEMBLES else -1
        for name in (a["protocol"]["name"], b["protocol"]["name"])
    )
    if ours >= max(theirs, 0):
        return True
    attacks = {_kind(member): member for member in a["protocol"]["members"]}
    return all(
        _kind(member) in attacks
        and all(attacks[_kind(member)][key] >= member[key] for key in ("iterations", "restarts", "targets"))
        for member in b["protocol"]["members"]
    )


def _kind(member: dict[str, Any]) -> str:
    """The attack without its length, which pgd-K carries in its name."""
    return re.sub(r"^pgd-\d+$", "pgd", member["attack"])


def published_evidence(item: Entry) -> Evidence | None:
    """The main evidence of an entry whose folder is on this machine, unchecked: listings must be quick."""
    folder = item.weights.folder if item.weights is not None else None
    return None if folder is None else main_evidence(folder, validate=False)


@dataclass(frozen=True)
class BestKnown:
    """An upper bound on the robust accuracy that no single evaluation need have found.

    An image counts as robust where every evaluation of these images under this threat model left it so.
    That is the outcome of no protocol, and never an AutoAttack number.
    """

    threat_model: ThreatModel
    subset: str
    protocols: tuple[str, ...]
    accuracy: Accuracy

    def to_json(self) -> dict[str, Any]:
        """For a card's metadata."""
        return {
            "threat_model": str(self.threat_model),
            "subset": self.subset,
            "protocols": list(self.protocols),
            "correct": self.accuracy.correct,
            "n": self.accuracy.n,
        }


def best_known(documents: Sequence[Evidence]) -> list[BestKnown]:
    """One for each threat model and set of images that several documents are about, in their order.

    Args:
        documents: Evidence of the same weights. A single one about its images is its own best known, and is
            left out.
    """
    found = []
    for group in _groups(documents):
        if len(group) > 1:
            robust = set.intersection(*({v.id for v in e.verdicts if v.robust} for e in group))
            doc = group[0].doc
            place = f"{doc['dataset']['id']} {doc['dataset']['split']}, {doc['dataset']['subset']}"
            names = tuple(dict.fromkeys(e.doc["protocol"]["name"] for e in group))
            accuracy = Accuracy.of(len(robust), doc["counts"]["n"])
            found.append(BestKnown(group[0].threat_model, place, names, accuracy))
    return found


def _groups(documents: Iterable[Evidence]) -> list[list[Evidence]]:
    groups: dict[tuple[str, str, tuple[int, ...]], list[Evidence]] = {}
    for document in documents:
        dataset = document.doc["dataset"]
        key = (str(document.threat_model), dataset["digest"], tuple(dataset["indices"]))
        groups.setdefault(key, []).append(document)
    return list(groups.values())
