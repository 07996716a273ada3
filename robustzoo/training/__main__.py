"""`python -m robustzoo.training NAME`, `deepspeed --module robustzoo.training NAME`: train a recipe."""

from __future__ import annotations

import signal
from typing import NoReturn

from robustzoo.streams import keep_messages_from_failing
from robustzoo.training import chosen_checkpoint, usage
from robustzoo.training.leaving import leave


def train() -> NoReturn:
    """Train as the command line says. Bad usage ends at once: what is imported after it takes seconds."""
    keep_messages_from_failing(stdout=True)  # days of training do not end because nobody reads them
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as in the background
    if own:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while this imports, Ctrl-C needs no traceback
    usage.leave_early()
    from robustzoo.training.train import main

    if own:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    leave(main())


def export() -> NoReturn:
    """Write the model folder of a run, as the command line says."""
    chosen_checkpoint.leave_early()
    from robustzoo.training.export import main

    leave(main())


if __name__ == "__main__":
    train()
