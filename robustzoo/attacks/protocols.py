"""Protocols: which attacks run, in which order, with which constants. All of it is data, and digested.

The constants are those of AutoAttack (Croce & Hein 2020) in its published implementation. Epsilon is no part
of a protocol; the norm and the number of classes are, since they choose starts, losses and targets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from robustzoo.attacks.projections import NORMS
from robustzoo.registry.threat_model import ThreatModel

MAX_TARGETS = 9
SINGLE_MEMBERS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "square")
_COMPOSED = {
    "aa-standard": ("apgd-ce", "apgd-t", "fab-t", "square"),
    "apgd-ce+t": ("apgd-ce", "apgd-t"),
    "apgd-ce+dlr": ("apgd-ce", "apgd-dlr"),
}
_LATER = ("aa-plus", "aa-rand")
_PGD = re.compile(r"pgd-([1-9]\d{0,4})")
_APGD_START = {"linf": "uniform, scaled to a face", "l2": "gaussian, scaled to the sphere"}
_SQUARE_START = {"linf": "vertical stripes", "l2": "grid of bumps"}


class ProtocolError(ValueError):
    """A protocol that does not exist, or not for this norm or number of classes."""


@dataclass(frozen=True)
class Member:
    """One attack of a protocol.

    algorithm: "apgd" | "pgd" | "fab" | "square"; loss: what it climbs (see losses.py); iterations: steps
    (Square: queries after the first) of one attempt; targets: how many target classes, 0 for untargeted; an
    attempt is one (target, restart); constants: everything else that decides what it does.
    """

    attack: str
    algorithm: str
    loss: str
    iterations: int
    restarts: int = 1
    targets: int = 0
    constants: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def attempts(self) -> int:
        """Attempts on a sample that is never broken: for every target, in order, every restart."""
        return max(self.targets, 1) * self.restarts

    def to_json(self) -> dict:
        """Every parameter, flat."""
        return {
            "attack": self.attack,
            "algorithm": self.algorithm,
            "loss": self.loss,
            "iterations": self.iterations,
            "restarts": self.restarts,
            "targets": self.targets,
            **self.constants,
        }


@dataclass(frozen=True)
class Protocol:
    """Members in the order in which they run, each on the samples that are still robust."""

    name: str
    norm: str
    members: tuple[Member, ...]

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON of what `to_json` says beside it."""
        text = json.dumps(self._document(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict:
        """{"name", "members", "digest"}, as Evidence stores it."""
        return {**self._document(), "digest": self.digest}

    def _document(self) -> dict:
        return {"name": self.name, "members": [{"norm": self.norm, **m.to_json()} for m in self.members]}


def protocol(name: str, threat_model: ThreatModel, num_classes: int) -> Protocol:
    """The protocol called `name` for the norm of `threat_model` and `num_classes` classes.

    Args:
        name: "aa-standard", "apgd-ce+t", "apgd-ce+dlr", "pgd-K" (K iterations), or one member alone.
        threat_model: its norm counts, linf or l2; its epsilon does not.
        num_classes: at least 2.

    Raises:
        ProtocolError: unknown name, a norm or protocol of a later version, or fewer than 2 classes.
    """
    norm = threat_model.norm
    if norm == "l1":
        raise ProtocolError(
            f"{name} for L1 comes with a later version of robustzoo; this one has linf and l2"
        )
    if norm not in NORMS:
        raise ProtocolError(f"no attacks for norm {norm!r}; expected one of {', '.join(NORMS)}")
    if num_classes < 2:
        raise ProtocolError(f"an attack needs at least 2 classes, got {num_classes}")
    pgd = _PGD.fullmatch(name)
    if pgd:
        return Protocol(name, norm, (_pgd(name, int(pgd[1])),))
    if name in _LATER:
        raise ProtocolError(f"{name} comes with a later version of robustzoo; aa-standard is available")
    if name not in _COMPOSED and name not in SINGLE_MEMBERS:
        known = ", ".join((*_COMPOSED, "pgd-K (K = 1 to 99999)", *SINGLE_MEMBERS))
        raise ProtocolError(f"unknown protocol {name!r}; known: {known}")
    attacks = _COMPOSED.get(name, (name,))
    return Protocol(name, norm, tuple(_member(attack, norm, num_classes) for attack in attacks))


def _member(attack: str, norm: str, num_classes: int) -> Member:
    targets = min(MAX_TARGETS, num_classes - 1)
    if attack == "apgd-ce":
        return _apgd(attack, "cross-entropy", norm)
    if attack == "apgd-dlr":
        return _apgd(attack, "dlr" if num_classes >= 3 else "margin", norm)
    if attack == "apgd-t":
        return _apgd(attack, "targeted-dlr" if num_classes >= 4 else "targeted-margin", norm, targets)
    if attack == "fab-t":
        constants = {"alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "start": "clean"}
        return Member(attack, "fab", "targeted-margin", 100, targets=targets, constants=constants)
    constants = {
        "p_init": 0.8,
        "schedule": "not rescaled",
        "corners": "below H - s, W - s",
        "start": _SQUARE_START[norm],
    }
    return Member(attack, "square", "margin", 5000, constants=constants)


def _apgd(attack: str, loss: str, norm: str, targets: int = 0) -> Member:
    constants = {
        "step_ratio": 2.0,
        "momentum": 0.75,
        "rho": 0.75,
        "first_checkpoint": 0.22,
        "checkpoint_decrement": 0.03,
        "checkpoint_minimum": 0.06,
        "start": _APGD_START[norm],
    }
    return Member(attack, "apgd", loss, 100, targets=targets, constants=constants)


def _pgd(name: str, iterations: int) -> Member:
    constants = {"step_ratio": 2.5, "start": "uniform in the ball"}
    return Member(name, "pgd", "cross-entropy", iterations, constants=constants)
