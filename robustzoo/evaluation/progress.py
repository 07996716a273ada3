"""What a person sees of an evaluation: what it costs at most, before it starts, and while it runs a bar on a
terminal, now and then a line in a log."""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column

from robustzoo.attacks.protocols import Protocol
from robustzoo.cards.statistics import Accuracy
from robustzoo.data import ImageDataset
from robustzoo.evaluation.checks import EvaluationWarning
from robustzoo.evaluation.engine import Work, passes_at_most
from robustzoo.evaluation.ledger import CLEAN, Finding, Ledger
from robustzoo.streams import UnfailingStream, duration

# Seconds between two lines where there is no terminal.
_QUIET_SECONDS = 20.0
# After so many without any a line says that the work goes on, though nothing has finished.
_SILENT_SECONDS = 28.0


class Reporter:
    """Shows messages and progress on a stream (standard error); use it as a context manager.

    Args:
        progress: True shows it, False is silent, and a function gets every message as a dict instead:
            {"event": "cost" | "note" | "warning", "text"} or {"event": "progress", "stage", "done", "total",
            "robust", "of", "rate", "seconds_left"}; see `update`.
        stream: where to write; a terminal gets a bar, anything else plain lines. What cannot be written there
            is lost, and the evaluation goes on.
    """

    def __init__(self, progress: bool | Callable[[dict], None] = True, stream: TextIO | None = None) -> None:
        self._listener = progress if callable(progress) else None
        self._shown = progress is True
        self._stream = UnfailingStream(stream or sys.stderr)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line = self._last_news = time.monotonic()
        self._standing = "at work"
        self._ended, self._writing = threading.Event(), threading.Lock()
        if self._shown and self._stream.isatty():
            columns = (
                TextColumn("{task.description}", table_column=Column(no_wrap=True, min_width=8)),
                BarColumn(bar_width=10),
                MofNCompleteColumn(),
                TextColumn("{task.fields[more]}"),
            )
            self._bar = Progress(*columns, console=Console(file=self._stream), transient=True)

    def __enter__(self) -> Reporter:
        if self._bar is not None:
            self._bar.start()
        elif self._shown:
            threading.Thread(target=self._break_silence, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._bar is not None:
            self._bar.stop()

    def _break_silence(self) -> None:
        """Repeat where things stand in a log that has been silent for long: one attack on a large
        network may take hours before the first sample is through."""
        while not self._ended.wait(min(_SILENT_SECONDS / 4, 1.0)):
            now = time.monotonic()
            if now - self._last_line > _SILENT_SECONDS:
                self._write(f"{self._standing} (nothing finished for {duration(now - self._last_news)})")

    def _write(self, line: str) -> None:
        with self._writing:
            self._last_line = time.monotonic()
            print(line, file=self._stream, flush=True)

    def say(self, text: str, event: str = "note") -> None:
        """Show one line and keep it."""
        if self._listener is not None:
            self._listener({"event": event, "text": text})
        elif self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._shown:
            self._write(text)

    def say_all(self, dataset: ImageDataset) -> None:
        """What there is to say of how images were read."""
        for note in dataset.notes:
            self.say(note)
        for warning in dataset.warnings:
            self.warn(warning)

    def warn(self, text: str) -> None:
        """A line that must not be lost: where nothing is shown, a Python warning at evaluate's caller."""
        if self._shown or self._listener is not None:
            self.say(text if self._listener is not None else f"warning: {text}", "warning")
        else:
            warnings.warn(text, EvaluationWarning, stacklevel=3)

    def update(
        self,
        stage: str,
        done: int,
        total: int,
        *,
        robust: int | None = None,
        of: int | None = None,
        rate: float | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """`done` of `total` samples of `stage` are finished, at `rate` a second.

        robust: of the `of` samples that are classified, how many are correct and not broken so far.
        seconds_left: until the end of the evaluation, at most.
        """
        if self._listener is not None:
            numbers = {"done": done, "total": total, "robust": robust, "of": of, "rate": rate}
            self._listener({"event": "progress", "stage": stage, **numbers, "seconds_left": seconds_left})
            return
        if self._bar is None and not self._shown:
            return
        parts = [] if rate is None else [f"{rate:.3g}/s"]
        if seconds_left is not None:
            parts.append(f"at most {duration(seconds_left)} left")
        if robust is not None and of:
            accuracy = Accuracy.of(robust, of)
            parts.append(f"robust {accuracy.percent} ({accuracy.interval})")
        more = ", ".join(parts)
        if self._bar is not None:
            if self._task is None:
                self._task = self._bar.add_task(stage, total=total, more=more)
            self._bar.update(self._task, description=stage, completed=done, total=total, more=more)
        else:
            self._last_news, self._standing = time.monotonic(), f"{stage}: {done}/{total} {more}".rstrip()
            if self._last_news - self._last_line > _QUIET_SECONDS:
                self._write(self._standing)


def estimate(seconds: float) -> str:
    """`seconds` as a guess: under 1 s, about 12 s."""
    return duration(seconds) if seconds < 1 else f"about {duration(seconds)}"


def cost_line(work: Work, count: int, workers: int, measured: tuple[float, float]) -> str:
    """What the run costs at most, in passes and in seconds.

    Args:
        measured: seconds of a forward and of a backward of a micro-batch, from a trial.
    """
    forwards, backwards = passes_at_most(work.protocol)
    seconds = seconds_at_most(count, work=work, workers=workers, measured=measured)
    return (
        f"{work.protocol.name} on {count} images: at most {count * forwards:,} forwards and "
        f"{count * backwards:,} backwards, {estimate(seconds)} if all stay robust "
        f"({workers} process{'es, their start aside' if workers > 1 else ''}, "
        f"micro-batch {work.micro_batch_size}, {work.device})"
    )


def seconds_at_most(count: int, *, work: Work, workers: int, measured: tuple[float, float]) -> float:
    """What `count` samples take in all passes of the work; measured: as of `cost_line`."""
    forwards, backwards = passes_at_most(work.protocol)
    batches = max(count / work.micro_batch_size / workers, 1.0)  # one that is mostly padding costs as much
    return (forwards * measured[0] + backwards * measured[1]) * batches


class Pace:
    """Follows the findings of a ledger and tells a reporter.

    Args:
        lanes: samples that are attacked at a time, over all processes.
        at_most: seconds that so many samples take in all attacks, if nothing breaks them; said once, when the
            clean pass has told how many there are.
        clock: seconds since any moment.
    """

    def __init__(
        self,
        ledger: Ledger,
        protocol: Protocol,
        reporter: Reporter,
        lanes: int,
        at_most: Callable[[int], float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._reporter, self._lanes, self._clock = ledger, reporter, lanes, clock
        self._at_most = at_most if ledger.left[CLEAN] else None
        # A backward pass takes about as long as a forward: close enough for a time that is an upper bound.
        costs = [protocol.draws, *(sum(attack.passes) for attack in protocol.attacks)]
        # What a sample costs from a stage to the end, if nothing breaks it.
        self._to_the_end = [sum(costs[stage:]) for stage in range(len(costs))]
        self._spent, self._start = 0, clock()
        self._end: float | None = None
        self._before = list(ledger.done)
        self._begun: dict[int, float] = {}

    def show(self, findings: Sequence[Finding]) -> None:
        """Report where things stand after a batch of findings, which the ledger has."""
        if not findings:
            return
        ledger, now, stage = self._ledger, self._clock(), findings[-1].stage
        self._spent += sum(found.forwards + found.backwards for found in findings)
        begun = self._begun.setdefault(stage, self._start if stage == CLEAN else now)
        done = ledger.done[stage]
        seconds, fresh = now - begun, done - self._before[stage]
        total = done + sum(ledger.left[: stage + 1])
        # What is in the lanes has taken its time and is not counted yet. Until a batch's worth of samples is
        # through, that is nearly everything, and the estimate from before this stage is the better one.
        if stage != CLEAN and fresh >= min(self._lanes, total - self._before[stage]):
            left = sum(n * cost for n, cost in zip(ledger.left, self._to_the_end, strict=True))
            self._end = now + (now - self._start) * left / self._spent
        if self._at_most is not None and not ledger.left[CLEAN]:
            self._say_after_clean(self._at_most, now)
        self._reporter.update(
            ledger.name(stage),
            done,
            total,
            robust=ledger.robust,
            of=ledger.done[CLEAN],
            rate=fresh / seconds if seconds > 0 else None,
            seconds_left=None if self._end is None else max(self._end - now, 0.0),
        )

    def _say_after_clean(self, at_most: Callable[[int], float], now: float) -> None:
        """Only now is it known how many samples there are to attack."""
        count, self._at_most = sum(self._ledger.left), None
        if self._end is None and count:
            seconds = at_most(count)
            self._end = now + seconds
            self._reporter.say(
                f"clean: {self._ledger.correct} of {self._ledger.done[CLEAN]} images are classified "
                f"correctly; the attacks on {count} take {estimate(seconds)} if all stay robust"
            )
