"""Protocols: which attacks run, in which order, with which constants. All of it is data, and digested.

Epsilon is no part of a protocol; the norm and the number of classes are, since they choose starts, losses and
targets. The constants are those of AutoAttack (Croce & Hein 2020 and, for L1, 2021) in its published
implementation; `pgd` and `apgd-malt` have their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from robustzoo.attacks.geometry import NORMS
from robustzoo.errors import RobustzooError
from robustzoo.registry.digests import json_digest
from robustzoo.registry.threat_model import CORRUPTION_NAMES, CORRUPTIONS, ThreatModel, cell

MAX_TARGETS = 9
_L1_RESTARTS, _L1_TARGETS = 5, 5
_PLUS_RESTARTS = 5
_RAND_DRAWS = 20
# Classes, by clean logit, among which apgd-malt looks for its targets (MALT, section 4).
MAX_CANDIDATES = 100
_APGD_START = {"linf": "uniform, scaled to a face", "l2": "gaussian, scaled to the sphere"}
_SQUARE_START = {"linf": "vertical stripes", "l2": "grid of bumps", "l1": "grid of bumps, projected"}
RANDOM_MODELS = "aa-rand"
SINGLE_ATTACKS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "fab", "square", "apgd-malt")


@dataclass(frozen=True)
class Attack:
    """One attack of a protocol.

    algorithm: "apgd" | "apgd-l1" | "malt" | "malt-l1" | "pgd" | "fab" | "fab-untargeted" | "square"; loss:
    what it climbs (see attack_losses.py); iterations: steps (Square: queries after the first) of one attempt;
    targets: how many target classes, 0 for untargeted; an attempt is one (target, restart); constants:
    everything else that decides what it does. gradients: backwards that one step needs, which follows from
    the number of classes.
    """

    name: str
    algorithm: str
    loss: str
    iterations: int
    restarts: int = 1
    targets: int = 0
    constants: Mapping[str, float | str | list[float]] = field(default_factory=dict)
    gradients: int = 1

    @property
    def attempts(self) -> int:
        """Attempts on a sample that is never broken: for every target, in order, every restart."""
        return max(self.targets, 1) * self.restarts

    @property
    def draws(self) -> int:
        """Draws of a random model over which gradients and verdicts are averaged; 1 otherwise."""
        return int(self.constants.get("draws", 1))

    @property
    def passes(self) -> tuple[int, int]:
        """(forwards, backwards) on a sample that is never broken; Square may know answers without asking."""
        steps, starts = self.attempts * self.iterations, self.attempts
        if self.algorithm == "square":
            return starts + steps, 0
        if self.algorithm in ("fab", "fab-untargeted"):  # a point to linearise at, a point to look at
            return 2 * steps, steps * self.gradients
        starts *= len(self.constants.get("phase_factors", [1.0]))
        ranking = int(self.constants.get("candidates", 0))
        return (starts + steps + ranking) * self.draws, (steps + ranking) * self.draws

    def to_json(self) -> dict:
        """Every parameter, flat."""
        return {
            "attack": self.name,
            "algorithm": self.algorithm,
            "loss": self.loss,
            "iterations": self.iterations,
            "restarts": self.restarts,
            "targets": self.targets,
            **self.constants,
        }


def standard_attack(name: str, norm: str, num_classes: int) -> Attack:
    """An attack as aa-standard has it, or would have it: one of SINGLE_ATTACKS."""
    targets = min(MAX_TARGETS, num_classes - 1)
    if name.startswith("fab"):
        return _fab(name, num_classes, targets)
    if name == "square":
        constants = {
            "p_init": 0.8,
            "schedule": "not rescaled",
            "corners": "below H - s, W - s",
            "start": _SQUARE_START[norm],
        }
        return Attack(name, "square", "margin", 5000, constants=constants)
    if name == "apgd-malt":
        candidates = {"candidates": min(MAX_CANDIDATES, num_classes - 1), "ranked_by": "linearised distance"}
        if norm == "l1":
            attack = _apgd_l1(name, "targeted-margin", 1, min(_L1_TARGETS, targets))
        else:
            attack = _apgd(name, norm, "targeted-margin", targets)
        algorithm = attack.algorithm.replace("apgd", "malt")
        return replace(attack, algorithm=algorithm, constants={**attack.constants, **candidates})
    loss = _apgd_loss(name, num_classes)
    if norm != "l1":
        return _apgd(name, norm, loss, targets if name == "apgd-t" else 0)
    if name == "apgd-t":
        return _apgd_l1(name, loss, 1, min(_L1_TARGETS, targets))
    return _apgd_l1(name, loss, _L1_RESTARTS)


def plus_attack(name: str, norm: str, num_classes: int) -> Attack:
    """An attack of aa-plus: five restarts of the untargeted ones; L1 without larger budgets."""
    attack = _at_one_budget(standard_attack(name, norm, num_classes), norm)
    if name in ("apgd-ce", "apgd-dlr", "fab"):
        return replace(attack, restarts=_PLUS_RESTARTS)
    if name == "apgd-t":
        return replace(attack, targets=min(MAX_TARGETS, num_classes - 1))
    return attack


def rand_attack(name: str, norm: str, num_classes: int) -> Attack:
    """An attack of aa-rand: one restart, averaged over draws of the model; L1 without larger budgets."""
    attack = _at_one_budget(standard_attack(name, norm, num_classes), norm)
    return replace(attack, restarts=1, constants={**attack.constants, "draws": _RAND_DRAWS})


def pgd_attack(name: str, norm: str, iterations: int) -> Attack:
    """PGD with a fixed step of 2.5 eps / iterations; in L1 one in twenty entries moves (ours)."""
    constants: dict[str, float | str | list[float]] = {"step_ratio": 2.5, "start": "uniform in the ball"}
    if norm == "l1":
        constants["moving_share"] = 0.05
    return Attack(name, "pgd", "cross-entropy", iterations, constants=constants)


def _fab(name: str, num_classes: int, targets: int) -> Attack:
    constants = {"alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "start": "clean"}
    if name == "fab-t":
        return Attack(name, "fab", "targeted-margin", 100, targets=targets, constants=constants)
    constants["start"] = "clean, then at eps / 2"
    return Attack(
        name, "fab-untargeted", "nearest-boundary", 100, constants=constants, gradients=num_classes - 1
    )


def _apgd_loss(name: str, num_classes: int) -> str:
    if name == "apgd-ce":
        return "cross-entropy"
    if name == "apgd-dlr":
        return "dlr" if num_classes >= 3 else "margin"
    return "targeted-dlr" if num_classes >= 4 else "targeted-margin"


def _apgd(name: str, norm: str, loss: str, targets: int) -> Attack:
    constants = {
        "step_ratio": 2.0,
        "momentum": 0.75,
        "rho": 0.75,
        "first_checkpoint": 0.22,
        "checkpoint_decrement": 0.03,
        "checkpoint_minimum": 0.06,
        "start": _APGD_START[norm],
    }
    return Attack(name, "apgd", loss, 100, targets=targets, constants=constants)


def _apgd_l1(name: str, loss: str, restarts: int, targets: int = 0) -> Attack:
    constants: dict[str, float | str | list[float]] = {
        "step_ratio": 1.0,
        "step_decrease": 1.5,
        "step_range": 10.0,
        "sparsity_decrease": 1.5,
        "sparser": 0.95,
        "checkpoint_every": 0.04,
        "phase_factors": [3.0, 2.0, 1.0],
        "phase_shares": [0.3, 0.3, 0.4],
        "start": "gaussian, projected",
    }
    return Attack(name, "apgd-l1", loss, 100, restarts=restarts, targets=targets, constants=constants)


def _at_one_budget(attack: Attack, norm: str) -> Attack:
    """APGD for L1 without its phases of larger budgets, as the published plus and rand versions have it."""
    if norm != "l1" or attack.algorithm != "apgd-l1":
        return attack
    constants = {**attack.constants, "phase_factors": [1.0], "phase_shares": [1.0], "first_share": 0.2}
    return replace(attack, constants=constants)


def _corruptions(severity: int) -> Iterator[Attack]:
    """All that `evaluation.corruptions` classifies: nothing is searched, so no engine runs them."""
    for strength in range(1, severity + 1):
        for corruption in CORRUPTION_NAMES:
            constants = {"corruption": corruption, "severity": strength}
            yield Attack(cell(corruption, strength), "corruption", "accuracy", 0, constants=constants)


_COMPOSED: dict[str, tuple[Callable[[str, str, int], Attack], tuple[str, ...]]] = {
    "aa-standard": (standard_attack, ("apgd-ce", "apgd-t", "fab-t", "square")),
    "aa-plus": (plus_attack, ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t")),
    RANDOM_MODELS: (rand_attack, ("apgd-ce", "apgd-dlr")),
    "apgd-ce+t": (standard_attack, ("apgd-ce", "apgd-t")),
    "apgd-ce+dlr": (standard_attack, ("apgd-ce", "apgd-dlr")),
}
_PGD = re.compile(r"pgd-([1-9]\d{0,4})")
# What other tools call it -> what it is called here.
_MEANT = {
    **dict.fromkeys(("aa", "autoattack", "auto-attack", "standard", "robustbench"), "aa-standard"),
    **dict.fromkeys(("rand", "autoattack-rand"), RANDOM_MODELS),
    **dict.fromkeys(("pgd", "madry"), "pgd-40"),
    **{f"pgd{steps}": f"pgd-{steps}" for steps in (1, 7, 10, 20, 40, 50, 100)},
    **dict.fromkeys(("fgsm", "fgm"), "pgd-1"),
    **dict.fromkeys(("apgd", "autopgd"), "apgd-ce"),
}


class ProtocolError(RobustzooError):
    """A protocol that does not exist, or not for this norm or number of classes."""


@dataclass(frozen=True)
class Protocol:
    """Attacks in the order in which they run, each on the samples that are still robust."""

    name: str
    norm: str
    attacks: tuple[Attack, ...]

    @property
    def draws(self) -> int:
        """Forwards whose mean is the answer of a random model; 1 for all other models."""
        return max((attack.draws for attack in self.attacks), default=1)

    @property
    def asks(self) -> dict[str, bool]:
        """What a model must stand: `gradients` are taken of it, its answers may be `random`."""
        return {"gradients": any(attack.passes[1] for attack in self.attacks), "random": self.draws > 1}

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON of what `to_json` says beside it."""
        return json_digest(self._document())

    def to_json(self) -> dict:
        """{"name", "members", "digest"}, as Evidence stores it."""
        return {**self._document(), "digest": self.digest}

    def _document(self) -> dict:
        return {"name": self.name, "members": [{"norm": self.norm, **a.to_json()} for a in self.attacks]}


def protocol(name: str, threat_model: ThreatModel, num_classes: int) -> Protocol:
    """The protocol called `name` for the norm of `threat_model` and `num_classes` classes.

    Args:
        name: "aa-standard", "aa-plus", "aa-rand" (the only one for a random model), "apgd-ce+t",
            "apgd-ce+dlr", "pgd-K" (K iterations), or one of SINGLE_ATTACKS alone.
        threat_model: its norm counts, linf, l2 or l1; its epsilon does not.
        num_classes: at least 2.

    Raises:
        ProtocolError: unknown name, a norm without attacks, or fewer than 2 classes.
    """
    norm = threat_model.norm
    if norm == CORRUPTIONS and name == CORRUPTIONS:
        return Protocol(name, norm, tuple(_corruptions(int(threat_model.epsilon))))
    if norm not in NORMS:
        raise ProtocolError(
            f"no attacks for norm {norm!r}; expected one of {', '.join(NORMS)} (`robustzoo evaluate "
            "MODEL --threat-model corruptions` measures common corruptions)"
        )
    if num_classes < 2:
        raise ProtocolError(f"an attack needs at least 2 classes, got {num_classes}")
    pgd = _PGD.fullmatch(name)
    if pgd:
        return Protocol(name, norm, (pgd_attack(name, norm, int(pgd[1])),))
    if name not in _COMPOSED and name not in SINGLE_ATTACKS:
        known = ", ".join((*_COMPOSED, "pgd-K (K = 1 to 99999)", *SINGLE_ATTACKS))
        meant = _MEANT.get(name.lower().replace("_", "-"))
        meant = meant or next((word for word in (*_COMPOSED, *SINGLE_ATTACKS) if word == name.lower()), None)
        hint = f"; did you mean {meant}?" if meant else ""
        raise ProtocolError(f"unknown protocol {name[:80]!r}{hint}; known: {known}")
    make, names = _COMPOSED.get(name, (standard_attack, (name,)))
    return Protocol(name, norm, tuple(make(each, norm, num_classes) for each in names))
