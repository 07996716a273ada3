"""The bound's terms by hand, and what it refuses."""

from __future__ import annotations

import math

import pytest

from robustzoo.diagnostics.bound import Bound, BoundError, Prior


def test_lambda_and_gamma_are_the_papers():
    prior = Prior(sigma0_squared=0.25, beta=8.0)
    assert prior.trh_lambda == 0.125
    assert prior.trh_gamma == 0.25
    assert Prior.of_recipe(0.125, 0.25) == prior


def test_terms_by_hand():
    bound = Bound(Prior(0.5, 4.0), robust_loss=1.5, square_norm=12.0, trace=8.0, samples=100, tau=0.1)
    assert bound.norm_term == pytest.approx(12.0 / (2 * 4.0 * 0.5))
    assert bound.trace_term == pytest.approx(0.25 * 8.0)
    assert bound.value == pytest.approx(1.5 + 3.0 + 2.0)
    assert bound.confidence_term == pytest.approx(math.log(10.0) / 4.0)
    assert bound.moment_term is None and bound.total is None


def test_the_constant_needs_an_assumption():
    bound = Bound(Prior(0.5, 4.0), 1.0, 0.0, 0.0, samples=50, tau=1.0, sub_gaussian=2.0)
    assert bound.moment_term == pytest.approx(4.0 * 2.0 / 100.0)
    assert bound.total == pytest.approx(1.08)


@pytest.mark.parametrize("values", [(0.0, 1.0), (1.0, -1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_a_prior_is_positive_and_finite(values):
    with pytest.raises(BoundError, match="above 0"):
        Prior(*values)


@pytest.mark.parametrize("values", [(None, 1e-4), (1e-4, None), (0.0, 1e-4), (1e-4, 0.0)])
def test_a_recipe_without_trh_stands_for_no_prior(values):
    with pytest.raises(BoundError, match="give both"):
        Prior.of_recipe(*values)


@pytest.mark.parametrize(
    "wrong", [{"tau": 0.0}, {"tau": 1.5}, {"samples": 0}, {"sub_gaussian": -1.0}, {"sub_gaussian": math.nan}]
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(BoundError, match=next(iter(wrong))):
        Bound(
            **{"prior": Prior(1.0, 1.0), "robust_loss": 1.0, "square_norm": 1.0, "trace": 1.0, "samples": 5}
            | wrong
        )
