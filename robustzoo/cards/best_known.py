"""The lowest robust accuracy that all evidence of one model shows together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.statistics import Accuracy
from robustzoo.registry.threat_model import ThreatModel


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
