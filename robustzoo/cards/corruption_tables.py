"""Common corruptions in an Evidence: how many images stay right under each of them, as tables for people.

Source: Hendrycks & Dietterich 2019, "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations". An image is robust to `corruptions:S` where it is right clean and under all of them up to
severity S.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from robustzoo.cards.statistics import Accuracy
from robustzoo.registry.threat_model import CORRUPTION_NAMES, CORRUPTIONS

if TYPE_CHECKING:
    from robustzoo.cards.evidence import Evidence


def is_about(evidence: Evidence) -> bool:
    """Whether it is about corruptions, and not about attacks."""
    return "corruptions" in evidence.doc


def mean_accuracy(evidence: Evidence) -> float:
    """Accuracy in [0, 1] over all corruptions and severities, each counted alike."""
    counts = [c for row in evidence.doc["corruptions"]["correct"].values() for c in row]
    return sum(counts) / (len(counts) * evidence.doc["counts"]["n"])


def broken_by(evidence: Evidence) -> dict[str, int]:
    """Corruption -> images that it was the first to break, whatever the severity."""
    doc = evidence.doc
    broken = doc["counts"]["broken_by"]
    found: dict[str, int] = {}
    for member in doc["protocol"]["members"]:
        name = member["corruption"]
        found[name] = found.get(name, 0) + broken.get(member["attack"], 0)
    return found


def rows(evidence: Evidence) -> list[list[str]]:
    """A header, a row of correct images for each corruption, and one of means, in percent."""
    stated, n = evidence.doc["corruptions"]["correct"], evidence.doc["counts"]["n"]
    severities = len(next(iter(stated.values())))
    header = ["corruption", *(f"severity {s}" for s in range(1, severities + 1)), "mean"]
    body = [[name, *map(str, row), _percent(sum(row), n * len(row))] for name, row in stated.items()]
    columns = list(zip(*stated.values(), strict=True))
    means = [_percent(sum(column), n * len(column)) for column in columns]
    return [header, *body, ["mean", *means, f"{100 * mean_accuracy(evidence):.1f} %"]]


def sentence(evidence: Evidence) -> str:
    """How it was measured, and what the table holds."""
    doc = evidence.doc
    dataset, n = doc["dataset"], doc["counts"]["n"]
    worst = Accuracy.of(doc["counts"]["robust_correct"], n)
    return (
        f"Common corruptions (Hendrycks and Dietterich 2019) of {n} images ({dataset['id']}, "
        f"{dataset['split']} split, subset {dataset['subset']}), {doc['corruptions']['source']}: correct "
        f"images of {n} under each. The mean over all is {100 * mean_accuracy(evidence):.1f} %; right clean "
        f"and under every one of them are {worst.percent}. No attack was run."
    )


def problems(doc: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, problem) for each fact of the section that contradicts the rest of the document."""
    stated, about = doc.get("corruptions"), doc["threat_model"]["norm"] == CORRUPTIONS
    if (stated is not None) != about:
        yield "corruptions", "the section goes with the threat model corruptions, and no other has it"
    if stated is None or not about:
        return
    severity, counts = int(doc["threat_model"]["epsilon"]), doc["counts"]
    for name, row in stated["correct"].items():
        if len(row) != severity:
            yield f"corruptions.correct.{name}", f"{len(row)} severities, the threat model has {severity}"
        elif min(row) < counts["robust_correct"] or max(row) > counts["n"]:
            yield (
                f"corruptions.correct.{name}",
                f"counts from {min(row)} to {max(row)}, expected {counts['robust_correct']} to {counts['n']}",
            )
    if tuple(stated["correct"]) != tuple(sorted(CORRUPTION_NAMES)):
        yield "corruptions.correct", f"expected the corruptions {', '.join(CORRUPTION_NAMES)}"


def _percent(correct: int, n: int) -> str:
    return f"{100 * correct / n:.1f} %"
