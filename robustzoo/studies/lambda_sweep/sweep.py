"""Train the digits TrH recipes with several lambdas, measure each model, and write a table and a figure.

Models are trained by the project's own command, one process after the other, and measured on the images kept
out of the training split; no test image is looked at, so a lambda may be chosen by the result. A run that is
done is never done again, and one that was interrupted goes on from its newest checkpoint.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

from robustzoo.atomic_files import write_text
from robustzoo.diagnostics.results import write_csv
from robustzoo.errors import RobustzooError
from robustzoo.studies.lambda_sweep.runs import TRAINER, Run, check_place, stored_result

TABLE, FIGURE = "lambda_sweep.csv", "lambda_sweep.png"
_LAST_LINES = 12


def run_sweep(
    runs: Sequence[Run],
    *,
    resume: bool = False,
    trainer: Sequence[str] = TRAINER,
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Train and measure the runs of a sweep; write lambda_sweep.csv and .png into its folder.

    Args:
        runs: of `plan`.
        resume: keep the finished runs of an earlier sweep in that folder; without it, the folder is empty.
        trainer: the training command, behind `python`.
        say: gets a line per stage.

    Returns:
        The rows of the table (see `sweep_results.COLUMNS`), by loss and lambda.

    Raises:
        RobustzooError: a folder in use, a result of other settings, or a training that ended
            with an error; when its cause is removed, repeat with `resume`.
    """
    out = runs[0].out
    check_place(out, resume=resume)
    known = [stored_result(run) for run in runs]  # refused before hours are spent

    # Only here, and before any training: they load torch and matplotlib, and bad arguments are told at once.
    from robustzoo.studies.lambda_sweep import sweep_results

    rows = []
    for number, (run, row) in enumerate(zip(runs, known, strict=True), 1):
        label = f"{number}/{len(runs)} {run.loss} lambda {run.trh_lambda:g}"
        if row is None:
            say(f"{label}: training {run.recipe().total_steps:,} steps (log: {run.log})")
            train(run, trainer)
            say(f"{label}: measuring on the held-out images")
            row = sweep_results.measure(run.folder / "model", seed=run.seed)
            document = {**run.identity(), "row": row}
            write_text(run.result, json.dumps(document, indent=1) + "\n")
        row = {"loss": run.loss, "lambda": run.trh_lambda, **row}
        say(f"{label}: apgd-ce {row['apgd_ce_percent']:.1f} %, clean {row['clean_percent']:.1f} %")
        rows.append(row)
    write_csv(out / TABLE, sweep_results.COLUMNS, rows)
    sweep_results.draw(out / FIGURE, rows)
    return rows


def train(run: Run, trainer: Sequence[str]) -> None:
    """Run the training command to its end, with its output in the log.

    Raises:
        RobustzooError: with the last lines of the log.
    """
    run.log.parent.mkdir(parents=True, exist_ok=True)
    with run.log.open("a", encoding="utf-8") as log:
        code = subprocess.run(run.command(trainer), stdout=log, stderr=subprocess.STDOUT).returncode
    if code:
        tail = run.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        raise RobustzooError(
            f"training {run.name} with lambda {run.trh_lambda:g} ended with status {code}; {run.log} ends:\n"
            + "\n".join(f"  {line}" for line in tail)
            + "\nWhen the cause is removed, repeat the command with --resume"
        )
