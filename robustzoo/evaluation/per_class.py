"""Accuracy class by class: where a model is weak."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.statistics import Accuracy

# More classes than these are summed up by their weakest ones.
_SHOWN = 20
_WEAKEST = 8


@dataclass(frozen=True)
class ClassAccuracy:
    """Clean and robust accuracy on the images of one class, with exact 95 % intervals."""

    label: int
    clean: Accuracy
    robust: Accuracy

    def to_json(self) -> dict[str, Any]:
        return {"label": self.label, "clean": self.clean.to_json(), "robust": self.robust.to_json()}


def per_class(evidence: Evidence) -> list[ClassAccuracy]:
    """One row for each class that has images, by class id."""
    total, clean, robust = Counter(), Counter(), Counter()
    for verdict in evidence.verdicts:
        total[verdict.label] += 1
        clean[verdict.label] += verdict.clean_correct
        robust[verdict.label] += verdict.robust
    return [
        ClassAccuracy(label, Accuracy.of(clean[label], n), Accuracy.of(robust[label], n))
        for label, n in sorted(total.items())
    ]


def chosen(rows: list[ClassAccuracy]) -> tuple[list[ClassAccuracy], str]:
    """The rows to print and what to call them: all of few, else the least robust."""
    if len(rows) <= _SHOWN:
        return rows, "per class"
    weakest = sorted(rows, key=lambda row: (row.robust.value, row.label))[:_WEAKEST]
    return weakest, f"the {_WEAKEST} least robust of {len(rows)} classes"
