"""The PAC-Bayes bound that the trace of the Hessian comes from: its terms and its value for a trained model.

With a prior N(0, sigma0^2) over the weights and a Gaussian posterior of free variances around theta, with
probability at least 1 - tau over the m training samples (the paper's main theorem):

    min_Q E_Q[robust test loss]  <=  L(theta) + |theta|^2 / (2 beta sigma0^2)
                                     + (sigma0^2 / 2) Tr Hess L(theta) + C(tau, beta, m) + O(sigma0^4)

L is the mean robust loss on the training samples, and theta minimises the right-hand side: at the weights of
a trained model it is a value of that objective. In the terms of a recipe, lambda = sigma0^2 / 2 weighs the
trace and gamma = 1 / (2 beta sigma0^2) the square norm: sigma0^2 = 2 lambda and beta = 1 / (4 lambda gamma).

What the paper does not state: tau, the constant behind O(sigma0^4), and C. The theorem it builds on (Germain
et al. 2016) has C = (log(1/tau) + Psi) / beta with Psi = log E_prior E_data exp(beta (test - training loss)),
which the unknown distribution decides. For a loss that is sub-Gaussian with variance factor s^2 under prior
and data, Psi <= beta^2 s^2 / (2 m). The value is therefore given without C, and C only where s^2 is assumed.

The trace's term is the first of a series. For a loss that is quadratic around theta the proof minimises over
the posterior's variances exactly and has, with x = sigma0^2 beta times a second derivative,

    case I, one variance for all N weights    N / (2 beta) log(1 + x),  x = sigma0^2 beta Tr / N
    case II, a variance for each weight       1 / (2 beta) sum_n log(1 + x_n)

and then takes x for log(1 + x), which is 5 % too large at x = 0.1 and 44 % at x = 1, where the series ceases
to converge. Where x <= -1 there is no minimum: the curvature takes more than the divergence costs, and the
variance grows without end.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from robustzoo.errors import RobustzooError

LINEAR_UP_TO = 0.1  # largest |x| at which x is within about 5 % of log(1 + x)


@dataclass(frozen=True)
class Prior:
    """sigma0_squared: variance of the prior, > 0. beta: weight of the data against the prior, > 0.

    Raises:
        RobustzooError: a value, or their product, that is not positive and finite.
    """

    sigma0_squared: float
    beta: float

    def __post_init__(self) -> None:
        for name, value in (("sigma0_squared", self.sigma0_squared), ("beta", self.beta)):
            if not (math.isfinite(value) and value > 0):
                raise RobustzooError(f"{name} is {value}; expected a finite number above 0")
        if not 0 < self.sigma0_squared * self.beta < math.inf:
            raise RobustzooError(
                f"sigma0_squared {self.sigma0_squared:g} times beta {self.beta:g} is no finite number above 0"
            )

    @classmethod
    def of_recipe(cls, trh_lambda: float | None, trh_gamma: float | None) -> Prior:
        """The prior that a recipe's lambda and gamma stand for.

        Raises:
            RobustzooError: one of them is absent or not positive: no prior gives such an objective.
        """
        for name, value in (("lambda", trh_lambda), ("gamma", trh_gamma)):
            if value is None or not (math.isfinite(value) and value > 0):
                raise RobustzooError(
                    f"{name} is {'not set' if value is None else f'{value:g}'}; the bound needs lambda and "
                    "gamma above 0, as a TrH recipe has them: give both, or sigma0 and beta"
                )
        product = 4.0 * trh_lambda * trh_gamma
        if product == 0.0 or math.isinf(1.0 / product):
            raise RobustzooError(
                f"lambda {trh_lambda:g} and gamma {trh_gamma:g} leave beta no finite number; give larger ones"
            )
        return cls(2.0 * trh_lambda, 1.0 / product)

    @property
    def trh_lambda(self) -> float:
        """sigma0^2 / 2."""
        return self.sigma0_squared / 2.0

    @property
    def trh_gamma(self) -> float:
        """1 / (2 beta sigma0^2)."""
        return 1.0 / (2.0 * self.beta * self.sigma0_squared)

    def argument(self, curvature: float) -> float:
        """x = sigma0^2 beta curvature, of a weight's second derivative or the mean one, Tr / N."""
        return self.sigma0_squared * self.beta * curvature

    def spherical_term(self, trace: float, weights: int) -> float | None:
        """Case I: N / (2 beta) log(1 + sigma0^2 beta Tr / N) for N weights; None where it has no minimum."""
        x = self.argument(trace / weights)
        return weights / (2.0 * self.beta) * math.log1p(x) if x > -1.0 else None

    def diagonal_term(self, curvatures: Sequence[float], weights: int) -> DiagonalTerm:
        """Case II: 1 / (2 beta) sum_n log(1 + sigma0^2 beta H_nn) over N weights.

        curvatures: H_nn of all weights, or of at least 2 drawn at random with replacement.
        """
        x = [self.argument(curvature) for curvature in curvatures]
        capped = [math.log1p(value) if value > 0.0 else value for value in x]
        exists = min(x) > -1.0
        logarithms = [math.log1p(value) for value in x] if exists else capped
        error = 0.0 if len(x) == weights else statistics.stdev(logarithms) / math.sqrt(len(x))
        scale = weights / (2.0 * self.beta)
        return DiagonalTerm(
            minimum=scale * statistics.fmean(logarithms) if exists else None,
            capped=scale * statistics.fmean(capped),
            standard_error=scale * error,
            smallest=min(x),
            largest=max(x),
            without_minimum=sum(value <= -1.0 for value in x) / len(x),
        )


@dataclass(frozen=True)
class DiagonalTerm:
    """Case II of the bound, of all weights or estimated from some.

    minimum: the term; None where a weight has x <= -1 and so no minimum.
    capped: the same with no variance above sigma0^2, as the proof takes the minimum to be: a weight of
        negative curvature has its variance at sigma0^2 and adds x / (2 beta).
    standard_error: of the minimum, or of `capped` where there is none; 0 for all weights.
    smallest, largest: of the x looked at. without_minimum: share of them that is <= -1.
    """

    minimum: float | None
    capped: float
    standard_error: float
    smallest: float
    largest: float
    without_minimum: float


@dataclass(frozen=True)
class Guarantee:
    """What C depends on beside beta.

    Args:
        samples: m, the size of the training set, at least 1.
        tau: 1 - confidence, in (0, 1].
        sub_gaussian: s^2 >= 0, an assumption about the loss; None: not made, so C is unknown.

    Raises:
        RobustzooError: a value out of range.
    """

    samples: int
    tau: float = 0.05
    sub_gaussian: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.tau <= 1:
            raise RobustzooError(f"tau is {self.tau}; expected a probability in (0, 1]")
        if self.samples < 1:
            raise RobustzooError(f"samples is {self.samples}; expected at least 1")
        if self.sub_gaussian is not None and not (
            math.isfinite(self.sub_gaussian) and self.sub_gaussian >= 0
        ):
            raise RobustzooError(
                f"sub_gaussian is {self.sub_gaussian}; expected a finite variance factor of at least 0"
            )


@dataclass(frozen=True)
class Bound:
    """The bound's terms at given weights.

    Args:
        prior: sigma0^2 and beta.
        guarantee: samples, tau and what is assumed of the loss.
        robust_loss: L(theta), mean over the samples looked at.
        square_norm: |theta|^2 over all parameters.
        trace: Tr Hess L(theta), of the top layer (the paper's training objective) or of all parameters.
    """

    prior: Prior
    guarantee: Guarantee
    robust_loss: float
    square_norm: float
    trace: float

    @property
    def norm_term(self) -> float:
        """|theta|^2 / (2 beta sigma0^2)."""
        return self.prior.trh_gamma * self.square_norm

    @property
    def trace_term(self) -> float:
        """(sigma0^2 / 2) Tr Hess L."""
        return self.prior.trh_lambda * self.trace

    @property
    def value(self) -> float:
        """The right-hand side without C and without O(sigma0^4): the quantity that training minimises."""
        return self.robust_loss + self.norm_term + self.trace_term

    @property
    def confidence_term(self) -> float:
        """log(1/tau) / beta, the part of C that needs no assumption."""
        return math.log(1.0 / self.guarantee.tau) / self.prior.beta

    @property
    def moment_term(self) -> float | None:
        """beta s^2 / (2 m), the bound on Psi / beta for a sub-Gaussian loss; None without that assumption."""
        if self.guarantee.sub_gaussian is None:
            return None
        return self.prior.beta * self.guarantee.sub_gaussian / (2.0 * self.guarantee.samples)

    @property
    def total(self) -> float | None:
        """The right-hand side with C, still without O(sigma0^4); None where C is unknown."""
        moment = self.moment_term
        return None if moment is None else self.value + self.confidence_term + moment
