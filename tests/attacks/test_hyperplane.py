"""The box-constrained move to a hyperplane: feasible, reaching it where possible, and the smallest."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import linprog, minimize

from robustzoo.attacks.geometry import perturbation_norm, toward_hyperplane
from robustzoo.errors import RobustzooError

NORMS = ("linf", "l2", "l1")
_unit = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))
_slope = st.one_of(st.sampled_from([0.0, 1.0, -1.0]), st.floats(-5, 5).map(lambda v: round(v, 3)))


@st.composite
def problems(draw):
    d = draw(st.integers(1, 7))
    t = draw(hnp.arrays(np.float64, (d,), elements=_unit))
    w = draw(hnp.arrays(np.float64, (d,), elements=_slope))
    return t, w, draw(st.floats(-6, 6))


def solve(t, w, gap, norm):
    tensors = (torch.from_numpy(np.stack([v])) for v in (t, w))
    return toward_hyperplane(*tensors, torch.tensor([gap], dtype=torch.float64), norm)[0].numpy()


def reach(t, w, gap):
    """The largest |w . d| towards the gap within the box."""
    return np.abs(np.where(w * np.sign(gap) > 0, w * (1 - t), -w * t)).sum()


def best_linf(t, w, gap):
    """min v with w . d = gap, |d_i| <= v, 0 <= t + d <= 1, as a linear program."""
    d = len(t)
    identity, ones = np.eye(d), np.ones((d, 1))
    program = linprog(
        c=np.r_[np.zeros(d), 1.0],
        A_ub=np.block([[identity, -ones], [-identity, -ones]]),
        b_ub=np.zeros(2 * d),
        A_eq=np.r_[w, 0.0][None],
        b_eq=[gap],
        bounds=[*zip(-t, 1 - t, strict=True), (0, None)],
    )
    return program.fun


def best_l1(t, w, gap):
    """min sum of u with w . d = gap, |d_i| <= u_i, 0 <= t + d <= 1, as a linear program."""
    d = len(t)
    identity = np.eye(d)
    program = linprog(
        c=np.r_[np.zeros(d), np.ones(d)],
        A_ub=np.block([[identity, -identity], [-identity, -identity]]),
        b_ub=np.zeros(2 * d),
        A_eq=np.r_[w, np.zeros(d)][None],
        b_eq=[gap],
        bounds=[*zip(-t, 1 - t, strict=True), *[(0, None)] * d],
    )
    return program.fun


def best_l2(t, w, gap):
    result = minimize(
        lambda d: d @ d,
        np.zeros(len(t)),
        jac=lambda d: 2 * d,
        bounds=[*zip(-t, 1 - t, strict=True)],
        constraints={"type": "eq", "fun": lambda d: w @ d - gap, "jac": lambda d: w},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return np.sqrt(result.fun) if result.success else None


@pytest.mark.parametrize("norm", NORMS)
@settings(max_examples=60)
@given(problem=problems())
def test_move_is_feasible_and_closes_what_can_be_closed(norm, problem):
    t, w, gap = problem
    d = solve(t, w, gap, norm)
    assert np.isfinite(d).all()
    assert (t + d >= -1e-12).all() and (t + d <= 1 + 1e-12).all()
    assert (d[w == 0] == 0).all()
    expected = np.sign(gap) * min(abs(gap), reach(t, w, gap))
    assert w @ d == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("norm, best", [("linf", best_linf), ("l2", best_l2), ("l1", best_l1)])
@settings(max_examples=60)
@given(problem=problems())
def test_move_is_the_smallest(norm, best, problem):
    t, w, gap = problem
    if not 1e-3 < abs(gap) < 0.999 * reach(t, w, gap):
        return
    optimum = best(t, w, gap)
    if optimum is None:
        return
    d = torch.from_numpy(solve(t, w, gap, norm)).unsqueeze(0)
    assert float(perturbation_norm(d, norm)) <= optimum + 1e-6


@pytest.mark.parametrize("norm", NORMS)
def test_rows_do_not_touch_each_other_and_scale_does_not_matter(norm):
    g = torch.Generator().manual_seed(0)
    t, w, gap = (
        torch.rand(9, 300, generator=g),
        torch.randn(9, 300, generator=g),
        torch.randn(9, generator=g) * 30,
    )
    moves = toward_hyperplane(t, w, gap, norm)
    order = torch.randperm(9, generator=g)
    assert torch.equal(toward_hyperplane(t[order], w[order], gap[order], norm), moves[order])
    for scale in (2.0**-100, 2.0**60):
        torch.testing.assert_close(toward_hyperplane(t, w * scale, gap * scale, norm), moves)
    torch.testing.assert_close((w * moves).sum(1), gap, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("norm", NORMS)
def test_no_slope_no_move(norm):
    moves = toward_hyperplane(torch.rand(2, 5), torch.zeros(2, 5), torch.tensor([1.0, 0.0]), norm)
    assert torch.equal(moves, torch.zeros(2, 5))


def test_unknown_norm():
    with pytest.raises(RobustzooError, match="l0"):
        toward_hyperplane(torch.rand(1, 5), torch.rand(1, 5), torch.ones(1), "l0")
