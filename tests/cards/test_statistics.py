"""Intervals against closed forms, published values and the definition."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import betabinom, binom, binomtest, hypergeom

from robustzoo.cards import Accuracy, clopper_pearson, wilson
from robustzoo.cards.statistics import FAILURE_PRIOR, FailureSequence

counts = st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize("n", [1, 7, 500, 50_000])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_exact_interval_at_the_ends_has_a_closed_form(n, level):
    edge = ((1 - level) / 2) ** (1 / n)
    assert clopper_pearson(0, n, level) == pytest.approx((0, 1 - edge), abs=1e-12)
    assert clopper_pearson(n, n, level) == pytest.approx((edge, 1), abs=1e-12)


@given(counts)
def test_exact_interval_is_defined_by_its_tails(kn):
    k, n = kn
    low, high = clopper_pearson(k, n)
    assert 0 <= low <= k / n <= high <= 1
    if k > 0:
        assert binom.sf(k - 1, n, low) == pytest.approx(0.025, rel=1e-6)
    if k < n:
        assert binom.cdf(k, n, high) == pytest.approx(0.025, rel=1e-6)


@given(counts)
def test_intervals_agree_with_scipy(kn):
    k, n = kn
    test = binomtest(k, n)
    assert clopper_pearson(k, n) == pytest.approx(tuple(test.proportion_ci(0.95, "exact")), abs=1e-9)
    assert wilson(k, n) == pytest.approx(tuple(test.proportion_ci(0.95, "wilson")), abs=1e-9)


def test_wilson_known_value():
    # Newcombe 1998, table I: 81 of 263.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert clopper_pearson(81, 263) == pytest.approx((0.2527, 0.3676), abs=5e-5)


@pytest.mark.parametrize(
    ("k", "n", "level"), [(-1, 5, 0.95), (6, 5, 0.95), (0, 0, 0.95), (1, 2, 0), (1, 2, 1)]
)
@pytest.mark.parametrize("interval", [clopper_pearson, wilson])
def test_impossible_counts_are_refused(interval, k, n, level):
    with pytest.raises(ValueError, match="expected"):
        interval(k, n, level)


def test_accuracy_for_machines_and_people():
    accuracy = Accuracy.of(407, 500)
    assert accuracy.to_json() == {**vars(accuracy)}
    assert Accuracy(**accuracy.to_json()) == accuracy
    assert str(accuracy) == "81.4 % (407 / 500, 95 % interval 77.7 to 84.7 %)"
    assert all(math.isclose(bound, round(bound, 9), abs_tol=0) for bound in (accuracy.low, accuracy.high))


@settings(max_examples=60)
@given(st.integers(2, 200), st.data())
def test_the_confidence_sequence_is_the_prior_posterior_ratio(size, data):
    """Against scipy's own distributions: an F is excluded where they differ 20-fold."""
    truth = data.draw(st.integers(0, size))
    drawn = data.draw(st.integers(1, size))
    failures = data.draw(st.integers(max(0, drawn - (size - truth)), min(drawn, truth)))
    sequence = FailureSequence(size)
    sequence.update([True] * failures + [False] * (drawn - failures))
    everything = np.arange(size + 1)
    marginal = betabinom.pmf(failures, drawn, *FAILURE_PRIOR)
    kept = everything[marginal < 20 * (1 - 1e-9) * hypergeom.pmf(failures, size, everything, drawn)]
    if len(kept):
        assert (sequence.low, sequence.high) == (kept[0], kept[-1])
    if drawn == size:
        assert sequence.low == sequence.high == failures


@settings(max_examples=40)
@given(st.integers(2, 300), st.data())
def test_how_many_draws_without_a_failure_exclude_a_count(size, data):
    sequence, outcomes = FailureSequence(size), data.draw(st.lists(st.booleans(), max_size=size // 2))
    sequence.update(outcomes)
    if sequence.low < sequence.high:
        candidate = data.draw(st.integers(sequence.low + 1, sequence.high))
        fewest = sequence.draws_to_exclude(candidate)
        for draws, expected in ((fewest, True), (fewest - 1, False)):
            after = copy.copy(sequence)
            after.update([False] * draws)
            assert (after.high < candidate) is expected


def test_a_ratio_of_exactly_20_excludes():
    """After one success of 101, (100 / 101) / ((101 - F) / 101) reaches 20 at F = 96."""
    sequence = FailureSequence(101)
    sequence.update([False])
    assert (sequence.low, sequence.high) == (0, 95)


def test_bounds_only_tighten_and_end_at_the_count():
    sequence, outcomes = FailureSequence(90), [False] * 60 + [True] * 30
    for outcome in outcomes[:45]:
        low, high = sequence.low, sequence.high
        sequence.update([outcome])
        assert low <= sequence.low <= sequence.high <= high
    sequence.update(outcomes[45:])
    assert (sequence.low, sequence.high, sequence.failures) == (30, 30, 30)
    with pytest.raises(ValueError, match="91 draws without replacement from 90"):
        sequence.update([True])


@pytest.mark.parametrize("arguments", [(0,), (5, 1.0), (5, 0.95, (0.0, 1.0))])
def test_a_sequence_that_cannot_be(arguments):
    with pytest.raises(ValueError, match="expected"):
        FailureSequence(*arguments)
