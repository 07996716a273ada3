"""Geometry of the threat models, as properties over random shapes, radii and values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustzoo.attacks.geometry import (
    NORMS,
    dual_norm,
    in_ball,
    perturbation_norm,
    project,
    random_start,
    steepest_step,
)
from robustzoo.errors import RobustzooError

TOL = 1e-6
shapes = st.one_of(
    st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 7)),
    st.tuples(st.integers(1, 4), st.integers(1, 6)),
)
norms = st.sampled_from(NORMS)
radii = st.sampled_from([1 / 255, 8 / 255, 0.1, 0.5, 1.0, 3.0])
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.float32, torch.float64])
properties = settings(max_examples=60)


def images(shape, seed, dtype=torch.float32):
    """Clean images in [0, 1], some pixels at the very edge, and points far and near around them."""
    generator = torch.Generator().manual_seed(seed)
    x = (1.4 * torch.rand(shape, generator=generator, dtype=dtype) - 0.2).clamp(0, 1)
    scale = 10.0 ** torch.randint(-3, 3, (shape[0], *(1,) * (len(shape) - 1)), generator=generator)
    return x, x + scale.to(dtype) * torch.randn(shape, generator=generator, dtype=dtype)


@properties
@given(shapes, norms, radii, seeds, dtypes)
def test_projection_is_inside_and_idempotent(shape, norm, eps, seed, dtype):
    x, x_adv = images(shape, seed, dtype)
    point = project(x_adv, x, norm, eps)
    assert point.dtype == dtype and point.shape == x.shape
    assert in_ball(point, x, norm, eps, tol=TOL).all()
    torch.testing.assert_close(project(point, x, norm, eps), point, rtol=0, atol=5e-7)


@properties
@given(shapes, norms, radii, seeds)
def test_points_inside_stay_where_they_are(shape, norm, eps, seed):
    x, x_adv = images(shape, seed)
    inside = (x + 0.5 * (project(x_adv, x, norm, eps) - x)).clamp(0, 1)
    torch.testing.assert_close(project(inside, x, norm, eps), inside, rtol=0, atol=6e-8)
    assert torch.equal(project(x, x, norm, eps), x)


@properties
@given(shapes, norms, radii, seeds)
def test_samples_are_independent(shape, norm, eps, seed):
    x, x_adv = images(shape, seed)
    alone = torch.cat([project(x_adv[i : i + 1], x[i : i + 1], norm, eps) for i in range(shape[0])])
    torch.testing.assert_close(project(x_adv, x, norm, eps), alone, rtol=0, atol=1e-6)


def test_projection_by_hand():
    x = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    x_adv = torch.tensor([[0.8, 0.1], [0.05, 1.5]])
    linf = project(x_adv, x, "linf", 0.1)
    torch.testing.assert_close(linf, torch.tensor([[0.6, 0.4], [0.05, 1.0]]))
    l2 = project(x_adv, x, "l2", 0.25)
    torch.testing.assert_close(l2[0], torch.tensor([0.5 + 0.15, 0.5 - 0.2]))
    # The box comes after the ball: the point is not pushed back out to the sphere.
    torch.testing.assert_close(l2[1], torch.tensor([0.05 * 0.25 / 0.2525**0.5, 1.0]))


def test_l2_ball_of_many_pixels():
    x = torch.rand(2, 3, 224, 224)
    assert in_ball(project(x + torch.randn_like(x), x, "l2", 3.0), x, "l2", 3.0, tol=TOL).all()


@properties
@given(shapes, norms, radii, seeds)
def test_starts_are_in_the_ball(shape, norm, eps, seed):
    x, _ = images(shape, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    draw = torch.randn if norm == "l2" else torch.rand
    start = random_start(
        x, norm, eps, draw(shape, generator=generator), torch.rand(shape[0], generator=generator)
    )
    assert in_ball(start, x, norm, eps, tol=TOL).all()


def test_l2_start_is_uniform_in_the_disc():
    # In the plane, |delta| <= r has probability (r / eps)^2; away from the box nothing is clamped.
    n, generator = 20_000, torch.Generator().manual_seed(0)
    x = torch.full((n, 2), 0.5)
    noise, radius = torch.randn(n, 2, generator=generator), torch.rand(n, generator=generator)
    length = perturbation_norm(random_start(x, "l2", 0.4, noise, radius) - x, "l2")
    for share in (0.25, 0.5, 0.9):
        assert (length <= 0.4 * share).double().mean().item() == pytest.approx(share**2, abs=0.01)


def test_linf_start_spans_the_ball():
    x = torch.full((2, 3), 0.5)
    noise = torch.tensor([[0.0, 0.5, 1 - 2**-24]]).expand(2, 3)
    torch.testing.assert_close(
        random_start(x, "linf", 0.1, noise) - x, torch.tensor([[-0.1, 0.0, 0.1]]).expand(2, 3)
    )


@properties
@given(shapes, norms, seeds, st.sampled_from([1e-42, 1e-30, 1.0, 1e30]))
def test_step_has_unit_length_and_climbs(shape, norm, seed, scale):
    grad = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    grad[0] = 0.0
    step = steepest_step(grad, norm)
    length = perturbation_norm(step, norm)
    assert step.isfinite().all() and length[0] == 0.0
    if scale > 1e-38:
        torch.testing.assert_close(length[1:], torch.ones(shape[0] - 1))
        slope = (step.double() * grad.double()).flatten(1).sum(1)
        torch.testing.assert_close(slope, dual_norm(grad.double(), norm), rtol=1e-5, atol=0)


def test_in_ball_refuses_box_ball_and_nan():
    x = torch.tensor([[0.0, 0.5]]).repeat(5, 1)
    x_adv = torch.tensor([[-1e-7, 0.5], [0.0, 0.5], [0.0, 0.61], [float("nan"), 0.5], [0.1, 0.6]])
    assert in_ball(x_adv, x, "linf", 0.1, tol=TOL).tolist() == [False, True, False, False, True]
    assert in_ball(x_adv, x, "l2", 0.1, tol=TOL).tolist() == [False, True, False, False, False]


def test_wrong_norms_and_a_missing_radius_are_named():
    x = torch.rand(2, 3)
    for call in (
        lambda: project(x, x, "l0", 1.0),
        lambda: steepest_step(x, "l0"),
        lambda: random_start(x, "l0", 1.0, x),
        lambda: in_ball(x, x, "l0", 1.0),
    ):
        with pytest.raises(RobustzooError, match=r"'l0'.*linf, l2, l1"):
            call()
    for norm in ("l2", "l1"):
        with pytest.raises(ValueError, match="radius"):
            random_start(x, norm, 1.0, x)
