"""Accuracies as counts, and the intervals that belong to them."""

from __future__ import annotations

from dataclasses import dataclass

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

    def __str__(self) -> str:
        return f"{self.percent} ({self.correct} / {self.n}, 95 % interval {self.interval})"
