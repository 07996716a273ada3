"""What a run says while it runs: metrics.jsonl for machines, lines on stderr for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from robustzoo import atomic_files


def say(text: str) -> None:
    """A line for people, on stderr at once."""
    print(text, file=sys.stderr, flush=True)


class Metrics:
    """metrics.jsonl: one object per record, appended line by line, cut back to the checkpoint on resume."""

    def __init__(self, path: Path, done_steps: int) -> None:
        """Open for appending after step `done_steps`; later records, and lines that are none, are dropped."""
        if path.exists():
            steps = [(line, _step(line)) for line in path.read_bytes().splitlines()]
            kept = [line for line, step in steps if step is not None and step <= done_steps]
            atomic_files.write_bytes(path, b"".join(line + b"\n" for line in kept))
        self._stream: TextIO = path.open("a", encoding="utf-8")

    def write(self, step: int, **values: Any) -> None:
        """Append {"step": step, ...}; `step` counts the optimizer steps done."""
        self._stream.write(json.dumps({"step": step} | values) + "\n")
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


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
