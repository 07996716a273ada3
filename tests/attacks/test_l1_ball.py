"""The L1 ball in the box against a slow exact solver, and its sparse steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import brentq

from robustzoo.attacks.geometry import in_ball, nearest_in_l1_ball, random_start, sparse_step

_pixel = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))
_offset = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.25]), st.floats(-3, 3))


@st.composite
def problems(draw):
    d = draw(st.integers(1, 8))
    x = draw(hnp.arrays(np.float64, (d,), elements=_pixel))
    delta = draw(hnp.arrays(np.float64, (d,), elements=_offset))
    return x, delta, draw(st.sampled_from([0.01, 0.3, 1.0, 2.5, 20.0]))


def exact(x, delta, eps):
    """Soft thresholding clipped to the box, its level found by a bracketing root search."""

    def at(level):
        return np.clip(np.sign(delta) * np.maximum(np.abs(delta) - level, 0), -x, 1 - x)

    if np.abs(at(0.0)).sum() <= eps:
        return at(0.0)
    level = brentq(lambda v: np.abs(at(v)).sum() - eps, 0.0, np.abs(delta).max(), xtol=1e-15, rtol=1e-14)
    return at(level)


@settings(max_examples=150)
@given(problems())
def test_projection_is_the_exact_one(problem):
    x, delta, eps = problem
    point = nearest_in_l1_ball(torch.from_numpy(x + delta)[None], torch.from_numpy(x)[None], eps)[0].numpy()
    np.testing.assert_allclose(point - x, exact(x, (x + delta) - x, eps), atol=1e-9)


@settings(max_examples=60)
@given(problems(), st.integers(0, 2**31))
def test_no_point_of_ball_and_box_is_nearer(problem, seed):
    """The projection's own definition, tried on random points of the set: <p - proj, q - proj> <= 0."""
    x, delta, eps = (torch.from_numpy(v)[None] if isinstance(v, np.ndarray) else v for v in problem)
    far = x + delta
    point = nearest_in_l1_ball(far, x, eps)
    g = torch.Generator().manual_seed(seed)
    others = (x + torch.randn(50, x.shape[1], generator=g, dtype=x.dtype)).clamp(0, 1) - x
    others = x + others * (eps / others.abs().sum(1, keepdim=True).clamp_min(eps))
    assert ((far - point) * (others - point)).sum(1).max() <= 1e-9


def test_every_sample_may_have_its_own_radius():
    g = torch.Generator().manual_seed(0)
    x, far = torch.rand(5, 1, 6, 6, generator=g), torch.randn(5, 1, 6, 6, generator=g)
    radii = torch.tensor([0.1, 1.0, 2.0, 5.0, 100.0])
    together = nearest_in_l1_ball(far, x, radii)
    for i, radius in enumerate(radii.tolist()):
        torch.testing.assert_close(
            together[i : i + 1], nearest_in_l1_ball(far[i : i + 1], x[i : i + 1], radius)
        )
        assert in_ball(together[i : i + 1], x[i : i + 1], "l1", radius).all()


def test_large_images_stay_in_the_ball():
    g = torch.Generator().manual_seed(0)
    x = torch.rand(2, 3, 224, 224, generator=g)
    for far in (x + torch.randn(x.shape, generator=g), x + 0.01 * torch.randn(x.shape, generator=g).sign()):
        point = nearest_in_l1_ball(far, x, 255.0)
        distance = (point.double() - x.double()).abs().sum((1, 2, 3))
        assert (distance <= 255.0).all() and (distance > 254.9).all()


def test_sparse_step_moves_the_share_with_the_largest_slopes():
    grad = torch.tensor([[0.1, -5.0, 3.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    half = sparse_step(grad, torch.full((3,), 0.5))
    torch.testing.assert_close(half[0], torch.tensor([0.0, -0.5, 0.5, 0.0]))
    torch.testing.assert_close(half[1], torch.full((4,), 0.25))
    assert (half[2] == 0).all()
    everything = sparse_step(grad, torch.ones(3))
    torch.testing.assert_close(everything[0], torch.tensor([1.0, -1.0, 1.0, 0.0]) / 3)
    one = sparse_step(grad, torch.zeros(3))
    torch.testing.assert_close(one[0], torch.tensor([0.0, -1.0, 0.0, 0.0]))


def test_l1_start_is_uniform_in_the_ball():
    """In the plane, |delta|_1 <= r has probability (r / eps)^2, and all four sides are alike."""
    n, g = 20_000, torch.Generator().manual_seed(0)
    x = torch.full((n, 2), 0.5)
    delta = random_start(x, "l1", 0.4, torch.rand(n, 2, generator=g), torch.rand(n, generator=g)) - x
    length = delta.abs().sum(1)
    for share in (0.25, 0.5, 0.9):
        assert (length <= 0.4 * share).double().mean().item() == pytest.approx(share**2, abs=0.01)
    # Along a side the share of the first coordinate is uniform.
    part = delta[:, 0].abs() / length
    for share in (0.2, 0.7):
        assert (part <= share).double().mean().item() == pytest.approx(share, abs=0.01)
