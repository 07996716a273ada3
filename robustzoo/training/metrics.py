"""What a run says while it runs: metrics.jsonl for machines, lines on stderr for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError


def say(text: str) -> None:
    """A line for people, on stderr at once."""
    print(text, file=sys.stderr, flush=True)


# Logger -> the package that does it, an extra of the same name.
PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}
LOGGERS = ("none", *PACKAGES)

Write = Callable[[int, Mapping[str, Any]], None]


class Metrics:
    """metrics.jsonl: one object per record, appended line by line, cut back to the checkpoint on resume."""

    def __init__(
        self,
        path: Path,
        done_steps: int,
        also: tuple[Write, Callable[[], Any]] | None = None,
    ) -> None:
        """Open for appending after step `done_steps`; later records, and lines that are none, are dropped.

        also: what writes and what ends another log, see `open_logger`.
        """
        self._also = also
        if path.exists():
            steps = [(line, _step(line)) for line in path.read_bytes().splitlines()]
            kept = [line for line, step in steps if step is not None and step <= done_steps]
            atomic_files.write_bytes(path, b"".join(line + b"\n" for line in kept))
        self._stream: TextIO = path.open("a", encoding="utf-8")

    def write(self, step: int, **values: Any) -> None:
        """Append {"step": step, ...}; `step` counts the optimizer steps done."""
        self._stream.write(json.dumps({"step": step} | values) + "\n")
        self._stream.flush()
        if self._also is not None:
            self._also[0](step, values)

    def close(self) -> None:
        self._stream.close()
        if self._also is not None:
            self._also[1]()


def _step(line: bytes) -> int | None:
    """The step of a record; None where the line is none, cut short or with bytes that are no UTF-8, say."""
    try:
        step = json.loads(line.decode("utf-8"))["step"]
    except (ValueError, KeyError, TypeError):
        return None
    return step if isinstance(step, int) else None


class Clock:
    """Images per second and time left, over the steps since the last reading."""

    def __init__(self, done_steps: int, last_step: int, batch_size: int) -> None:
        self.last_step = last_step
        self.batch_size = batch_size
        self._mark = (done_steps, time.monotonic())

    def read(self, step: int) -> tuple[float, float]:
        """(images per second, seconds left) after `step` steps; starts the next measurement."""
        (before, then), now = self._mark, time.monotonic()
        self._mark = (step, now)
        seconds_per_step = (now - then) / max(step - before, 1)
        return self.batch_size / max(seconds_per_step, 1e-9), seconds_per_step * (self.last_step - step)

    def restart(self, step: int) -> None:
        """Leave out what happened since the last reading, a validation or a checkpoint."""
        self._mark = (step, time.monotonic())


def step_line(step: int, last_step: int, record: Mapping[str, float], seconds_left: float) -> str:
    """One line of progress: the numbers of a metrics record, and the time left."""
    numbers = "  ".join(f"{name} {value:.4g}" for name, value in record.items())
    return f"step {step:,}/{last_step:,}  {numbers}  left {duration(seconds_left)}"


def duration(seconds: float) -> str:
    """3725 -> "1:02:05"."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{left:02d}"


# ---- In other programs too: TensorBoard, Weights & Biases ----


def check_logger(logger: str) -> None:
    """Raises RobustzooError where the package of a logger is not installed."""
    if logger != "none" and find_spec(PACKAGES[logger]) is None:
        raise RobustzooError(
            f"--logger {logger} needs the package {PACKAGES[logger]}: pip install 'robustzoo[{logger}]'; "
            "metrics.jsonl is written in any case"
        )


def open_logger(logger: str, folder: Path, name: str, settings: Mapping[str, Any]) -> tuple[Write, Callable]:
    """(what writes the numbers of a step, what ends it).

    Args:
        folder: of the run; TensorBoard's files go into its folder tensorboard, those of wandb into wandb.
        name: of the run there. settings: of the run, JSON-able.
    """
    if logger == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(folder / "tensorboard"))

        def write(step: int, values: Mapping[str, Any]) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
            writer.flush()

        return write, writer.close
    if logger == "wandb":
        import wandb

        run = wandb.init(
            project="robustzoo", name=name, dir=str(folder), config=dict(settings), resume="allow",
            id=f"{name}-{folder.resolve().name}".replace("/", "-").replace("+", "-")[-64:],
        )  # fmt: skip
        return (lambda step, values: run.log(dict(values), step=step)), run.finish
    return (lambda step, values: None), (lambda: None)
