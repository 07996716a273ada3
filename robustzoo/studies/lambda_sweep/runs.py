"""What a lambda sweep trains, and whether it can be run as asked: judged before torch is loaded."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe, catalog, recipe
from robustzoo.registry.names import did_you_mean

LOSSES = ("at", "trades")
LAMBDAS = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2)  # the values that the paper searched
BASE = "vit_micro2.digits_linf"
TRAINER = ("-m", "robustzoo.training")  # of an interpreter
_SCHEMA = "robustzoo.lambda-sweep/1"
_LAMBDA = "expected a finite number above 0, such as 1e-3"


@dataclass(frozen=True)
class Run:
    """One model of the sweep: what to train, and where it goes."""

    loss: str
    trh_lambda: float
    overrides: dict[str, str]
    seed: int
    out: Path

    @property
    def name(self) -> str:
        """Registry name of the recipe that is changed."""
        return f"{BASE}.{self.loss}_trh"

    @property
    def folder(self) -> Path:
        """The run folder of the training command; its log and the result lie beside it."""
        return self.out / "runs" / f"{self.loss}_lambda{self.trh_lambda!r}"

    @property
    def result(self) -> Path:
        return self.folder.with_suffix(self.folder.suffix + ".json")

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(self.folder.suffix + ".log")

    def recipe(self) -> Recipe:
        return recipe(self.name, self.overrides)

    def identity(self) -> dict[str, Any]:
        """What makes a stored result this run's."""
        return {"schema": _SCHEMA, "recipe_digest": self.recipe().digest, "seed": self.seed}

    def command(self, trainer: Sequence[str] = TRAINER) -> list[str]:
        """What starts its training."""
        changes = [text for key, value in self.overrides.items() for text in ("--set", f"{key}={value}")]
        options = ["--seed", str(self.seed), "--out", str(self.folder)]
        started = ["--resume"] if (self.folder / "config.json").exists() else []
        return [sys.executable, *trainer, self.name, *changes, *options, *started]


def plan(
    out: str | Path,
    *,
    losses: Sequence[str] = LOSSES,
    lambdas: Sequence[float] = LAMBDAS,
    steps: int | None = None,
    seed: int = 0,
) -> list[Run]:
    """The runs of a sweep, by loss and ascending lambda. At least one.

    Args:
        out: a new or empty folder, or that of an earlier sweep that is to be resumed.
        losses: of "at", "trades", "alp", "mart".
        lambdas: weights of the trace, each above 0.
        steps: optimizer steps of each training; its warm-ups shrink in proportion. Default: the recipe's.
        seed: of every training and of the attacks that measure.

    Raises:
        RobustzooError: nothing to do, a value given twice, an unknown loss, a lambda that is not finite and
            above 0, or steps below 1.
    """
    for what, values in (("losses", losses), ("lambdas", lambdas)):
        if not values or len(set(values)) < len(values):
            raise RobustzooError(f"{what} are {list(values)}; expected at least one, each once")
    for loss in losses:
        if loss not in catalog.LOSSES:
            raise RobustzooError(
                f"{loss!r} is no loss; expected one or more of {', '.join(catalog.LOSSES)}, with commas "
                f"between them (--losses at,trades).{did_you_mean(loss, list(catalog.LOSSES))}"
            )
    for value in lambdas:
        if not (math.isfinite(value) and value > 0):
            without = "; without the trace it is another recipe (LOSS_base)" if value == 0 else ""
            raise RobustzooError(f"lambda is {value:g}; {_LAMBDA}{without}")
    if steps is not None and steps < 1:
        raise RobustzooError(f"steps is {steps}; expected at least 1")
    runs = []
    for loss in losses:
        length = {} if steps is None else _shortened(recipe(f"{BASE}.{loss}_trh"), steps)
        for value in sorted(lambdas):
            run = Run(loss, float(value), {"trh_lambda": repr(float(value)), **length}, seed, Path(out))
            run.recipe()  # a value that the recipe refuses is refused here
            runs.append(run)
    return runs


def read_lambdas(text: str) -> tuple[float, ...]:
    """The weights of the trace in a text such as "1e-4,1e-3".

    Raises:
        RobustzooError: a part that is no number.
    """
    values = []
    for part in text.split(","):
        try:
            values.append(float(part))
        except ValueError:
            raise RobustzooError(
                f"--lambdas {text!r}: {part.strip()!r} is no number; expected finite numbers above 0 with "
                "commas between them, such as 1e-4,1e-3"
            ) from None
    return tuple(values)


def read_losses(text: str) -> tuple[str, ...]:
    """The losses in a text such as "at,trades"; `plan` judges them."""
    return tuple(part.strip() for part in text.split(","))


def check_place(out: Path, *, resume: bool) -> None:
    """Raise RobustzooError where `out` is a file, cannot be written, or is in use and not to be resumed."""
    if (reason := atomic_files.why_unwritable(out)) is not None:
        raise RobustzooError(f"{reason}; choose another --out")
    if out.is_dir() and any(out.iterdir()) and not resume:
        raise RobustzooError(f"{out} is not empty; continue its sweep with --resume, or choose another --out")


def stored_result(run: Run) -> dict[str, Any] | None:
    """The row of a finished run, None where there is none.

    Raises:
        RobustzooError: the file is of other settings, or no result.
    """
    try:
        document = json.loads(run.result.read_text(encoding="utf-8"))
        row = document["row"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise RobustzooError(
            f"{run.result} is no result of a sweep ({error}); delete it to measure again"
        ) from error
    changed = [key for key, value in run.identity().items() if document.get(key) != value]
    if changed:
        raise RobustzooError(
            f"{run.result} was made with another {', '.join(changed)}; repeat the sweep with the options it "
            "was started with, or choose another --out"
        )
    return row


def _shortened(made: Recipe, steps: int) -> dict[str, str]:
    scale = steps / made.total_steps
    lengths = {"warmup_steps": made.warmup_steps, "attack_warmup_steps": made.attack_warmup_steps}
    scaled = {key: str(min(steps, int(value * scale))) for key, value in lengths.items()}
    return {"total_steps": str(steps), **scaled}
