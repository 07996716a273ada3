"""The command line of export.py, and the checkpoint that it means: judged before torch is loaded."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from robustzoo.training.progress import say
from robustzoo.training.run_folder import RunFolder, RunFolderError


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """`run` (a path) and `best` (a flag); on a usage error exit with status 2, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="export.py", description="From a run to its model folder, from its last checkpoint or its best."
    )
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="the run folder of train.py (only one of your own)"
    )
    parser.add_argument(
        "--best",
        action="store_true",
        help="the checkpoint of the highest held-out robust accuracy, to RUN/model_best",
    )
    return parser.parse_args(argv)


def chosen(run: RunFolder, *, best: bool) -> tuple[int, Path]:
    """The step of the checkpoint to export, the newest or the best, and the model folder it goes to.

    Raises:
        RunFolderError: no run or no checkpoint there, a damaged newest one, or no validation yet.
    """
    run.settings()
    step = run.newest_step()
    if step is None:
        raise RunFolderError(f"{run.path} has no checkpoint; train first, or continue with --resume")
    if not best:
        return step, run.model
    step = run.best(step).step
    if step == 0:
        raise RunFolderError(f"{run.path} has no validation yet, and so no best checkpoint; train on")
    if not run.checkpoint(step).is_dir():
        raise RunFolderError(
            f"the best checkpoint, {run.checkpoint(step)}, is not there; restore it, or leave out --best"
        )
    return step, run.model_best


def leave_early(argv: Sequence[str] | None = None) -> None:
    """Leave with status 2, the reason in words, where there is nothing to export."""
    given = parse(argv)
    try:
        chosen(RunFolder(given.run), best=given.best)
    except RunFolderError as error:
        say(f"error: {error}")
        sys.exit(2)
