"""Train the digits TrH recipes with several lambdas, measure each model, and write a table and a figure.

Models are trained by the project's own command, one process after the other, and measured on the images kept
out of the training split; no test image is looked at, so a lambda may be chosen by the result. A run that is
done is never done again, and one that was interrupted goes on from its newest checkpoint.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import robustzoo
from robustzoo.atomic_files import write_text
from robustzoo.diagnostics.lambda_sweep import figure
from robustzoo.diagnostics.lambda_sweep.measure import COLUMNS, measure
from robustzoo.diagnostics.results import write_csv
from robustzoo.registry import Recipe, recipe

LOSSES = ("at", "trades")
LAMBDAS = (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2)  # the values that the paper searched
BASE = "vit_micro2.digits_linf"
TABLE, FIGURE = "lambda_sweep.csv", "lambda_sweep.png"
_SCHEMA = "robustzoo.lambda-sweep/1"
_LAST_LINES = 12


class SweepError(ValueError):
    """A sweep that cannot be run as asked."""


class TrainingFailed(SweepError):
    """The training command of one run ended with an error."""


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
        return self.out / "runs" / f"{self.loss}_lambda{self.trh_lambda:g}"

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

    def command(self, trainer: Path) -> list[str]:
        changes = [text for key, value in self.overrides.items() for text in ("--set", f"{key}={value}")]
        options = ["--seed", str(self.seed), "--out", str(self.folder)]
        started = ["--resume"] if (self.folder / "config.json").exists() else []
        return [sys.executable, str(trainer), self.name, *changes, *options, *started]


def run_sweep(
    out: str | Path,
    *,
    losses: Sequence[str] = LOSSES,
    lambdas: Sequence[float] = LAMBDAS,
    steps: int | None = None,
    seed: int = 0,
    resume: bool = False,
    trainer: Path | None = None,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Train and measure one model per loss and lambda; write lambda_sweep.csv and .png into `out`.

    Args:
        out: a new or empty folder, or with `resume` that of an earlier sweep, whose finished runs are kept.
        losses: of "at", "trades", "alp", "mart".
        lambdas: weights of the trace, each above 0.
        steps: optimizer steps of each training; its warm-ups shrink in proportion. Default: the recipe's.
        seed: of every training and of the attacks that measure.
        trainer: the training command; default: training/train.py of the checkout that this package is in.
        say: gets a line per stage.

    Returns:
        The rows of the table (see `measure.COLUMNS`), by loss and lambda.

    Raises:
        SweepError: bad arguments, a folder in use, no checkout, or a result of other settings.
        TrainingFailed: training ended with an error; repeat with `resume`.
    """
    out = Path(out)
    trainer = find_trainer() if trainer is None else trainer
    runs = plan(out, losses=losses, lambdas=lambdas, steps=steps, seed=seed)
    if out.exists() and not out.is_dir():
        raise SweepError(f"{out} is a file; give a folder (--out DIR)")
    if out.exists() and any(out.iterdir()) and not resume:
        raise SweepError(f"{out} is not empty; continue its sweep with --resume, or choose another --out")
    known = [stored_result(run) for run in runs]  # refused before hours are spent
    rows = []
    for number, (run, row) in enumerate(zip(runs, known, strict=True), 1):
        label = f"{number}/{len(runs)} {run.loss} lambda {run.trh_lambda:g}"
        if row is None:
            say(f"{label}: training {run.recipe().total_steps:,} steps (log: {run.log})")
            train(run, trainer)
            say(f"{label}: measuring on the held-out images")
            row = measure(run.folder / "model", seed=run.seed)
            document = {**run.identity(), "row": row}
            write_text(run.result, json.dumps(document, indent=1) + "\n")
        row = {"loss": run.loss, "lambda": run.trh_lambda, **row}
        say(f"{label}: apgd-ce {row['apgd_ce_percent']:.1f} %, clean {row['clean_percent']:.1f} %")
        rows.append(row)
    write_csv(out / TABLE, COLUMNS, rows)
    figure.draw(out / FIGURE, rows)
    return rows


def plan(
    out: Path, *, losses: Sequence[str], lambdas: Sequence[float], steps: int | None, seed: int
) -> list[Run]:
    """The runs of a sweep, by loss and ascending lambda.

    Raises:
        SweepError: nothing to do, a value given twice, a lambda that is not above 0, or steps below 1.
    """
    for what, values in (("losses", losses), ("lambdas", lambdas)):
        if not values or len(set(values)) < len(values):
            raise SweepError(f"{what} are {list(values)}; expected at least one, each once")
    wrong = [value for value in lambdas if not 0 < value < float("inf")]
    if wrong:
        raise SweepError(
            f"lambda {wrong[0]:g} is not above 0; without the trace it is another recipe (LOSS_base)"
        )
    if steps is not None and steps < 1:
        raise SweepError(f"steps is {steps}; expected at least 1")
    runs = []
    for loss in losses:
        length = {} if steps is None else _shortened(recipe(f"{BASE}.{loss}_trh"), steps)
        for value in sorted(lambdas):
            run = Run(loss, float(value), {"trh_lambda": repr(float(value)), **length}, seed, out)
            run.recipe()  # a value that the recipe refuses is refused here
            runs.append(run)
    return runs


def stored_result(run: Run) -> dict[str, Any] | None:
    """The row of a finished run, None where there is none.

    Raises:
        SweepError: the file is of other settings, or no result.
    """
    try:
        document = json.loads(run.result.read_text(encoding="utf-8"))
        row = document["row"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise SweepError(
            f"{run.result} is no result of a sweep ({error}); delete it to measure again"
        ) from error
    changed = [key for key, value in run.identity().items() if document.get(key) != value]
    if changed:
        raise SweepError(
            f"{run.result} was made with another {', '.join(changed)}; repeat the sweep with the options it "
            "was started with, or choose another --out"
        )
    return row


def train(run: Run, trainer: Path) -> None:
    """Run the training command to its end, with its output in the log.

    Raises:
        TrainingFailed: with the last lines of the log.
    """
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("a", encoding="utf-8") as log:
        code = subprocess.run(run.command(trainer), stdout=log, stderr=subprocess.STDOUT).returncode
    if code:
        tail = run.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        raise TrainingFailed(
            f"training {run.name} with lambda {run.trh_lambda:g} ended with status {code}; {run.log} ends:\n"
            + "\n".join(f"  {line}" for line in tail)
            + "\nWhen the cause is removed, repeat the command with --resume"
        )


def find_trainer() -> Path:
    """training/train.py beside the package.

    Raises:
        SweepError: the package is not in a checkout.
    """
    path = Path(robustzoo.__file__).resolve().parents[1] / "training" / "train.py"
    if not path.is_file():
        raise SweepError(
            f"lambda-sweep trains models with training/train.py, which is part of the repository and not of "
            f"the installed package ({path} does not exist). Clone the repository, install it with "
            "pip install -e '.[train]', and run the sweep from there"
        )
    return path


def _shortened(made: Recipe, steps: int) -> dict[str, str]:
    scale = steps / made.total_steps
    lengths = {"warmup_steps": made.warmup_steps, "attack_warmup_steps": made.attack_warmup_steps}
    scaled = {key: str(min(steps, int(value * scale))) for key, value in lengths.items()}
    return {"total_steps": str(steps), **scaled}
