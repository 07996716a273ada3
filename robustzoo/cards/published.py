"""Which of a model folder's evidence its card and the listings speak of."""

from __future__ import annotations

from pathlib import Path

from robustzoo.cards.evidence import Evidence
from robustzoo.registry.entries import Entry


def main_evidence(folder: str | Path, *, validate: bool = True) -> Evidence | None:
    """The evidence that a folder's card states: aa-standard before other protocols, then the most images.

    None where the folder has no evidence.

    Raises:
        EvidenceError: a malformed file in the folder's `evidence/`.
    """
    found = [
        Evidence.load(path, validate=validate) for path in sorted(Path(folder, "evidence").glob("*.json"))
    ]
    return min(
        found,
        key=lambda e: (e.doc["protocol"]["name"] != "aa-standard", -e.doc["counts"]["n"]),
        default=None,
    )


def published_evidence(item: Entry) -> Evidence | None:
    """The main evidence of an entry whose folder is on this machine, unchecked: listings must be quick."""
    folder = item.weights.folder if item.weights is not None else None
    return None if folder is None else main_evidence(folder, validate=False)
