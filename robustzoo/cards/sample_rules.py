"""The samples of an Evidence: thousands of alike items, so what is checked of each is plain and quick."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

_LARGEST = 10**12  # as in the schema's `natural`
_KEYS = frozenset(("id", "label", "predicted", "robust", "broken_by"))
_SUCCESS = frozenset(("attack", "target", "restart", "iteration"))
_NAME = re.compile(r"[a-z0-9+.-]{1,100}")  # what attacks are called; the schema knows more
_EPSILON = re.compile("[0-9]{1,60}(/[0-9]{1,60})?")


def is_position(value: Any) -> bool:
    """Whether this is a whole number as the schema's `natural` is."""
    return type(value) is int and 0 <= value <= _LARGEST


def is_plain(sample: Any) -> bool:
    """Whether the schema certainly takes this sample; where not, ask the schema."""
    if type(sample) is not dict or (sample.keys() ^ _KEYS) - {"micro_batch_size"}:
        return False
    numbers = (sample["id"], sample["label"], sample["predicted"], sample.get("micro_batch_size", 1))
    if type(sample["robust"]) is not bool or not all(map(is_position, numbers)) or not numbers[3]:
        return False
    by = sample["broken_by"]
    return by is None or (
        type(by) is dict
        and not (by.keys() ^ _SUCCESS) - {"epsilon"}
        and type(by["attack"]) is str
        and _NAME.fullmatch(by["attack"]) is not None
        and (by["target"] is None or is_position(by["target"]))
        and is_position(by["restart"])
        and is_position(by["iteration"])
        and (
            "epsilon" not in by
            or (type(by["epsilon"]) is str and _EPSILON.fullmatch(by["epsilon"]) is not None)
        )
    )


def sample_problems(
    sample: dict[str, Any], num_classes: int, attacks: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, str]]:
    """(field, problem) for each fact of one sample that contradicts another; it fits the schema."""
    label, predicted, broken_by = sample["label"], sample["predicted"], sample["broken_by"]
    for field in ("label", "predicted"):
        if sample[field] >= num_classes:
            yield field, f"class {sample[field]} of {num_classes} classes, expected 0..{num_classes - 1}"
    if sample["robust"] and label != predicted:
        yield "robust", f"robust, yet the clean image is misclassified ({predicted}, label {label})"
    if sample["robust"] and broken_by is not None:
        yield "broken_by", f"robust, yet broken by {broken_by['attack']}"
    if not sample["robust"] and label == predicted and broken_by is None:
        yield "broken_by", "correct on the clean image and not robust, yet nothing broke it"
    if broken_by is not None:
        if label != predicted:
            yield "broken_by", "misclassified without any attack, so nothing can have broken it"
        if broken_by["attack"] not in attacks:
            yield (
                "broken_by.attack",
                f"{broken_by['attack']} is no member of the protocol ({', '.join(attacks)})",
            )
        target = broken_by["target"]
        if target is not None and (target >= num_classes or target == label):
            yield (
                "broken_by.target",
                f"target {target} must be another class than {label} among {num_classes}",
            )
        if broken_by["attack"] in attacks:
            for field, problem in _success_problems(broken_by, attacks[broken_by["attack"]]):
                yield f"broken_by.{field}", problem


def _success_problems(broken_by: dict[str, Any], member: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, problem) where `member` cannot have had such a success."""
    attack, restarts, targets = member["attack"], member["restarts"], member["targets"]
    if broken_by["restart"] >= restarts:
        yield "restart", f"restart {broken_by['restart']} of {attack}, which has {restarts} (from 0)"
    if (broken_by["target"] is None) != (targets == 0):
        kind = f"{targets} targets" if targets else "none"
        yield "target", f"target {broken_by['target']} of {attack}, which has {kind}"
    # Every phase of an L1 attack looks at one point more than it has iterations.
    last = member["iterations"] + len(member.get("phase_factors", [1.0])) - 1
    if broken_by["iteration"] > last:
        yield "iteration", f"iteration {broken_by['iteration']} of {attack}, whose last is {last}"


def count(samples: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The `counts` section that the samples give."""
    samples = list(samples)
    broken = Counter(s["broken_by"]["attack"] for s in samples if s["broken_by"] is not None)
    return {
        "n": len(samples),
        "clean_correct": sum(s["predicted"] == s["label"] for s in samples),
        "robust_correct": sum(s["robust"] for s in samples),
        "broken_by": dict(sorted(broken.items())),
    }
