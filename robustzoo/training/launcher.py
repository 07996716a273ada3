"""What a launcher tells each process through its environment, checked before the processes meet."""

from __future__ import annotations

import os

from robustzoo.training.launch import LaunchError

_WHOLE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
_NEEDED = (*_WHOLE, "MASTER_ADDR")
_START = (
    "start the processes with `deepspeed training/train.py ...` or `torchrun ... training/train.py ...`, or "
    "unset RANK and WORLD_SIZE for one process"
)


def speaks() -> bool:
    """Whether this process is to tell why nothing is started: of those of a launcher, rank 0 alone.

    Outside a launcher, where a RANK may be left over from one, every process does.
    """
    try:
        check_environment()
    except LaunchError:
        return True
    return os.environ.get("RANK", "0") == "0"


def check_environment() -> None:
    """Whether this process was started alone, or by a launcher that tells all that the processes need.

    Raises:
        LaunchError: variables that are missing, no whole numbers, or a rank that is not below WORLD_SIZE.
    """
    if "RANK" not in os.environ and "WORLD_SIZE" not in os.environ:
        return
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        there = "RANK" if "RANK" in os.environ else "WORLD_SIZE"
        raise LaunchError(
            f"the environment has {there}, as a launcher sets it, but no {', '.join(missing)}: {_START}"
        )
    for name in _WHOLE:
        if not os.environ[name].isdecimal():
            raise LaunchError(f"{name} is {os.environ[name]!r}; expected a whole number: {_START}")
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank >= world_size:
        raise LaunchError(
            f"RANK is {rank}; expected a number below WORLD_SIZE, which is {world_size}: {_START}"
        )
