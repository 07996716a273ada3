"""What a person sees while an evaluation runs: a bar on a terminal, now and then a line in a log."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from robustzoo.evaluation.guards import EvaluationWarning

# Seconds between two lines where there is no terminal.
_QUIET_SECONDS = 20.0


class Reporter:
    """Shows messages and progress on a stream (standard error); use it as a context manager.

    Args:
        progress: True shows it, False is silent, and a function gets every message as a dict instead:
            {"event": "cost" | "note" | "warning", "text"} or {"event": "progress", "stage", "done", "total",
            "robust", "worker"}.
        stream: where to write; a terminal gets a bar, anything else plain lines.
    """

    def __init__(self, progress: bool | Callable[[dict], None] = True, stream: TextIO | None = None) -> None:
        self._listener = progress if callable(progress) else None
        self._shown = progress is True
        self._stream = stream or sys.stderr
        self._bar: Progress | None = None
        self._tasks: dict[int | None, TaskID] = {}
        self._last_line = time.monotonic()
        if self._shown and self._stream.isatty():
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=Console(file=self._stream), transient=True)

    def __enter__(self) -> Reporter:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str, event: str = "note") -> None:
        """Show one line and keep it."""
        if self._listener is not None:
            self._listener({"event": event, "text": text})
        elif self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._shown:
            print(text, file=self._stream, flush=True)

    def warn(self, text: str) -> None:
        """A line that must not be lost: where nothing is shown, a Python warning at evaluate's caller."""
        if self._shown or self._listener is not None:
            self.say(text if self._listener is not None else f"warning: {text}", "warning")
        else:
            warnings.warn(text, EvaluationWarning, stacklevel=3)

    def update(
        self, stage: str, done: int, total: int, robust: int | None = None, worker: int | None = None
    ) -> None:
        """`done` of `total` samples of `stage` are finished, `robust` of them still robust.

        With several processes, `worker` is the one that reports, about its own share.
        """
        if self._listener is not None:
            counts = {"done": done, "total": total, "robust": robust, "worker": worker}
            self._listener({"event": "progress", "stage": stage, **counts})
            return
        text = stage if worker is None else f"worker {worker} {stage}"
        left = "" if robust is None else f"{robust} robust"
        if self._bar is not None:
            if worker not in self._tasks:
                self._tasks[worker] = self._bar.add_task(text, total=total, left=left)
            self._bar.update(self._tasks[worker], description=text, completed=done, total=total, left=left)
        elif self._shown and time.monotonic() - self._last_line > _QUIET_SECONDS:
            self._last_line = time.monotonic()
            print(f"{text}: {done}/{total} {left}".rstrip(), file=self._stream, flush=True)


def estimate(seconds: float) -> str:
    """`seconds` as a guess: under 1 s, about 12 s."""
    return duration(seconds) if seconds < 1 else f"about {duration(seconds)}"


def duration(seconds: float) -> str:
    """`seconds` as people say it: under 1 s, 4.2 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 1:
        return "under 1 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
