"""The best reading of a run: which checkpoint to keep, and when to stop early."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Best:
    """The highest held-out robust accuracy so far.

    Attributes:
        step: optimizer steps done at that reading; 0 before any.
        accuracy: in [0, 1].
        readings_since: readings since then that were no higher.
    """

    step: int = 0
    accuracy: float = -1.0
    readings_since: int = 0

    def after(self, step: int, accuracy: float) -> Best:
        """With one more reading; of equal ones the first stays the best."""
        if accuracy > self.accuracy:
            return Best(step, accuracy)
        return Best(self.step, self.accuracy, self.readings_since + 1)

    def stops(self, patience: int | None) -> bool:
        """Whether `patience` readings in a row brought nothing; never where it is None."""
        return patience is not None and self.readings_since >= patience


NO_READING = Best()
