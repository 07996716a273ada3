"""Kill a training with SIGKILL again and again, resume it each time, and print what became of it.

    python tests/training/kills.py FOLDER KILLS SEED -- ARGUMENTS OF train.py

Each life is a fork of this process, which has imported everything: a start takes no time. In turn a life ends
after a random time, most of which goes into checkpoints, or at a chosen call while a checkpoint is made
visible. A run that comes to its end is begun anew in another folder until all kills are spent.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from robustzoo import atomic_files
from robustzoo.training import train as training_loop  # noqa: F401  # imported once, for every life
from robustzoo.training import zero
from robustzoo.training.__main__ import train
from robustzoo.training.run_folder import RunFolder

# Where to die: (owner, function, before or after the call). Together the steps of a commit, in their order.
MOMENTS = [
    (zero, "save_state", "after"),
    (atomic_files, "write_text", "before"),  # the manifest, or `latest`
    (atomic_files, "write_text", "after"),
    (Path, "replace", "before"),  # a new file or checkpoint takes its name, or an old checkpoint loses it
    (Path, "replace", "after"),
    (atomic_files, "sync", "before"),
    (RunFolder, "_discard", "before"),
    (RunFolder, "_discard", "after"),
]


def die_at(owner, name: str, when: str, call: int) -> None:
    """From now on the call-th call of owner.name ends this process, before or after it has done its work."""
    original, calls = getattr(owner, name), 0

    def doomed(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, doomed)


def live(arguments: list[str], moment) -> int:
    """Fork a training; the process id."""
    child = os.fork()
    if child:
        return child
    if moment is not None:
        die_at(*moment)
    os._exit(train(arguments))


def main() -> None:
    cut = sys.argv.index("--")
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    arguments, draw = sys.argv[cut + 1 :], random.Random(seed)
    killed, resumed_at, runs = [], [], 0
    run = RunFolder(folder / "run0")
    while True:
        spent = len(killed) == kills
        moment = None
        if not spent and len(killed) % 2:
            moment = (*MOMENTS[len(killed) // 2 % len(MOMENTS)], draw.randint(1, 6))
        resume = ["--resume"] if run.path.exists() and run.config.exists() else []
        resumed_at.append(run.latest_step() or 0)
        child = live([*arguments, "--out", str(run.path), *resume], moment)
        if not spent and moment is None:
            time.sleep(draw.uniform(0.5, 4.0))
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status == -signal.SIGKILL:
            killed.append("a random moment" if moment is None else f"{moment[2]} {moment[1]} {moment[3]}")
        elif status:
            sys.exit(f"life {len(resumed_at)} ended with status {status}")
        elif spent:
            break
        else:
            runs += 1
            run = RunFolder(folder / f"run{runs}")
    runs = [str(folder / f"run{number}") for number in range(runs + 1)]
    print(json.dumps({"killed": killed, "resumed_at": resumed_at, "runs": runs}))


if __name__ == "__main__":
    main()
