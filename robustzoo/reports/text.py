"""A text report of an Evidence, for people: counts with intervals, per attack and per class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robustzoo.cards import corruption_tables
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import images_problem
from robustzoo.cards.head import stages
from robustzoo.cards.holdings import best_known
from robustzoo.cards.passages import transform_text
from robustzoo.cards.signs import masking_signs
from robustzoo.cards.statistics import Accuracy
from robustzoo.registry.describe import class_names
from robustzoo.streams import duration, one_line

__all__ = ["ClassAccuracy", "chosen", "per_class", "report", "stages"]


def report(
    evidence: Evidence, *, details: bool = False, others: Sequence[Evidence] = (), attacks: bool = True
) -> str:
    """What was measured, on what, what came out and what it cost; several lines, no final newline.

    Args:
        details: with a table of classes, and whether there are signs of masking or not.
        others: more Evidence of the same model, whose clean counts are compared.
        attacks: with a table of what each attack left.
    """
    doc = evidence.doc
    counts, dataset = doc["counts"], doc["dataset"]
    lines = [
        *([] if evidence.caveat is None else [f"PART OF A RESULT: {evidence.caveat}", ""]),
        f"{doc['model']['name']} under {evidence.threat_model}, protocol {doc['protocol']['name']}",
        f"{dataset['id']} {dataset['split']}, {dataset['subset']}: {counts['n']} images, seed {doc['seed']}",
        *([] if (how := transform_text(evidence)) is None else [f"images {how}"]),
        "",
        f"clean accuracy   {evidence.clean_accuracy}",
        f"robust accuracy  {evidence.robust_accuracy}",
        "                 worst case over the whole protocol, an upper bound on the true value",
        *_by_attack(evidence, attacks),
    ]
    if (images := images_problem(doc)) is not None:
        lines.append(f"flag: these are not the images of that name: {images}")
    signs = masking_signs(evidence, others)
    lines += [f"flag: {sign}" for sign in signs]
    lines += _best_known(evidence, others)
    if details:
        if not signs:
            lines.append("no sign of gradient masking in these counts")
        lines += ["", *_classes(evidence)]
    lines += ["", _witnesses(doc), _cost(doc), _machine(evidence)]
    return "\n".join(map(one_line, lines))


def _by_attack(evidence: Evidence, attacks: bool) -> list[str]:
    """What each attack left, or of corruptions each of those."""
    if corruption_tables.is_about(evidence):
        return ["", *_corruptions(evidence)]
    return _attacks(evidence) if attacks else []


def _attacks(evidence: Evidence) -> list[str]:
    broken = evidence.doc["counts"]["broken_by"]
    (_, clean), *rest = stages(evidence)
    return [
        "",
        f"{'attack':<12}{'broken':>8}{'robust after it':>18}",
        f"{'clean':<12}{'':>8}{clean.correct:>18}",
        *(f"{attack:<12}{broken.get(attack, 0):>8}{left.correct:>18}" for attack, left in rest),
    ]


def _corruptions(evidence: Evidence) -> list[str]:
    """Images that are right under each, by severity."""
    lines = [
        f"{name:<19}" + "".join(f"{text.removeprefix('severity '):>9}" for text in row)
        for name, *row in corruption_tables.rows(evidence)
    ]
    return [f"correct of {evidence.doc['counts']['n']}, {evidence.doc['corruptions']['source']}", *lines]


def _best_known(evidence: Evidence, others: Sequence[Evidence]) -> list[str]:
    same = [e for e in others if e.doc["dataset"]["digest"] == evidence.doc["dataset"]["digest"]]
    return [
        f"best known       {lowest.accuracy}: what {' and '.join(lowest.protocols)} leave together on these "
        "images (no AutoAttack number)"
        for lowest in best_known([evidence, *same])
        if lowest.threat_model == evidence.threat_model
    ]


def _classes(evidence: Evidence) -> list[str]:
    rows, title = chosen(per_class(evidence))
    width = max(12, *(len(row.name) + 1 for row in rows), len(title) + 2)
    lines = [
        f"{title + ':':<{width}}{'images':>8}{'clean':>8}{'robust':>8}   95 % interval of the robust accuracy"
    ]
    return lines + [
        f"{row.name:<{width}}{row.clean.n:>8}{row.clean.correct:>8}{row.robust.correct:>8}   "
        f"{row.robust.interval}"
        for row in rows
    ]


def _witnesses(doc: dict) -> str:
    stored, broken = doc["witnesses"], sum(doc["counts"]["broken_by"].values())
    if not broken:
        return "witnesses: none, since no image was broken"
    if stored is None:
        return "witnesses: not stored (with a folder to write to, each broken image gets one)"
    return f"witnesses: {stored['count']} in {stored['file']}"


def _cost(doc: dict) -> str:
    n, passes = doc["counts"]["n"], doc["passes"]
    return (
        f"cost: {passes['forward']:,} forwards and {passes['backward']:,} backwards "
        f"({passes['forward'] / n:,.0f} and {passes['backward'] / n:,.0f} per image), "
        f"{duration(doc['run']['wall_seconds'])}"
    )


def _machine(evidence: Evidence) -> str:
    run = evidence.doc["run"]
    processes = f"{run['workers']} process{'es' if run['workers'] > 1 else ''}"
    version = run["versions"].get("torch", "unknown version")
    return (
        f"machine: {run['device']}, {processes}, micro-batch {evidence.doc['micro_batch_size']}, "
        f"{evidence.arithmetic}, torch {version}"
    )


# More classes than these are summed up by their weakest ones.
_SHOWN = 20
_WEAKEST = 8


@dataclass(frozen=True)
class ClassAccuracy:
    """Clean and robust accuracy on the images of one class, with exact 95 % intervals. name: what the class
    is called, else its number."""

    label: int
    clean: Accuracy
    robust: Accuracy
    name: str

    def to_json(self) -> dict[str, Any]:
        numbers = {"label": self.label, "clean": self.clean.to_json(), "robust": self.robust.to_json()}
        return numbers | ({} if self.name == str(self.label) else {"name": self.name})


def per_class(evidence: Evidence) -> list[ClassAccuracy]:
    """One row for each class that has images, by class id."""
    total, clean, robust = Counter(), Counter(), Counter()
    for verdict in evidence.verdicts:
        total[verdict.label] += 1
        clean[verdict.label] += verdict.clean_correct
        robust[verdict.label] += verdict.robust
    dataset = evidence.doc["dataset"]
    names = dict(enumerate(dataset.get("classes") or class_names(dataset["id"]) or ()))
    return [
        ClassAccuracy(
            label, Accuracy.of(clean[label], n), Accuracy.of(robust[label], n), names.get(label, str(label))
        )
        for label, n in sorted(total.items())
    ]


def chosen(rows: list[ClassAccuracy]) -> tuple[list[ClassAccuracy], str]:
    """The rows to print and what to call them: all of few, else the least robust."""
    if len(rows) <= _SHOWN:
        return rows, "per class"
    weakest = sorted(rows, key=lambda row: (row.robust.value, row.label))[:_WEAKEST]
    return weakest, f"the {_WEAKEST} least robust of {len(rows)} classes"
