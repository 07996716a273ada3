"""Several evaluations at once: a curve over epsilon, a table across norms, and the ranks of a launcher."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from robustzoo import atomic_files
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.statistics import Accuracy
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.checks import check_threat_model
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.shards import Rank, Shard, join
from robustzoo.evaluation.terms import place_of, reserved, with_witnesses, write_evidence
from robustzoo.registry import ThreatModel

_POLL_SECONDS = 0.5


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
        return "\n".join([*_part_note(first), title, *_lines("epsilon", rows)])


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
        RobustzooError: no epsilon, or one given twice; otherwise as `evaluate`.
        ThreatModelError: an epsilon that is none.
    """
    norm = check_threat_model(threat_model, model).norm
    if not all(str(e).strip() for e in epsilons):
        raise RobustzooError(
            f"epsilons are {','.join(epsilons)!r}; expected numbers with one comma between two"
        )
    chosen = sorted((ThreatModel.parse(f"{norm}:{e}") for e in epsilons), key=lambda t: t.epsilon)
    if not chosen or len({t.epsilon for t in chosen}) < len(chosen):
        raise RobustzooError(
            f"epsilons are {', '.join(epsilons) or 'empty'}; expected each once, and at least one"
        )
    points = _each(chosen, rank, (model, data), {"protocol": protocol, **options}, out, carry=True)
    curve = None if points is None else Curve(points)
    if curve is not None and out is not None and options.get("shard") is None:
        _write_table(curve.to_json(), Path(out) / f"curve-{norm}.json")
    return curve


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
        return "\n".join([*_part_note(first), title, *_lines("threat model", rows)])


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
        RobustzooError: none, or one given twice; otherwise as `evaluate`.
    """
    chosen = [ThreatModel.parse(threat) for threat in threat_models]
    if not chosen or len(set(chosen)) < len(chosen):
        raise RobustzooError(
            f"threat models are {', '.join(map(str, threat_models)) or 'empty'}; expected each once, and at "
            "least one"
        )
    found = _each(chosen, rank, (model, data), {"protocol": protocol, **options}, out)
    table = None if found is None else CrossNorm(found)
    if table is not None and out is not None and options.get("shard") is None:
        _write_table(table.to_json(), Path(out) / "cross-norm.json")
    return table


def _each(
    threat_models: Sequence[ThreatModel],
    rank: Rank | None,
    measured: tuple[nn.Module, Any],
    options: dict[str, Any],
    out: str | Path | None,
    *,
    carry: bool = False,
) -> tuple[Evidence, ...] | None:
    """`evaluate_on_rank` under each, in the folder of each below `out`; None on a rank other than 0.

    Args:
        measured: model and data.
        carry: what one broke counts as broken under the next.
    """
    found, mine = [], None
    for threat_model in threat_models:
        place = None if out is None else folder_of(threat_model, Path(out))
        more = {**options, "smaller": mine} if carry else options
        mine, whole = evaluate_on_rank(rank, *measured, threat_model, out=place, **more)
        found.append(whole)
    return None if any(whole is None for whole in found) else tuple(found)


def folder_of(threat_model: ThreatModel, out: Path) -> Path:
    """Where one of several threat models of an evaluation in `out` is written."""
    return out / f"{threat_model.norm}-{threat_model.epsilon_text.replace('/', '_')}"


def _part_note(first: Evidence) -> list[str]:
    """The lines that head a table whose rows are shards; none for whole results."""
    return [] if first.caveat is None else [f"PART OF A RESULT: {first.caveat}", ""]


def _lines(head: str, rows: Sequence[tuple[str, Accuracy]]) -> list[str]:
    """The lines of a table; its first column is as wide as its longest name."""
    wide = max(len(head), *(len(name) for name, _ in rows)) + 2
    return [f"{head:<{wide}}accuracy", *(f"{name:<{wide}}{accuracy}" for name, accuracy in rows)]


def _write_table(document: dict[str, Any], path: Path) -> None:
    atomic_files.write_text(path, json.dumps(document, indent=1, sort_keys=True) + "\n")


def evaluate_on_rank(
    rank: Rank | None,
    *arguments: Any,
    out: str | Path | None = None,
    progress: bool | Callable[[dict], None] = True,
    **options: Any,
) -> tuple[Evidence, Evidence | None]:
    """`evaluate` on this rank's share of the images; all ranks must be called alike.

    Ranks speak through `out` alone, so that nothing but a common folder is needed. Their shards stay there:
    one that an earlier launch finished is not computed again, one that it began goes on.

    Args:
        rank: this process among the launcher's; None is `evaluate` itself.
        arguments, options: as of `evaluate`.
        out: a folder that all ranks see.
        progress: as of `evaluate`, on rank 0; the others are silent.

    Returns:
        This rank's own Evidence, and the whole Evidence on rank 0 (and without ranks), None on the others.

    Raises:
        RobustzooError: no `out`, a shard asked for beside the ranks', `restart` where a finished part lies,
            or as `evaluate`.
    """
    if rank is None:
        found = evaluate(*arguments, out=out, progress=progress, **options)
        return found, found
    if out is None:
        raise RobustzooError(
            f"{rank.count} ranks would each keep a part of the result in memory; expected a folder that all "
            "of them see: out=..., on the command line --out DIR"
        )
    if options.get("shard") is not None:
        raise RobustzooError(
            "a shard and ranks were both given; expected --shard in single jobs, or a launcher"
        )
    out, shown = Path(out), progress if rank.index == 0 else False
    place = rank.shard.folder(out)
    if options.get("restart") and any((place / "evidence").glob("*.json")):
        raise RobustzooError(
            f"{place} holds a finished part, and ranks cannot tell the parts of this launch from older ones: "
            f"delete the folders {out}/shard-*-of-{rank.count} first, or choose another folder"
        )
    options = {**options, "shard": rank.shard}
    mine = evaluate(*arguments, out=out, progress=shown, **options)
    if rank.index > 0:
        return mine, None
    paths = [place_of(mine.key(), Shard(i + 1, rank.count).folder(out)) for i in range(rank.count)]
    # A rank that fails makes the launcher end this one too, so that the wait has an end.
    while not all(path.exists() for path in paths):
        time.sleep(_POLL_SECONDS)
    whole = join([with_witnesses(path) for path in paths], paths)
    with reserved(out):
        write_evidence(whole, out)
    return mine, whole
