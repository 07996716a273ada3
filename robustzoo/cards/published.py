"""Which of a model folder's evidence its card and the listings speak of."""

from __future__ import annotations

import os
from pathlib import Path

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import EvidenceError, shard_problem
from robustzoo.registry.entries import Entry
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
    """The evidence that listings speak of: aa-standard before other protocols, then the most images.

    None where the folder has no evidence.

    Raises:
        EvidenceError: a malformed file in the folder's `evidence/`.
        OSError: as `evidence_files`.
    """
    return next(iter(all_evidence(folder, validate=validate)), None)


def all_evidence(folder: str | Path, *, validate: bool = True) -> list[Evidence]:
    """Every evidence of a folder, the main one first: a card states all, so that none hides another.

    Raises:
        EvidenceError: a malformed file in the folder's `evidence/`, or a shard.
        OSError: as `evidence_files`.
    """
    paths = evidence_files(folder)
    found = [Evidence.load(path, validate=validate) for path in paths]
    for path, evidence in zip(paths, found, strict=True):
        if problem := shard_problem(evidence.doc):
            raise EvidenceError("shard", f"{problem} (the file: {path})")
    return sorted(found, key=lambda e: (e.doc["protocol"]["name"] != "aa-standard", -e.doc["counts"]["n"]))


def covers(new: Evidence, old: Evidence) -> bool:
    """Whether an evaluation says of a model all that another says: the same threat model, all of its images,
    and every attack of it at least as long (aa-standard is as strong as any but aa-plus)."""
    a, b = new.doc, old.doc
    if new.threat_model != old.threat_model or not set(b["dataset"]["indices"]) <= {*a["dataset"]["indices"]}:
        return False
    if any(a["dataset"][key] != b["dataset"][key] for key in ("id", "split")):
        return False
    if a["protocol"]["name"] in ("aa-standard", "aa-plus") and b["protocol"]["name"] != "aa-plus":
        return True
    attacks = {member["attack"]: member for member in a["protocol"]["members"]}
    return all(
        member["attack"] in attacks
        and all(
            attacks[member["attack"]][key] >= member[key] for key in ("iterations", "restarts", "targets")
        )
        for member in b["protocol"]["members"]
    )


def published_evidence(item: Entry) -> Evidence | None:
    """The main evidence of an entry whose folder is on this machine, unchecked: listings must be quick."""
    folder = item.weights.folder if item.weights is not None else None
    return None if folder is None else main_evidence(folder, validate=False)
