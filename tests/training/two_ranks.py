"""train.py on two processes, in one launch; without the launcher, which imports DeepSpeed twice more."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

from tests.training.small import ROOT


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def run_on_two_ranks(lists: list[list[str]], environment: dict[str, str], folder: Path) -> list[str]:
    """train.py's `main` once per list of arguments; asserts status 0. What each rank said."""
    command = [sys.executable, str(ROOT / "tests/training/many_runs.py"), json.dumps(lists)]
    environment = environment | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    ranks = []
    for rank in "01":
        with (folder / f"said{rank}").open("w") as said:
            ranks.append(
                subprocess.Popen(
                    command, env=environment | {"RANK": rank, "LOCAL_RANK": rank}, stdout=said, stderr=said
                )
            )
    statuses = [process.wait() for process in ranks]
    texts = [(folder / f"said{rank}").read_text() for rank in "01"]
    assert statuses == [0, 0], "\n".join(text[-3000:] for text in texts)
    return texts
