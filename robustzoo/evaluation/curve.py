"""Robust accuracy over epsilon: one evaluation per epsilon, each on what the smaller ones left robust."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from robustzoo.cards.evidence import Evidence
from robustzoo.evaluation.arguments import check_threat_model
from robustzoo.evaluation.guards import GuardError
from robustzoo.evaluation.several import evaluate_one, part_note, write_table
from robustzoo.evaluation.sharding import Rank
from robustzoo.registry import ThreatModel


@dataclass(frozen=True)
class Curve:
    """Evidence by ascending epsilon, of one model, norm, protocol and set of images."""

    points: tuple[Evidence, ...]

    def to_json(self) -> dict[str, Any]:
        """{"norm", "protocol", "clean_accuracy", "points": [{"epsilon", "robust_accuracy"}]}, ascending."""
        first = self.points[0]
        return {
            "norm": first.threat_model.norm,
            "protocol": first.doc["protocol"]["name"],
            "clean_accuracy": first.clean_accuracy.to_json(),
            "points": [
                {
                    "epsilon": point.threat_model.epsilon_text,
                    "robust_accuracy": point.robust_accuracy.to_json(),
                }
                for point in self.points
            ],
        }

    def text(self) -> str:
        """A table for people; epsilon 0 is the clean accuracy."""
        first = self.points[0]
        rows = [("0 (clean)", first.clean_accuracy)]
        rows += [(point.threat_model.epsilon_text, point.robust_accuracy) for point in self.points]
        title = f"{first.doc['model']['name']}, {first.threat_model.norm}, {first.doc['protocol']['name']}"
        wide = max(len(epsilon) for epsilon, _ in rows) + 2
        lines = [title, f"{'epsilon':<{wide}}accuracy", *(f"{e:<{wide}}{a}" for e, a in rows)]
        return "\n".join([*part_note(first), *lines])


def evaluate_curve(
    model: nn.Module,
    data: Any,
    epsilons: Sequence[str],
    threat_model: str | ThreatModel | None = None,
    protocol: str = "aa-standard",
    *,
    out: str | Path | None = None,
    rank: Rank | None = None,
    **options: Any,
) -> Curve | None:
    """Evaluate at every epsilon, ascending: a point that fools at one of them fools at every larger one, so
    that each next one attacks only the images that are still robust.

    Robust accuracy therefore never rises along the curve. An image carried over is counted as broken by what
    broke it first, and its Evidence names that epsilon.

    Args:
        epsilons: as text, in any order, for example ("1/255", "2/255").
        threat_model: gives the norm; default: the model's own.
        out: folder for the curve, `curve-<norm>.json`, and for each epsilon's Evidence, in
            `<norm>-<epsilon>/` with `_` for the fraction bar. What is finished there is not computed again.
        rank: this process among those of a launcher.
        options: as of `evaluate`, for every epsilon.

    Returns:
        The curve; None on a rank other than 0.

    Raises:
        GuardError: no epsilon, or one given twice; otherwise as `evaluate`.
        ThreatModelError: an epsilon that is none.
    """
    norm = check_threat_model(threat_model, model).norm
    if not all(str(e).strip() for e in epsilons):
        raise GuardError(f"epsilons are {','.join(epsilons)!r}; expected numbers with one comma between two")
    chosen = sorted((ThreatModel.parse(f"{norm}:{e}") for e in epsilons), key=lambda t: t.epsilon)
    if not chosen or len({t.epsilon for t in chosen}) < len(chosen):
        raise GuardError(
            f"epsilons are {', '.join(epsilons) or 'empty'}; expected each once, and at least one"
        )
    points, smaller = [], None
    for threat in chosen:
        smaller, whole = evaluate_one(
            rank, model, data, threat, protocol, out=out, smaller=smaller, **options
        )
        points.append(whole)
    if any(point is None for point in points):
        return None
    curve = Curve(tuple(points))
    if out is not None and not curve.points[0].is_shard:
        write_table(curve.to_json(), Path(out) / f"curve-{norm}.json")
    return curve
