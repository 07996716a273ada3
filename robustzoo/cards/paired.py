"""Two models on the same images: how many only one of them gets right, and what that says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from robustzoo.cards.statistics import wilson


@dataclass(frozen=True)
class Paired:
    """The table of two verdicts per image: counts of images that both, only A, only B or neither gets
    right."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @classmethod
    def of(cls, a: Sequence[bool], b: Sequence[bool]) -> Paired:
        """From the verdicts, image by image. Raises: ValueError for none, or unequal numbers of them."""
        if not len(a) or len(a) != len(b):
            raise ValueError(f"expected as many verdicts twice, at least one, got {len(a)} and {len(b)}")
        pairs = [(bool(x), bool(y)) for x, y in zip(a, b, strict=True)]
        cells = ((True, True), (True, False), (False, True), (False, False))
        return cls(*(pairs.count(cell) for cell in cells))

    @property
    def n(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """Accuracy of A minus that of B."""
        return (self.only_a - self.only_b) / self.n

    @property
    def p_value(self) -> float:
        """Two-sided exact test of McNemar (1947): images that only one gets right are as often A's as B's."""
        from scipy.stats import binomtest

        discordant = self.only_a + self.only_b
        return 1.0 if not discordant else float(binomtest(self.only_a, discordant, 0.5).pvalue)

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Interval of the difference A - B: Newcombe (1998), method 10, from the score intervals of both.

        Returns:
            (low, high) in [-1, 1].
        """
        n, e, f, g, h = self.n, self.both, self.only_a, self.only_b, self.neither
        p, q = (e + f) / n, (e + g) / n
        (low_p, high_p), (low_q, high_q) = wilson(e + f, n, level), wilson(e + g, n, level)
        product = (e + f) * (g + h) * (e + g) * (f + h)
        numerator: float = e * h - f * g
        # Half an image a count is taken from a positive association, so that it is not overrated.
        if numerator > 0:
            numerator = max(numerator - n / 2, 0)
        phi = numerator / sqrt(product) if product else 0.0

        def reach(x: float, y: float) -> float:
            return sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

        return (
            max(self.difference - reach(p - low_p, high_q - q), -1.0),
            min(self.difference + reach(high_p - p, q - low_q), 1.0),
        )

    def to_json(self) -> dict[str, Any]:
        """Counts, difference, interval and p-value."""
        low, high = self.interval()
        return {**vars(self), "difference": self.difference, "low": low, "high": high, "p": self.p_value}
