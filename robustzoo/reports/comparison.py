"""Two models on the same images, image by image: which of them is better, and is that more than chance."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustzoo.cards import corruption_tables
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import all_evidence
from robustzoo.cards.statistics import Paired
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.terms import QUESTION, differences
from robustzoo.streams import one_line


@dataclass(frozen=True)
class Comparison:
    """Two Evidence of the same images, threat model and protocol, with the paired tables of their
    verdicts."""

    a: Evidence
    b: Evidence
    clean: Paired
    robust: Paired

    def text(self) -> str:
        """For people, several lines, no final newline."""
        doc = self.a.doc
        dataset = doc["dataset"]
        lines = [
            f"A: {_called(self.a)}",
            f"B: {_called(self.b)}",
            f"{dataset['id']} {dataset['split']}, {dataset['subset']}: the same {doc['counts']['n']} images; "
            f"{self.a.threat_model}, {doc['protocol']['name']}",
            "",
            f"{'images':<22}{'clean':>8}{'robust':>8}",
        ]
        rows = (("both right", "both"), ("only A", "only_a"), ("only B", "only_b"), ("neither", "neither"))
        lines += [
            f"{label:<22}{getattr(self.clean, key):>8}{getattr(self.robust, key):>8}" for label, key in rows
        ]
        lines.append("")
        for what, paired, one, other in (
            ("clean", self.clean, self.a.clean_accuracy, self.b.clean_accuracy),
            ("robust", self.robust, self.a.robust_accuracy, self.b.robust_accuracy),
        ):
            low, high = paired.interval()
            lines.append(
                f"{what:<7} A {one.percent}, B {other.percent}: A - B = {100 * paired.difference:+.1f} "
                f"points (95 % interval {100 * low:+.1f} to {100 * high:+.1f}), exact McNemar p = "
                f"{paired.p_value:.2g}"
            )
        lines.append(self._verdict())
        if corruption_tables.is_about(self.a):
            lines += self._corruptions()
        if doc["seed"] != self.b.doc["seed"]:
            lines.append(
                f"note: the attacks of A drew with seed {doc['seed']}, those of B with {self.b.doc['seed']}"
            )
        return "\n".join(map(one_line, lines))

    def _corruptions(self) -> list[str]:
        """Mean accuracy over the severities of each corruption, A, B and their difference in points."""
        a, b = (e.doc["corruptions"] for e in (self.a, self.b))
        n = self.a.doc["counts"]["n"]
        lines = ["", f"{'mean over severities':<22}{'A':>8}{'B':>8}{'A - B':>8}"]
        for name, row in a["correct"].items():
            one, other = (100 * sum(counts) / (n * len(row)) for counts in (row, b["correct"][name]))
            lines.append(f"{name:<22}{one:>8.1f}{other:>8.1f}{one - other:>+8.1f}")
        one, other = (100 * corruption_tables.mean_accuracy(e) for e in (self.a, self.b))
        lines.append(f"{'all':<22}{one:>8.1f}{other:>8.1f}{one - other:>+8.1f}")
        if a["digest"] != b["digest"]:
            lines.append("note: their corrupted images are not the same pixels")
        return lines

    def _verdict(self) -> str:
        if self.robust.p_value >= 0.05:
            return "the robust accuracies differ by no more than chance explains (p >= 0.05) on these images"
        better = "A" if self.robust.difference > 0 else "B"
        return f"{better} is more robust on such images than chance explains (p < 0.05)"

    def to_json(self) -> dict[str, Any]:
        """The same for machines."""
        doc = self.a.doc
        return {
            "schema": "robustzoo.comparison/1",
            "a": doc["model"],
            "b": self.b.doc["model"],
            "threat_model": str(self.a.threat_model),
            "protocol": {key: doc["protocol"][key] for key in ("name", "digest")},
            "dataset": {key: doc["dataset"][key] for key in ("id", "split", "subset", "digest")},
            "seeds": [doc["seed"], self.b.doc["seed"]],
            "n": doc["counts"]["n"],
            "clean": self.clean.to_json(),
            "robust": self.robust.to_json(),
        }


def compare(a: Evidence | Sequence[Evidence], b: Evidence | Sequence[Evidence]) -> Comparison:
    """The first of A's Evidence that has a counterpart among B's.

    Args:
        a, b: an Evidence of each model, or several, the main one first.

    Raises:
        EvidenceError: one of them is a shard.
        RobustzooError: none are about the same images, threat model and protocol;
            the message says in what the first ones differ.
    """
    a, b = ([given] if isinstance(given, Evidence) else given for given in (a, b))
    for document in (*a, *b):
        document.require_whole()
    for one in a:
        for other in b:
            if not _differences(one, other):
                return Comparison(
                    one,
                    other,
                    Paired.of(*([v.clean_correct for v in e.verdicts] for e in (one, other))),
                    Paired.of(*([v.robust for v in e.verdicts] for e in (one, other))),
                )
    differing = "; ".join(
        f"{name}: {_short(x)} and {_short(y)}" for name, (x, y) in _differences(a[0], b[0]).items()
    )
    raise RobustzooError(
        f"A and B cannot be compared, they differ in {differing}. Evaluate both models on the same images "
        "with the same threat model and protocol: `robustzoo evaluate MODEL --data ... --threat-model ... "
        "--protocol ... --n ...`"
    )


def open_evidence(place: str | Path) -> list[Evidence]:
    """The Evidence of a file, or all of a model folder's, the main one first.

    Raises:
        RobustzooError: neither, or a folder without any.
        EvidenceError: a damaged file.
    """
    path = Path(place)
    if not path.is_dir():
        return [Evidence.load(path)]
    found = all_evidence(path)
    if not found:
        raise RobustzooError(
            f"{path} holds no Evidence (evidence/*.json); measure with `robustzoo evaluate {path}`, or name "
            "a file"
        )
    return found


def is_file(place: str) -> bool:
    """Whether text names an Evidence file rather than a model."""
    return place.endswith(".json") or (os.sep in place and os.path.isfile(place))


def _differences(one: Evidence, other: Evidence) -> dict[str, tuple[Any, Any]]:
    """Field -> both values, where two Evidence are not about the same question."""
    found = differences(one.key(), other.key(), QUESTION)
    shown = {
        "protocol": lambda stated: f"{stated['name']} {stated['digest'][:12]}",
        "threat_model": lambda stated: f"{stated['norm']}:{stated['epsilon']}",
    }
    return {QUESTION[term]: tuple(map(shown.get(term, lambda v: v), pair)) for term, pair in found.items()}


def _called(evidence: Evidence) -> str:
    model = evidence.doc["model"]
    return model["name"] if model["sha256"] is None else f"{model['name']}, weights {model['sha256'][:12]}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
