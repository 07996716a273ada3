"""The bound's terms by hand, its exact forms against numeric minimisation, and what it refuses."""

from __future__ import annotations

import math

import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from robustzoo.diagnostics.bound import LINEAR_UP_TO, Bound, Guarantee, Prior
from robustzoo.errors import RobustzooError


def test_lambda_and_gamma_are_the_papers():
    prior = Prior(sigma0_squared=0.25, beta=8.0)
    assert prior.trh_lambda == 0.125
    assert prior.trh_gamma == 0.25
    assert Prior.of_recipe(0.125, 0.25) == prior


def test_terms_by_hand():
    bound = Bound(Prior(0.5, 4.0), Guarantee(100, tau=0.1), robust_loss=1.5, square_norm=12.0, trace=8.0)
    assert bound.norm_term == pytest.approx(12.0 / (2 * 4.0 * 0.5))
    assert bound.trace_term == pytest.approx(0.25 * 8.0)
    assert bound.value == pytest.approx(1.5 + 3.0 + 2.0)
    assert bound.confidence_term == pytest.approx(math.log(10.0) / 4.0)
    assert bound.moment_term is None and bound.total is None


def test_the_constant_needs_an_assumption():
    bound = Bound(Prior(0.5, 4.0), Guarantee(50, tau=1.0, sub_gaussian=2.0), 1.0, 0.0, 0.0)
    assert bound.moment_term == pytest.approx(4.0 * 2.0 / 100.0)
    assert bound.total == pytest.approx(1.08)


@pytest.mark.parametrize(
    "values", [(0.0, 1.0), (1.0, -1.0), (math.inf, 1.0), (1.0, math.nan), (1e-200, 1e-200), (1e200, 1e200)]
)
def test_a_prior_is_positive_and_finite(values):
    with pytest.raises(RobustzooError, match="above 0"):
        Prior(*values)


@pytest.mark.parametrize("values", [(None, 1e-4), (1e-4, None), (0.0, 1e-4), (1e-4, 0.0)])
def test_a_recipe_without_trh_stands_for_no_prior(values):
    with pytest.raises(RobustzooError, match="give both"):
        Prior.of_recipe(*values)


@pytest.mark.parametrize(
    "wrong", [{"tau": 0.0}, {"tau": 1.5}, {"samples": 0}, {"sub_gaussian": -1.0}, {"sub_gaussian": math.nan}]
)
def test_values_out_of_range_are_refused(wrong):
    with pytest.raises(RobustzooError, match=next(iter(wrong))):
        Guarantee(**{"samples": 5, **wrong})


def free_energy(variance, curvature, prior):
    """Expected loss beyond its value at the mean, plus the divergence's part, of one weight."""
    ratio = variance / prior.sigma0_squared
    return 0.5 * curvature * variance + (ratio - 1.0 - math.log(ratio)) / (2.0 * prior.beta)


def minimum(of, low, high):
    """The least value of a function of log variance, by a search that knows no formula."""
    return minimize_scalar(lambda log: of(math.exp(log)), bounds=(low, high), method="bounded").fun


@pytest.mark.parametrize("curvatures", [(0.5, 2.0, 7.0), (1e-3, 0.0, 40.0), (-0.04, 0.02, 3.0)])
@pytest.mark.parametrize("prior", [Prior(0.25, 8.0), Prior(2.0, 5.0), Prior(1e-2, 900.0)])
def test_exact_forms_are_the_minimum_over_the_posteriors_variances(curvatures, prior):
    """Of a quadratic loss, where the second-order expansion of the proof is no approximation."""
    one = minimum(lambda v: sum(free_energy(v, h, prior) for h in curvatures), -25, 25)
    assert prior.spherical_term(sum(curvatures), 3) == pytest.approx(one, rel=1e-6, abs=1e-9)
    found = prior.diagonal_term(curvatures, 3)
    each = sum(minimum(lambda v, h=h: free_energy(v, h, prior), -25, 25) for h in curvatures)
    assert found.minimum == pytest.approx(each, rel=1e-6, abs=1e-9)
    assert (found.standard_error, found.without_minimum) == (0.0, 0.0)
    top = math.log(prior.sigma0_squared)
    capped = sum(minimum(lambda v, h=h: free_energy(v, h, prior), -25, top) for h in curvatures)
    assert found.capped == pytest.approx(capped, rel=1e-5, abs=1e-5)
    assert found.minimum <= prior.spherical_term(sum(curvatures), 3) + 1e-12  # the log is concave
    x = [prior.argument(h) for h in curvatures]
    assert (found.smallest, found.largest) == (min(x), max(x))


def test_case_two_is_the_gibbs_posteriors_free_energy():
    """-log E_prior exp(-beta loss) / beta, by quadrature, is the least of expected loss + KL / beta."""
    prior, h, a = Prior(0.3, 12.0), 5.0, 0.8

    def density(w):
        return math.exp(-prior.beta * 0.5 * h * (w - a) ** 2 - w**2 / (2 * prior.sigma0_squared))

    mass = quad(density, -10, 10, epsabs=1e-13, points=(0.0, a))[0]
    exact = -math.log(mass / math.sqrt(2 * math.pi * prior.sigma0_squared)) / prior.beta
    theta = a * prior.argument(h) / (1 + prior.argument(h))  # minimises loss + |theta|^2 / (2 beta sigma0^2)
    bound = Bound(prior, Guarantee(1), 0.5 * h * (theta - a) ** 2, theta**2, h)
    term = prior.diagonal_term([h], 1).minimum
    assert bound.robust_loss + bound.norm_term + term == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("x", [-0.1, -0.01, 0.01, LINEAR_UP_TO])
def test_the_linear_form_is_within_its_range(x):
    prior = Prior(0.5, 4.0)
    trace = 7 * x / prior.argument(1.0)
    assert prior.trh_lambda * trace == pytest.approx(prior.spherical_term(trace, 7), rel=0.055)


def test_the_linear_form_exceeds_case_one_beyond_it():
    """The first figures of the bundled at_trh model: x near 33, the linear term 9 times case I."""
    prior = Prior.of_recipe(0.01, 1e-4)
    assert prior.trh_lambda * 1310.0 == pytest.approx(13.1)
    assert prior.argument(1310.0 / 202_186) == pytest.approx(32.4, abs=0.1)
    assert prior.spherical_term(1310.0, 202_186) == pytest.approx(1.42, abs=0.005)


def test_negative_curvature_beyond_the_divergence_has_no_minimum():
    prior = Prior(0.5, 4.0)  # x = 2 H
    assert prior.spherical_term(-1.0, 2) is None and prior.spherical_term(-0.9, 2) is not None
    found = prior.diagonal_term([-0.5, 1.0, 3.0, -2.0], 4)
    assert found.minimum is None and found.without_minimum == 0.5
    assert found.capped == pytest.approx((-1.0 + math.log(3.0) + math.log(7.0) - 4.0) / 8.0)


def test_some_weights_stand_for_all():
    prior = Prior(0.5, 4.0)
    found = prior.diagonal_term([0.0, 1.0], 1000)
    assert found.minimum == pytest.approx(1000 / 8 * math.log(3.0) / 2)
    assert found.standard_error == pytest.approx(1000 / 8 * math.log(3.0) / 2)  # stdev / sqrt(2)
