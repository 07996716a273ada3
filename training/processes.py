"""Processes of a run: rank and size, the device of each, and what a machine needs before DeepSpeed starts."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import TypeVar

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

T = TypeVar("T")


class MissingTool(RuntimeError):
    """A program that DeepSpeed needs at its first start is not installed."""


class NoBuildFolder(RuntimeError):
    """What DeepSpeed compiles at its first start cannot be kept anywhere."""


class PortInUse(RuntimeError):
    """The address at which the processes of a run meet is taken."""


class RefusedByRankZero(ValueError):
    """Rank 0 refused the run; the other ranks leave with its words."""


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


def world_size() -> int:
    """The number of processes the launcher started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def start() -> Processes:
    """Join the process group of the launcher, or make one of a single process.

    Without a launcher RANK, WORLD_SIZE and their like are set here: DeepSpeed would ask for mpi4py otherwise.

    Raises:
        MissingTool, NoBuildFolder: no C++ compiler or ninja, or no place for what they make, on a machine
            without a GPU.
        PortInUse: another run has the launcher's port.
    """
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        _check_compiler()
        _check_build_folder()
        _share_cores()
        device = torch.device("cpu")
    else:
        accelerator.set_device(local_rank)
        device = torch.device(accelerator.device_name(local_rank))
    # DeepSpeed's calls of torch.distributed: for its authors, not for those who train, once a step.
    warnings.filterwarnings("ignore", r".*is deprecated", FutureWarning, r"torch\.distributed")
    if not dist.is_initialized():
        try:
            deepspeed.init_distributed(verbose=False)
        except dist.DistNetworkError as error:
            if "EADDRINUSE" not in str(error) and "address already in use" not in str(error).lower():
                raise
            raise PortInUse(
                f"port {os.environ.get('MASTER_PORT')} is in use, perhaps by another training: choose "
                "another with --master_port N behind `deepspeed`"
            ) from error
    return Processes(dist.get_rank(), dist.get_world_size(), device)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _check_compiler() -> None:
    """DeepSpeed compiles its shared-memory collectives at the first start on Linux without a GPU."""
    if sys.platform != "linux":
        return
    # ninja from pip lies beside the interpreter, which is not on PATH unless the environment was activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    compiler = os.environ.get("CXX", "c++")
    missing = [tool for tool in (compiler, "ninja") if shutil.which(tool) is None]
    if missing:
        raise MissingTool(
            f"{' and '.join(missing)} not found: on a CPU DeepSpeed compiles its shared-memory communication "
            "at the first start. Install a C++ compiler (g++ or clang++; CXX names another) and ninja "
            "(pip install ninja), then start again"
        )


def _check_build_folder() -> None:
    """Make the folder in which torch keeps what is compiled: it would end in a traceback where it cannot."""
    if sys.platform != "linux":
        return
    from torch.utils.cpp_extension import get_default_build_root  # only here: it looks for CUDA, and says so

    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):  # also told by a file system that is mounted read-only
            pass
    except OSError as error:
        raise NoBuildFolder(
            f"cannot write in {folder}, where DeepSpeed keeps the shared-memory communication that it "
            f"compiles at the first start: {error}. Set TORCH_EXTENSIONS_DIR to a folder that can be "
            "written, then start again"
        ) from error


def _share_cores() -> None:
    """Divide the cores among the processes of this host, unless OMP_NUM_THREADS says how many each gets."""
    if "OMP_NUM_THREADS" not in os.environ:
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)
        torch.set_num_threads(max(1, torch.get_num_threads() // neighbours))
