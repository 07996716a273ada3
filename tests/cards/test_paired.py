"""The paired table: published values, the definition of the test, and the coverage of the interval."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, multinomial

from robustzoo.cards.statistics import Paired


def test_counts_follow_from_the_verdicts():
    a, b = [True, True, False, False, True], [True, False, True, False, False]
    paired = Paired.of(a, b)
    assert (paired.both, paired.only_a, paired.only_b, paired.neither) == (1, 2, 1, 1)
    assert paired.difference == pytest.approx(np.mean(a) - np.mean(b))
    for bad in (([], []), ([True], [True, False])):
        with pytest.raises(ValueError, match="as many verdicts twice"):
            Paired.of(*bad)


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        # Newcombe (1998), Statistics in Medicine 17: 2635-2650, table II, method 10.
        ((36, 12, 2, 0), 0.0569, 0.3404),
        ((53, 0, 1, 0), -0.0979, 0.0485),
        ((0, 30, 0, 24), 0.4071, 0.6792),
        ((54, 0, 0, 0), -0.0664, 0.0664),
    ],
)
def test_the_interval_is_newcombes(table, low, high):
    assert Paired(*table).interval() == pytest.approx((low, high), abs=2e-3)


cells = st.tuples(*[st.integers(0, 60)] * 4).filter(any)


@given(cells)
def test_swapping_the_models_mirrors_everything(table):
    both, only_a, only_b, neither = table
    one, other = Paired(both, only_a, only_b, neither), Paired(both, only_b, only_a, neither)
    low, high = one.interval()
    assert -1 <= low <= one.difference <= high <= 1
    assert other.interval() == pytest.approx((-high, -low), abs=1e-12)
    assert one.p_value == pytest.approx(other.p_value)
    # The exact test is twice the smaller binomial tail.
    m, k = only_a + only_b, min(only_a, only_b)
    assert one.p_value == pytest.approx(min(1.0, 2 * binom.cdf(k, m, 0.5)))


@pytest.mark.parametrize("cell", [(0.6, 0.1, 0.05, 0.25), (0.3, 0.2, 0.2, 0.3), (0.8, 0.1, 0.02, 0.08)])
def test_the_interval_covers(cell):
    n = 30
    covered = 0.0
    for both, only_a, only_b in itertools.product(range(n + 1), repeat=3):
        neither = n - both - only_a - only_b
        if neither < 0:
            continue
        chance = multinomial.pmf((both, only_a, only_b, neither), n, cell) if _likely(cell, n, both) else 0.0
        if chance < 1e-7:
            continue
        low, high = Paired(both, only_a, only_b, neither).interval()
        covered += chance * (low <= cell[1] - cell[2] <= high)
    assert covered >= 0.93


def _likely(cell, n, both) -> bool:
    return abs(both - n * cell[0]) < 5 * (n * cell[0] * (1 - cell[0])) ** 0.5
