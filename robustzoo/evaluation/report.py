"""A text report of an Evidence, for people."""

from __future__ import annotations

from robustzoo.cards.evidence import Evidence
from robustzoo.evaluation.guards import masking_warning
from robustzoo.evaluation.progress import duration

# Square using no gradient, it should find next to nothing after attacks that do: 0.2 points at most.
_MASKING = 0.002


def report(evidence: Evidence) -> str:
    """What was measured, on what, what came out and what it cost; several lines, no final newline."""
    doc = evidence.doc
    counts, dataset, run = doc["counts"], doc["dataset"], doc["run"]
    lines = [
        f"{doc['model']['name']} under {evidence.threat_model}, protocol {doc['protocol']['name']}",
        f"{dataset['id']} {dataset['split']}, {dataset['subset']}: {counts['n']} images, seed {doc['seed']}",
        "",
        f"clean accuracy   {evidence.clean_accuracy}",
        f"robust accuracy  {evidence.robust_accuracy}",
        "                 worst case over the whole protocol, an upper bound on the true value",
        "",
        f"{'attack':<12}{'broken':>8}{'robust after it':>18}",
        f"{'clean':<12}{'':>8}{counts['clean_correct']:>18}",
    ]
    left = counts["clean_correct"]
    for member in doc["protocol"]["members"]:
        broken = counts["broken_by"].get(member["attack"], 0)
        left -= broken
        lines.append(f"{member['attack']:<12}{broken:>8}{left:>18}")
    square, n = counts["broken_by"].get("square", 0), counts["n"]
    if square > _MASKING * n and len(doc["protocol"]["members"]) > 1:
        lines.append(
            f"flag: Square broke {square} images that every gradient attack left: gradients may be masked"
        )
    masked = masking_warning(run.get("zero_gradients", {}), counts["clean_correct"])
    if masked is not None:
        lines.append(f"flag: {masked}")
    lines += ["", _witnesses(doc), _cost(doc), _machine(run, doc["micro_batch_size"])]
    return "\n".join(lines)


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


def _machine(run: dict, micro_batch_size: int) -> str:
    processes = f"{run['workers']} process{'es' if run['workers'] > 1 else ''}"
    version = run["versions"].get("torch", "unknown version")
    return f"machine: {run['device']}, {processes}, micro-batch {micro_batch_size}, torch {version}"
