"""`python -m robustzoo.training NAME`, `deepspeed --module robustzoo.training NAME`, and `... export RUN`."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from robustzoo.errors import RobustzooError
from robustzoo.streams import keep_messages_from_failing
from robustzoo.training.launch import speaks
from robustzoo.training.metrics import say
from robustzoo.training.plan import make_plan
from robustzoo.training.run_folder import RunFolder


def train(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says: the status of the process.

    0: trained and exported, or nothing left to do; 1: begun and ended early (130: by Ctrl-C, 143: SIGTERM);
    2: refused, at once where no torch is needed for it. `export RUN` in place of a name is `export`.
    """
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["export"]:
        return export(argv[1:])
    try:
        with _quiet_ctrl_c():
            plan = make_plan(argv)
            if plan.finished is not None:
                if speaks():
                    say(plan.finished)
                return 0
            if importlib.util.find_spec("deepspeed") is None:
                raise RobustzooError(
                    "training needs DeepSpeed, which is not installed here: pip install 'robustzoo[train]'"
                )
            from robustzoo.training.train import run, told

            if plan.flags.estimate:
                from robustzoo.training.estimate import estimate

                return told(lambda: estimate(plan))
    except RobustzooError as error:
        if speaks():
            say(f"error: {error}")
        return 2
    return run(plan)


def export(argv: Sequence[str] | None = None) -> int:
    """Write the model folder of a run as the command line says: 0, or 1 or 2 with the reason in words."""
    parser = argparse.ArgumentParser(
        prog="export.py", description="From a run to its model folder, from its last checkpoint or its best."
    )
    what = "the run folder of train.py (only one of your own)"
    parser.add_argument("run", type=Path, metavar="RUN", help=what)
    what = "the checkpoint of the highest held-out robust accuracy, to RUN/model_best"
    parser.add_argument("--best", action="store_true", help=what)
    given = parser.parse_args(argv)
    run = RunFolder(given.run)
    try:
        run.settings()
        run.chosen(best=given.best)
        from robustzoo.training.export import export_run

        folder, step, digest = export_run(run, best=given.best)
    except RobustzooError as error:
        say(f"error: {error}")
        return 2
    except OSError as error:
        say(f"error: {given.run} cannot be read, or its model written: {error}")
        return 1
    print(f"{folder}: weights after {step:,} steps, sha256 {digest}")
    return 0


@contextmanager
def _quiet_ctrl_c():
    """Inside the block Ctrl-C needs no traceback; where it is ignored, as in the background, it stays so."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if own:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if own:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def main(command: Callable[[], int] = train) -> NoReturn:
    """Run a command and leave without the interpreter's last search for cycles.

    It would look through all that torch and DeepSpeed have loaded, for seconds, to free memory that the
    system takes back anyway; what is frozen is left out.
    """
    if command is not export:
        keep_messages_from_failing(stdout=True)  # days of training do not end because nobody reads them
    status = command()
    gc.freeze()
    sys.exit(status)


if __name__ == "__main__":
    main()
