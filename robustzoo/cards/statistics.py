"""Accuracies as counts, alone and of two models on the same images, and the intervals that belong to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# Beta prior of a failure rate among images that a first tier left: one in a hundred, weakly held. Fixed here,
# before any draw; see FailureSequence.
FAILURE_PRIOR = (1.0, 100.0)
# A ratio that reaches its limit exactly, as small integers make it, may be computed as just below it: sums of
# some log-gammas are right to about 1e-12.
_ROUNDING = 1e-9
# Bounds are rounded so that two versions of scipy, which may differ in the last bits, write the same bytes.
_DECIMALS = 9


def clopper_pearson(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Exact two-sided binomial interval for k successes of n (Clopper and Pearson, 1934).

    Covers the true rate with probability `level` or more for every n. With a = 1 - level, 0 of n gives
    [0, 1 - (a/2)^(1/n)] and n of n gives [(a/2)^(1/n), 1].

    Returns:
        (low, high) in [0, 1].

    Raises:
        ValueError: k outside 0..n, n < 1, or level outside (0, 1).
    """
    _check(k, n, level)
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return low, high


def wilson(k: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval for k successes of n (Wilson, 1927): narrower than the exact one, right on average only.

    Returns:
        (low, high) in [0, 1].

    Raises:
        ValueError: k outside 0..n, n < 1, or level outside (0, 1).
    """
    _check(k, n, level)
    from scipy.special import ndtri

    z = float(ndtri((1 + level) / 2))
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * (k * (n - k) / n + z * z / 4) ** 0.5
    # At the ends the formula gives 0 and 1 up to rounding; say so exactly.
    return (0.0 if k == 0 else centre - half), (1.0 if k == n else centre + half)


def _check(k: int, n: int, level: float) -> None:
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"expected 0 <= k <= n and n >= 1, got k={k}, n={n}")
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, for example 0.95, got {level}")


@dataclass(frozen=True)
class Accuracy:
    """A share of images with its counts: `correct` of `n`, and the exact 95 % interval [low, high]."""

    value: float
    low: float
    high: float
    correct: int
    n: int

    @classmethod
    def of(cls, correct: int, n: int) -> Accuracy:
        """The accuracy that the counts give. Raises: ValueError where they are impossible."""
        low, high = clopper_pearson(correct, n)
        return cls(correct / n, round(low, _DECIMALS), round(high, _DECIMALS), correct, n)

    def to_json(self) -> dict[str, float | int]:
        """The Evidence form, one key a field."""
        return {"value": self.value, "low": self.low, "high": self.high, "correct": self.correct, "n": self.n}

    @property
    def percent(self) -> str:
        """For people: "81.4 %"."""
        return f"{100 * self.value:.1f} %"

    @property
    def interval(self) -> str:
        """For people: "77.7 to 84.7 %"."""
        return f"{100 * self.low:.1f} to {100 * self.high:.1f} %"

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.percent} ({self.correct} / {self.n}, 95 % interval {self.interval})"


class FailureSequence:
    """Confidence sequence for the number F of failures among `population` images, drawn without replacement.

    Valid at every time of looking and so at any rule of stopping: over all draws of a uniformly random
    order, the true F is ever outside [low, high] with probability 1 - level at most. It is the
    prior-posterior ratio of Waudby-Smith and Ramdas (2020): with a beta-binomial prior on F, fixed before
    the first draw, the marginal probability of the outcomes over their hypergeometric one under F is a
    martingale with mean 1 under the true F, and Ville's inequality excludes every F where it reaches
    1 / (1 - level). The prior decides how fast the interval shrinks, never whether it is right.

    Attributes:
        drawn, failures: so far. low, high: bounds on F, which only ever tighten.

    Raises:
        ValueError: an empty population, a level outside (0, 1), a prior that is not positive, or more draws
            than images.
    """

    def __init__(
        self, population: int, level: float = 0.95, prior: tuple[float, float] = FAILURE_PRIOR
    ) -> None:
        _check(0, population, level)
        if min(prior) <= 0:
            raise ValueError(f"expected a prior of two positive numbers, got {prior}")
        import numpy as np
        from scipy.special import gammaln

        self.population, self.level, self.prior = population, level, prior
        self.drawn = self.failures = self.low = 0
        self.high = population
        self._log_factorial = gammaln(np.arange(population + 1) + 1.0)

    def update(self, outcomes: Iterable[bool]) -> None:
        """Add outcomes in the order of their draw (True: a failure), then exclude what they contradict."""
        added = [bool(outcome) for outcome in outcomes]
        if self.drawn + len(added) > self.population:
            raise ValueError(f"{self.drawn + len(added)} draws without replacement from {self.population}")
        self.drawn += len(added)
        self.failures += sum(added)
        import numpy as np

        # What the outcomes leave for certain; a bound outside it was wrong (by chance, see above).
        first, last = self.failures, self.population - self.drawn + self.failures
        low, high = max(self.low, first), min(self.high, last)
        candidates = np.arange(low, high + 1) if low <= high else np.arange(first, last + 1)
        ratio = self._log_ratio(candidates)
        # The probability of the outcomes rises and then falls in F, so what is kept has no gaps.
        kept = candidates[(ratio < -np.log1p(-self.level) - _ROUNDING) | (ratio == ratio.min())]
        self.low, self.high = int(kept[0]), int(kept[-1])

    def draws_to_exclude(self, candidate: int) -> int:
        """The fewest further draws, none of them a failure, after which F is below `candidate`."""
        import numpy as np

        # With more draws than that, fewer images than `candidate` would be left to fail.
        certain = self.population - candidate - self.drawn + self.failures + 1
        ratio = self._log_ratio(np.array(candidate), self.drawn + np.arange(1, certain))
        excluded = (ratio >= -np.log1p(-self.level) - _ROUNDING).nonzero()[0]
        return int(excluded[0]) + 1 if len(excluded) else max(certain, 0)

    def _log_ratio(self, candidates: np.ndarray, drawn: int | np.ndarray | None = None) -> np.ndarray:
        """Log of marginal over hypergeometric probability of the outcomes, for each candidate F.

        drawn: how many outcomes there would be; default: as many as there are.
        """
        from scipy.special import betaln

        s, size, (a, b) = self.failures, self.population, self.prior
        n = self.drawn if drawn is None else drawn

        def log_binomial(top: Any, bottom: Any) -> Any:
            return self._log_factorial[top] - self._log_factorial[bottom] - self._log_factorial[top - bottom]

        hypergeometric = (
            log_binomial(candidates, s) + log_binomial(size - candidates, n - s) - log_binomial(size, n)
        )
        marginal = log_binomial(n, s) + betaln(s + a, n - s + b) - betaln(a, b)
        return marginal - hypergeometric


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
