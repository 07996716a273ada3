"""Processes of a run: rank and size, the device of each, and how they meet."""

from __future__ import annotations

import os
import socket
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

T = TypeVar("T")


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
        PortInUse: another run has the launcher's port.
    """
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    accelerator = get_accelerator()
    if accelerator.device_name() == "cpu":
        _leave_out_shared_memory()
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


def _leave_out_shared_memory() -> None:
    """Keep DeepSpeed from compiling its shared-memory collectives at the first start on a CPU.

    That takes minutes without a word, a C++ compiler and a folder to keep it in, and they serve its inference
    engine alone: what training averages goes through torch.distributed either way.
    """
    deepspeed.ops.__compatible_ops__ = defaultdict(bool)  # read when a process group is made; all False


def _share_cores() -> None:
    """Divide the cores among the processes of this host, unless OMP_NUM_THREADS says how many each gets."""
    if "OMP_NUM_THREADS" not in os.environ:
        neighbours = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)
        torch.set_num_threads(max(1, torch.get_num_threads() // neighbours))
