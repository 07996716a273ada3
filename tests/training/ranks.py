"""train.py on several processes, in one launch; without the launcher, which imports DeepSpeed twice more."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.training.small import ROOT

LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def training_environment() -> dict[str, str]:
    """Environment of a training process of its own: one thread, on the CPU, no variables of a launcher."""
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER_VARIABLES}
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    return environment | {"OMP_NUM_THREADS": "1", "PATH": path, "DS_ACCELERATOR": "cpu"}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def start_ranks(ranks: int, command: list[str], folder: Path) -> list[subprocess.Popen]:
    """Start the command once per rank; what rank r says goes to folder/said{r}."""
    environment = training_environment() | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": free_port(),
    }
    started = []
    for rank in map(str, range(ranks)):
        with (folder / f"said{rank}").open("w") as said:
            own = environment | {"RANK": rank, "LOCAL_RANK": rank}
            started.append(subprocess.Popen(command, env=own, stdout=said, stderr=said))
    return started


def run_on_ranks(ranks: int, lists: list[list[str]], folder: Path) -> list[str]:
    """train.py's `main` once per list of arguments; asserts status 0. What each rank said."""
    command = [sys.executable, str(ROOT / "tests/training/many_runs.py"), json.dumps(lists)]
    processes = start_ranks(ranks, command, folder)
    statuses = [process.wait() for process in processes]
    texts = [(folder / f"said{rank}").read_text() for rank in range(ranks)]
    assert statuses == [0] * ranks, "\n".join(text[-3000:] for text in texts)
    return texts
