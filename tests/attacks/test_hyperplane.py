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


def sorted_move(t, w, gap, norm):
    """`toward_hyperplane` by sorting the kinks (L1: the slopes): the oracle."""
    scale = w.abs().amax(1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
    slope, need = w.abs() / scale, gap.abs().unsqueeze(1) / scale
    direction = torch.sign(w) * torch.sign(gap).unsqueeze(1)
    room = torch.where(direction > 0, 1.0 - t, t)
    if norm == "l1":
        down, order = slope.sort(dim=1, descending=True, stable=True)
        places = room.gather(1, order)
        gain = down * places
        left = (need - (gain.cumsum(1) - gain)).clamp_min(0.0)
        moved = torch.minimum(left / down.clamp_min(torch.finfo(w.dtype).tiny), places)
        moved = torch.where(down > 0, moved, 0.0)
        return direction * torch.zeros_like(moved).scatter(1, order, moved)
    weight, rate = (slope, torch.ones_like(slope)) if norm == "linf" else (slope.square(), slope)
    kinks = room if norm == "linf" else torch.where(weight > 0, room / slope.clamp_min(1e-300), 0.0)
    kinks, order = kinks.sort(dim=1)
    sorted_weight = weight.gather(1, order)
    passed = (sorted_weight * kinks).cumsum(1)
    moving = sorted_weight.flip(1).cumsum(1).flip(1)
    before = torch.cat((torch.zeros_like(passed[:, :1]), passed[:, :-1]), 1)
    piece = (before + kinks * moving < need).sum(1, keepdim=True)
    inside = piece.clamp_max(kinks.shape[1] - 1)
    level = (need - before.gather(1, inside)) / moving.gather(1, inside).clamp_min(1e-300)
    level = torch.where(piece < kinks.shape[1], level.clamp_min(0.0), torch.inf)
    return direction * torch.where(weight > 0, torch.minimum(level * rate, room), 0.0)


def boxes(kind, rows, d, g):
    """Points t and slopes w: inside the box, at its corners (no room one way), of few distinct slopes and
    rooms (ties), or of slopes over 15 orders of magnitude."""
    t, w = torch.rand(rows, d, generator=g), torch.randn(rows, d, generator=g)
    if kind == "corners":
        t = t.round()
    if kind == "ties":
        t, w = (4 * t).round() / 4, w.round()
    if kind == "steep":
        w = w.sign() * 10 ** (-15 * torch.rand(rows, d, generator=g))
    return t, w


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("kind", ["inside", "corners", "ties", "steep"])
@pytest.mark.parametrize("d", [1, 64, 3072])
def test_the_move_is_that_of_sorting(norm, kind, d):
    """To rounding, in float32 against float64, from no gap to one that no corner closes."""
    g = torch.Generator().manual_seed(d)
    t, w = boxes(kind, 24, d, g)
    reachable = (w.abs() * torch.where(w > 0, 1 - t, t)).sum(1)
    gap = reachable * torch.tensor([0.0, 1e-6, 0.01, 0.1, 0.4, 0.7, 0.99, 1.1]).repeat(3)
    gap[16:] *= -1
    moves = toward_hyperplane(t, w, gap, norm)
    expected = sorted_move(t.double(), w.double(), gap.double(), norm)
    # What the move closes, and its length; in L1 a rounding may hand the last part to the next coordinate.
    closed, wanted = ((w.double() * of).sum(1) for of in (moves.double(), expected))
    torch.testing.assert_close(closed, wanted, rtol=1e-5, atol=1e-12)
    lengths = (perturbation_norm(of, norm) for of in (moves.double(), expected))
    torch.testing.assert_close(*lengths, rtol=2e-5, atol=1e-12)
    assert ((t + moves).clamp(0, 1) - (t + moves)).abs().max() <= 1e-6
    exact = toward_hyperplane(t.double(), w.double(), gap.double(), norm)
    torch.testing.assert_close(exact, expected, rtol=1e-9, atol=1e-9 if norm == "l1" else 1e-12)


@pytest.mark.parametrize("norm", NORMS)
def test_slopes_that_are_no_number_end(norm):
    toward_hyperplane(torch.rand(2, 5), torch.full((2, 5), torch.nan), torch.ones(2), norm)
