"""What an evaluation will cost, before it starts, and how fast it goes while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from robustzoo.attacks.protocols import Protocol
from robustzoo.evaluation import machine
from robustzoo.evaluation.engine import Work
from robustzoo.evaluation.ledger import CLEAN, Finding, Ledger
from robustzoo.evaluation.progress import Reporter, estimate


def cost_line(
    model: nn.Module,
    x: Tensor,
    work: Work,
    count: int,
    workers: int,
    measured: tuple[float, float] | None = None,
) -> str:
    """What the run costs at most, in passes and (from a short trial on `x: (C, H, W)`) in seconds.

    Args:
        measured: seconds of a forward and of a backward of a micro-batch, where a trial has been made.
    """
    forwards, backwards = passes_at_most(work.protocol)
    if measured is None:
        batch = x.expand(work.micro_batch_size, *x.shape).to(work.device)
        measured = machine.seconds_per_pass(model, batch, gradients=backwards > 0)
    seconds = seconds_at_most((forwards, backwards), count, work, workers, measured)
    return (
        f"{work.protocol.name} on {count} images: at most {count * forwards:,} forwards and "
        f"{count * backwards:,} backwards, {estimate(seconds)} if all stay robust "
        f"({workers} process{'es, their start aside' if workers > 1 else ''}, "
        f"micro-batch {work.micro_batch_size}, "
        f"{work.device})"
    )


def seconds_at_most(
    passes: tuple[int, int], count: int, work: Work, workers: int, measured: tuple[float, float]
) -> float:
    """What `count` samples of so many (forwards, backwards) each take; `measured`: of a micro-batch."""
    batches = max(count / work.micro_batch_size / workers, 1.0)  # one that is mostly padding costs as much
    return (passes[0] * measured[0] + passes[1] * measured[1]) * batches


def passes_at_most(protocol: Protocol) -> tuple[int, int]:
    """(forwards, backwards) that a sample costs at most.

    One forward for the clean image and one for the second look at the point that breaks it (each for every
    draw of a random model), and what every attack needs: see `Attack.passes`.
    """
    passes = [attack.passes for attack in protocol.attacks]
    return 2 * protocol.draws + sum(forward for forward, _ in passes), sum(backward for _, backward in passes)


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
