"""Other people's attacks, for cross-checks: the packages pyautoattack (or autoattack) and torchattacks.

The only file that imports them, and only when asked: they are optional (extra `crosscheck`). What they find
is shown under their own names, and is no AutoAttack number of ours.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from abc import ABC, abstractmethod
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from robustzoo.attacks.protocols import Attack
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.machine import device_of
from robustzoo.registry import ThreatModel

_NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
# Engine -> modules that bring it, the first one found is used.
_MODULES = {"autoattack": ("pyautoattack", "autoattack"), "torchattacks": ("torchattacks",)}
ENGINES = tuple(_MODULES)
# The names that our members give to one algorithm.
_APGD, _FAB = ("apgd", "apgd-l1"), ("fab", "fab-untargeted")


class Engine(ABC):
    """One package's attacks on one model. `title`: its name and version, for people."""

    def __init__(self, package: ModuleType, model: nn.Module, threat_model: ThreatModel, seed: int) -> None:
        self.package, self.model, self.threat_model, self.seed = package, model, threat_model, seed
        self.title = f"{package.__name__} {_version(package)}"

    def run(self, member: Attack, x: Tensor, y: Tensor) -> Tensor:
        """Points (B, C, H, W) that it found for images `x: (B, C, H, W)`, labels `y: (B,)`, as it returns
        them: they need not fool the model nor lie in the ball.

        Args:
            member: whose algorithm, loss, iterations, restarts and targets it shall use.

        Raises:
            RobustzooError: it has no such attack, or fails.
        """
        try:
            # They print progress and warnings on their own.
            with contextlib.redirect_stdout(io.StringIO()):
                return self.attack(member)(x.clone(), y.clone()).detach()
        except RobustzooError:
            raise
        except Exception as error:
            raise RobustzooError(
                f"{self.title} failed in {member.name}: {type(error).__name__}: {error}. Leave this attack "
                "out with --attacks"
            ) from error

    @abstractmethod
    def attack(self, member: Attack) -> Any:
        """The package's attack with the member's parameters, as a function of (x, y)."""

    def _unknown(self, member: Attack) -> RobustzooError:
        return RobustzooError(
            f"{self.title} has no counterpart of {member.name}; choose others with --attacks"
        )


class _AutoAttack(Engine):
    """The reference algorithms: their authors' package, or pyautoattack, which is that with a tidied
    interface."""

    def attack(self, member: Attack) -> Any:
        suite = self.package.AutoAttack(
            self.model,
            norm=_NORMS[self.threat_model.norm],
            eps=self.threat_model.eps,
            seed=self.seed,
            version="standard",
            device=str(device_of(self.model)),
        )
        if member.algorithm in _APGD and member.targets:
            found = suite.apgd_targeted
            found.n_target_classes = member.targets
        elif member.algorithm in _APGD and member.loss in ("cross-entropy", "dlr"):
            found = suite.apgd
            found.loss = {"cross-entropy": "ce", "dlr": "dlr"}[member.loss]
        elif member.algorithm in _FAB:
            found = suite.fab
            found.targeted, found.n_target_classes = bool(member.targets), member.targets or 1
        elif member.algorithm == "square":
            found = suite.square
            found.n_queries = member.iterations
        else:
            raise self._unknown(member)
        if member.algorithm != "square":
            found.n_iter = member.iterations
        found.n_restarts = member.restarts
        found.seed = self.seed
        return found.perturb


class _TorchAttacks(Engine):
    """torchattacks' own versions. Its defaults are weaker (10 iterations), so every parameter is set."""

    def attack(self, member: Attack) -> Any:
        package = self.package
        common = {
            "norm": _NORMS[self.threat_model.norm],
            "eps": self.threat_model.eps,
            "n_restarts": member.restarts,
            "seed": self.seed,
        }
        if self.threat_model.norm == "l1":
            raise RobustzooError(f"{self.title} has no L1 attacks of this kind; use --engine autoattack")
        if member.algorithm in _APGD and member.targets:
            found = package.APGDT(self.model, steps=member.iterations, n_classes=member.targets + 1, **common)
        elif member.algorithm in _APGD and member.loss in ("cross-entropy", "dlr"):
            loss = {"cross-entropy": "ce", "dlr": "dlr"}[member.loss]
            found = package.APGD(self.model, steps=member.iterations, loss=loss, **common)
        elif member.algorithm in _FAB:
            found = package.FAB(
                self.model,
                steps=member.iterations,
                multi_targeted=bool(member.targets),
                n_classes=(member.targets or 1) + 1,
                **{key: member.constants[key] for key in ("alpha_max", "eta", "beta")},
                **common,
            )
        elif member.algorithm == "square":
            found = package.Square(
                self.model,
                n_queries=member.iterations,
                p_init=member.constants["p_init"],
                loss="margin",
                resc_schedule=False,
                **common,
            )
        else:
            raise self._unknown(member)
        return found


def open_engine(name: str, model: nn.Module, threat_model: ThreatModel, seed: int) -> Engine:
    """The engine called `name`, ready for a model that is frozen and in eval mode.

    Raises:
        RobustzooError: no such engine, or its package is missing; the message gives the install line.
    """
    if name not in _MODULES:
        raise RobustzooError(f"engine is {name!r}; expected one of {', '.join(ENGINES)}")
    kind = _AutoAttack if name == "autoattack" else _TorchAttacks
    problems = []
    for module in _MODULES[name]:
        try:
            return kind(importlib.import_module(module), model, threat_model, seed)
        except ImportError as error:
            problems.append(f"{module}: {error}")
    raise RobustzooError(
        f"the engine {name} is not installed ({'; '.join(problems)}); it is optional: "
        f"pip install 'robustzoo[crosscheck]', or {_MODULES[name][0]} alone with pip install --no-deps "
        f"{_MODULES[name][0]}"
    )


def _version(package: ModuleType) -> str:
    try:
        return version(package.__name__)
    except PackageNotFoundError:
        return str(getattr(package, "__version__", "of unknown version"))
