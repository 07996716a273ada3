"""How a training ends before its time: what happened, what is kept, and how to go on."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from contextlib import contextmanager

from robustzoo.data import DataError, MissingData
from robustzoo.training.export import ExportError
from robustzoo.training.processes import Processes, RefusedByRankZero
from robustzoo.training.progress import say
from robustzoo.training.run_folder import RunFolder

# What the communication libraries say where another process has gone (gloo, NCCL, the shared store).
_LOST = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket timeout|timed out|remote process exited|nccl",
    re.IGNORECASE,
)


class NonFiniteLoss(ArithmeticError):
    """Training has diverged."""


class CheckpointNotWritten(RuntimeError):
    """A checkpoint could not be completed; what there was of it is gone."""


class TrainingStopped(RuntimeError):
    """A training that had begun and has ended early: the reason, what is kept, and the command to go on.

    status: that of the process; after a signal as a shell counts it.
    """

    def __init__(self, words: str, status: int = 1) -> None:
        super().__init__(words)
        self.status = status


class _Terminated(BaseException):
    """SIGTERM came."""


@contextmanager
def told(run: RunFolder, group: Processes):
    """Turn what can end a training that has begun into a `TrainingStopped` in words.

    Anything else is a fault of ours and keeps its traceback; how to go on is told in any case.

    Raises:
        TrainingStopped: unreadable data, a full disk, divergence, a failed export, a lost process, Ctrl-C,
            SIGTERM.
    """
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except RefusedByRankZero:  # rank 0 tells
        raise
    except (DataError, MissingData, NonFiniteLoss, CheckpointNotWritten, ExportError) as error:
        raise TrainingStopped(_words(str(error), run, group)) from error
    except OSError as error:
        raise TrainingStopped(_words(f"cannot write or read: {error}", run, group)) from error
    except RuntimeError as error:
        if not is_of_a_lost_process(error, group):
            say(how_to_go_on(run, group))
            raise
        reason = f"another of the {group.world_size} processes has ended; its own words tell why ({error})"
        raise TrainingStopped(_words(" ".join(reason.split()), run, group)) from error
    except KeyboardInterrupt as error:
        raise TrainingStopped(_words("interrupted", run, group), 128 + signal.SIGINT) from error
    except _Terminated as error:
        lost = ", or of a launcher that has lost another process" if group.world_size > 1 else ""
        reason = f"ended by SIGTERM, the signal of a scheduler{lost}"
        raise TrainingStopped(_words(reason, run, group), 128 + signal.SIGTERM) from error
    except BaseException:
        say(how_to_go_on(run, group))
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def is_of_a_lost_process(error: Exception, group: Processes) -> bool:
    """Whether an error says that another process does not answer."""
    return group.world_size > 1 and isinstance(error, RuntimeError) and bool(_LOST.search(str(error)))


def how_to_go_on(run: RunFolder, group: Processes) -> str:
    """Two lines: what is kept, and the command that continues."""
    step = run.latest_step()
    kept = (
        f"kept: {run.checkpoint(step)}" if step else "kept: no checkpoint yet, and a resumed run starts at 0"
    )
    given = [word for word in sys.argv if not word.startswith("--local_rank")]  # the launcher's own
    command = [*given, *([] if "--resume" in given else ["--resume"])]
    start = "python" if group.world_size == 1 else "with the launcher of before:"
    return f"{kept}\nresume: {start} {shlex.join(command)}"


def _terminate(number: int, frame: object) -> None:
    raise _Terminated


def _words(reason: str, run: RunFolder, group: Processes) -> str:
    who = "" if group.is_main else f"process {group.rank}: "
    return f"{who}{reason}\n{how_to_go_on(run, group)}"
