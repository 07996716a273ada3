"""How fast an evaluation goes, how long it will take at most, and how robust the model looks so far."""

from __future__ import annotations

import time
from collections.abc import Sequence

from robustzoo.attacks.protocols import Protocol
from robustzoo.evaluation.findings import CLEAN, Finding
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.progress import Reporter


class Pace:
    """Follows the findings of a ledger and tells a reporter."""

    def __init__(self, ledger: Ledger, protocol: Protocol, reporter: Reporter) -> None:
        self._ledger, self._reporter = ledger, reporter
        # A backward pass takes about as long as a forward: close enough for a time that is an upper bound.
        costs = [protocol.draws, *(sum(member.passes) for member in protocol.members)]
        # What a sample costs from a stage to the end, if nothing breaks it.
        self._to_the_end = [sum(costs[stage:]) for stage in range(len(costs))]
        self._spent, self._start = 0, time.monotonic()
        self._before = list(ledger.done)
        self._begun: dict[int, float] = {}

    def show(self, findings: Sequence[Finding]) -> None:
        """Report where things stand after a batch of findings, which the ledger has."""
        if not findings:
            return
        ledger, now, stage = self._ledger, time.monotonic(), findings[-1].stage
        self._spent += sum(found.forwards + found.backwards for found in findings)
        begun = self._begun.setdefault(stage, self._start if stage == CLEAN else now)
        done = ledger.done[stage]
        seconds, fresh = now - begun, done - self._before[stage]
        left = sum(n * cost for n, cost in zip(ledger.left, self._to_the_end, strict=True))
        self._reporter.update(
            ledger.name(stage),
            done,
            done + sum(ledger.left[: stage + 1]),
            robust=ledger.robust,
            of=ledger.done[CLEAN],
            rate=fresh / seconds if seconds > 0 else None,
            seconds_left=(now - self._start) * left / self._spent if self._spent else None,
        )
