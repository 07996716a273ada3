"""What each attack of a protocol is: its loss, iterations, restarts, targets and constants, for every norm.

The constants are those of AutoAttack (Croce & Hein 2020 and, for L1, 2021) in its published implementation;
`pgd` and `apgd-malt` have their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MAX_TARGETS = 9
_L1_RESTARTS, _L1_TARGETS = 5, 5
_PLUS_RESTARTS = 5
_RAND_DRAWS = 20
# Classes, by clean logit, among which apgd-malt looks for its targets (MALT, section 4).
MAX_CANDIDATES = 100
_APGD_START = {"linf": "uniform, scaled to a face", "l2": "gaussian, scaled to the sphere"}
_SQUARE_START = {"linf": "vertical stripes", "l2": "grid of bumps", "l1": "grid of bumps, projected"}
SINGLE_MEMBERS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab-t", "fab", "square", "apgd-malt")


@dataclass(frozen=True)
class Member:
    """One attack of a protocol.

    algorithm: "apgd" | "apgd-l1" | "malt" | "malt-l1" | "pgd" | "fab" | "fab-untargeted" | "square"; loss:
    what it climbs (see losses.py); iterations: steps (Square: queries after the first) of one attempt;
    targets: how many target classes, 0 for untargeted; an attempt is one (target, restart); constants:
    everything else that decides what it does. gradients: backwards that one step needs, which follows from
    the number of classes.
    """

    attack: str
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
            "attack": self.attack,
            "algorithm": self.algorithm,
            "loss": self.loss,
            "iterations": self.iterations,
            "restarts": self.restarts,
            "targets": self.targets,
            **self.constants,
        }


def standard_member(attack: str, norm: str, num_classes: int) -> Member:
    """A member as aa-standard has it, or would have it: one of SINGLE_MEMBERS."""
    targets = min(MAX_TARGETS, num_classes - 1)
    if attack.startswith("fab"):
        return _fab(attack, num_classes, targets)
    if attack == "square":
        constants = {
            "p_init": 0.8,
            "schedule": "not rescaled",
            "corners": "below H - s, W - s",
            "start": _SQUARE_START[norm],
        }
        return Member(attack, "square", "margin", 5000, constants=constants)
    if attack == "apgd-malt":
        candidates = {"candidates": min(MAX_CANDIDATES, num_classes - 1), "ranked_by": "linearised distance"}
        if norm == "l1":
            member = _apgd_l1(attack, "targeted-margin", 1, min(_L1_TARGETS, targets))
        else:
            member = _apgd(attack, norm, "targeted-margin", targets)
        algorithm = member.algorithm.replace("apgd", "malt")
        return replace(member, algorithm=algorithm, constants={**member.constants, **candidates})
    loss = _apgd_loss(attack, num_classes)
    if norm != "l1":
        return _apgd(attack, norm, loss, targets if attack == "apgd-t" else 0)
    if attack == "apgd-t":
        return _apgd_l1(attack, loss, 1, min(_L1_TARGETS, targets))
    return _apgd_l1(attack, loss, _L1_RESTARTS)


def plus_member(attack: str, norm: str, num_classes: int) -> Member:
    """A member of aa-plus: five restarts of the untargeted ones; L1 without larger budgets."""
    member = _at_one_budget(standard_member(attack, norm, num_classes), norm)
    if attack in ("apgd-ce", "apgd-dlr", "fab"):
        return replace(member, restarts=_PLUS_RESTARTS)
    if attack == "apgd-t":
        return replace(member, targets=min(MAX_TARGETS, num_classes - 1))
    return member


def rand_member(attack: str, norm: str, num_classes: int) -> Member:
    """A member of aa-rand: one restart, averaged over draws of the model; L1 without larger budgets."""
    member = _at_one_budget(standard_member(attack, norm, num_classes), norm)
    return replace(member, restarts=1, constants={**member.constants, "draws": _RAND_DRAWS})


def pgd_member(name: str, norm: str, iterations: int) -> Member:
    """PGD with a fixed step of 2.5 eps / iterations; in L1 one in twenty entries moves (ours)."""
    constants: dict[str, float | str | list[float]] = {"step_ratio": 2.5, "start": "uniform in the ball"}
    if norm == "l1":
        constants["moving_share"] = 0.05
    return Member(name, "pgd", "cross-entropy", iterations, constants=constants)


def _fab(attack: str, num_classes: int, targets: int) -> Member:
    constants = {"alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "start": "clean"}
    if attack == "fab-t":
        return Member(attack, "fab", "targeted-margin", 100, targets=targets, constants=constants)
    constants["start"] = "clean, then at eps / 2"
    return Member(
        attack, "fab-untargeted", "nearest-boundary", 100, constants=constants, gradients=num_classes - 1
    )


def _apgd_loss(attack: str, num_classes: int) -> str:
    if attack == "apgd-ce":
        return "cross-entropy"
    if attack == "apgd-dlr":
        return "dlr" if num_classes >= 3 else "margin"
    return "targeted-dlr" if num_classes >= 4 else "targeted-margin"


def _apgd(attack: str, norm: str, loss: str, targets: int) -> Member:
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


def _apgd_l1(attack: str, loss: str, restarts: int, targets: int = 0) -> Member:
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
    return Member(attack, "apgd-l1", loss, 100, restarts=restarts, targets=targets, constants=constants)


def _at_one_budget(member: Member, norm: str) -> Member:
    """APGD for L1 without its phases of larger budgets, as the published plus and rand versions have it."""
    if norm != "l1" or member.algorithm != "apgd-l1":
        return member
    constants = {**member.constants, "phase_factors": [1.0], "phase_shares": [1.0], "first_share": 0.2}
    return replace(member, constants=constants)
