"""One model under several threat models: accuracy under each, and under all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.statistics import Accuracy
from robustzoo.evaluation.guards import GuardError
from robustzoo.evaluation.several import evaluate_one, part_note, write_table
from robustzoo.evaluation.sharding import Rank
from robustzoo.registry import ThreatModel


@dataclass(frozen=True)
class CrossNorm:
    """Evidence by threat model, of one model, protocol and set of images."""

    evidence: tuple[Evidence, ...]

    @property
    def union(self) -> Accuracy:
        """Images that withstood the protocol under every one of the threat models."""
        robust = [{v.id for v in one.verdicts if v.robust} for one in self.evidence]
        return Accuracy.of(len(set.intersection(*robust)), self.evidence[0].robust_accuracy.n)

    def to_json(self) -> dict[str, Any]:
        """{"protocol", "clean_accuracy", "robust_accuracy": {threat model: accuracy}, "union_accuracy"}"""
        first = self.evidence[0]
        return {
            "protocol": first.doc["protocol"]["name"],
            "clean_accuracy": first.clean_accuracy.to_json(),
            "robust_accuracy": {
                str(one.threat_model): one.robust_accuracy.to_json() for one in self.evidence
            },
            "union_accuracy": self.union.to_json(),
        }

    def text(self) -> str:
        """A table for people."""
        first = self.evidence[0]
        rows = [("clean", first.clean_accuracy)]
        rows += [(str(one.threat_model), one.robust_accuracy) for one in self.evidence]
        rows.append(("all of them", self.union))
        title = f"{first.doc['model']['name']}, {first.doc['protocol']['name']}"
        return "\n".join([*part_note(first), title, *_table(rows)])


def _table(rows: Sequence[tuple[str, Accuracy]]) -> list[str]:
    """The lines of the table; its first column is as wide as its longest name."""
    head = "threat model"
    wide = max(len(head), *(len(name) for name, _ in rows)) + 2
    return [f"{head:<{wide}}accuracy", *(f"{name:<{wide}}{accuracy}" for name, accuracy in rows)]


def evaluate_threat_models(
    model: nn.Module,
    data: Any,
    threat_models: Sequence[str | ThreatModel],
    protocol: str = "aa-standard",
    *,
    out: str | Path | None = None,
    rank: Rank | None = None,
    **options: Any,
) -> CrossNorm | None:
    """Evaluate under every threat model, on the same images.

    Args:
        threat_models: for example ("linf:8/255", "l2:1/2").
        out: folder for the table, `cross-norm.json`, and for each threat model's Evidence, in
            `<norm>-<epsilon>/` with `_` for the fraction bar. What is finished there is not computed again.
        rank: this process among those of a launcher.
        options: as of `evaluate`, for every threat model.

    Returns:
        The table; None on a rank other than 0.

    Raises:
        GuardError: none, or one given twice; otherwise as `evaluate`.
    """
    chosen = [ThreatModel.parse(threat) for threat in threat_models]
    if not chosen or len(set(chosen)) < len(chosen):
        raise GuardError(
            f"threat models are {', '.join(map(str, threat_models)) or 'empty'}; expected each once, and at "
            "least one"
        )
    found = []
    for threat in chosen:
        _, whole = evaluate_one(rank, model, data, threat, protocol, out=out, **options)
        found.append(whole)
    if any(one is None for one in found):
        return None
    table = CrossNorm(tuple(found))
    if out is not None and not table.evidence[0].is_shard:
        write_table(table.to_json(), Path(out) / "cross-norm.json")
    return table
