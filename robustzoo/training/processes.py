"""The processes of a run: how they meet, agree, and end before their time: what is kept, and how to go on."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from robustzoo.errors import RobustzooError
from robustzoo.training.launch import Launcher
from robustzoo.training.metrics import say
from robustzoo.training.run_folder import RunFolder

T = TypeVar("T")
# What the communication libraries say where another process has gone (gloo, NCCL, the shared store).
_LOST = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket timeout|timed out|remote process exited|nccl",
    re.IGNORECASE,
)


class RefusedByRankZero(RobustzooError):
    """Rank 0 refused the run; the other ranks leave with its words."""


class TrainingStopped(RobustzooError):
    """A training that had begun and has ended early: the reason, what is kept, and the command to go on.

    status: that of the process; after a signal as a shell counts it.
    """

    def __init__(self, words: str, status: int = 1) -> None:
        super().__init__(words)
        self.status = status


class _Terminated(BaseException):
    """SIGTERM came."""


@dataclass(frozen=True)
class Processes:
    """This process among the processes of the run."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def decide(self, choose: Callable[[], T]) -> T:
        """Let rank 0 choose (look at files, say) and give every rank its answer, or its refusal.

        Raises:
            ValueError, OSError on rank 0: whatever `choose` raised. RefusedByRankZero on the others.
        """
        answer, refusal = [None, None], None
        if self.is_main:
            try:
                answer = [choose(), None]
            except (ValueError, OSError) as error:
                answer, refusal = [None, str(error)], error
        dist.broadcast_object_list(answer, src=0, device=self.device)
        if refusal is not None:
            raise refusal
        if answer[1] is not None:
            raise RefusedByRankZero(answer[1])
        return answer[0]

    def barrier(self) -> None:
        """Wait until every rank is here."""
        dist.barrier()

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """Mean of a float tensor over the ranks; a NaN anywhere is a NaN everywhere."""
        if self.world_size > 1:
            dist.all_reduce(values)
            values /= self.world_size
        return values

    def share(self, tensors: Iterable[torch.Tensor]) -> None:
        """The mean over the ranks in the place of every one of these float tensors, in one message."""
        own = list(tensors)
        if own and self.world_size > 1:
            mean = self.mean(torch.cat([tensor.flatten() for tensor in own]))
            for tensor, part in zip(own, mean.split([tensor.numel() for tensor in own]), strict=True):
                tensor.copy_(part.view_as(tensor))


def start() -> Processes:
    """Join the process group of the launcher, or make one of a single process.

    Without a launcher RANK, WORLD_SIZE and their like are set here: DeepSpeed would ask for mpi4py otherwise.

    Raises:
        RobustzooError: another run has the launcher's port.
    """
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
    launcher = Launcher.read()
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        _leave_out_shared_memory()
        _share_cores(launcher)
        device = torch.device("cpu")
    else:
        accelerator.set_device(launcher.local_rank)
        device = torch.device(accelerator.device_name(launcher.local_rank))
    # DeepSpeed's calls of torch.distributed: for its authors, not for those who train, once a step.
    warnings.filterwarnings("ignore", r".*is deprecated", FutureWarning, r"torch\.distributed")
    if not dist.is_initialized():
        try:
            deepspeed.init_distributed(verbose=False)
        except dist.DistNetworkError as error:
            if "EADDRINUSE" not in str(error) and "address already in use" not in str(error).lower():
                raise
            raise RobustzooError(
                f"port {os.environ.get('MASTER_PORT')} is in use, perhaps by another training: choose "
                "another with --master_port N behind `deepspeed`"
            ) from error
    return Processes(dist.get_rank(), dist.get_world_size(), device)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _leave_out_shared_memory() -> None:
    """Keep DeepSpeed from compiling its shared-memory collectives at the first start on a CPU.

    That takes minutes without a word, a C++ compiler and a folder to keep it in, and they serve its inference
    engine alone: what training averages goes through torch.distributed either way.
    """
    deepspeed.ops.__compatible_ops__ = defaultdict(bool)  # read when a process group is made; all False


def _share_cores(launcher: Launcher) -> None:
    """Divide the cores among the processes of this host, unless OMP_NUM_THREADS says how many each gets."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // launcher.neighbours))


@contextmanager
def told(run: RunFolder, group: Processes):
    """Turn what can end a training that has begun into a `TrainingStopped` in words; let go of its folder.

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
    except BaseException as error:
        reason, status = _reason(error, group)
        if reason is None:
            say(how_to_go_on(run, group))
            raise
        who = "" if group.is_main else f"process {group.rank}: "
        raise TrainingStopped(f"{who}{reason}\n{how_to_go_on(run, group)}", status) from error
    finally:
        signal.signal(signal.SIGTERM, before)
        run.release()


def _reason(error: BaseException, group: Processes) -> tuple[str | None, int]:
    """Why a training ends, in words, and the status of its process; None: by a fault of ours."""
    if isinstance(error, RobustzooError):
        return str(error), 1
    if isinstance(error, OSError):
        return f"cannot write or read: {error}", 1
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 128 + signal.SIGINT
    if isinstance(error, _Terminated):
        lost = ", or of a launcher that has lost another process" if group.world_size > 1 else ""
        return f"ended by SIGTERM, the signal of a scheduler{lost}", 128 + signal.SIGTERM
    if is_of_a_lost_process(error, group):
        told = f"another of the {group.world_size} processes has ended; its own words tell why ({error})"
        return " ".join(told.split()), 1
    return None, 1


def is_of_a_lost_process(error: BaseException, group: Processes) -> bool:
    """Whether an error says that another process does not answer."""
    return group.world_size > 1 and isinstance(error, RuntimeError) and bool(_LOST.search(str(error)))


def how_to_go_on(run: RunFolder, group: Processes) -> str:
    """Two lines: what is kept, and the command that continues."""
    step = run.latest_step()
    kept = (
        f"kept: {run.checkpoint(step)}" if step else "kept: no checkpoint yet, and a resumed run starts at 0"
    )
    words = command(group.world_size)
    words += [] if "--resume" in words else ["--resume"]
    start = "python" if group.world_size == 1 else "with the launcher of before:"
    return f"{kept}\nresume: {start} {shlex.join(words)}"


def command(world_size: int) -> list[str]:
    """The words behind `python`, or behind a launcher, that start this again."""
    program, *given = (word for word in sys.argv if not word.startswith("--local_rank"))  # the launcher's own
    if Path(program) == Path(__file__).with_name("__main__.py"):
        return ["-m" if world_size == 1 else "--module", "robustzoo.training", *given]
    return [program, *given]


def _terminate(number: int, frame: object) -> None:
    raise _Terminated
