"""Attack losses against their formulas, written out with sorting."""

from __future__ import annotations

import pytest
import torch

from robustzoo.attacks.attack_losses import attack_loss, dlr, margin, targeted_dlr, targeted_margin


@pytest.fixture
def problem():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 6, generator=g, dtype=torch.float64)
    y = torch.randint(0, 6, (50,), generator=g)
    return logits, y, (y + torch.randint(1, 6, (50,), generator=g)) % 6


def test_losses_equal_their_formulas(problem):
    logits, y, target = problem
    for i, z in enumerate(logits.tolist()):
        own, wanted, ordered = z[y[i]], z[target[i]], sorted(z, reverse=True)
        other = max(value for k, value in enumerate(z) if k != y[i])
        row = slice(i, i + 1)
        assert margin(logits[row], y[row]).item() == pytest.approx(own - other)
        assert targeted_margin(logits[row], y[row], target[row]).item() == pytest.approx(wanted - own)
        assert dlr(logits[row], y[row]).item() == pytest.approx(-(own - other) / (ordered[0] - ordered[2]))
        spread = ordered[0] - (ordered[2] + ordered[3]) / 2
        assert targeted_dlr(logits[row], y[row], target[row]).item() == pytest.approx((wanted - own) / spread)


@pytest.mark.parametrize("name", ["cross-entropy", "margin", "dlr", "targeted-margin", "targeted-dlr"])
def test_equal_logits_give_finite_losses_and_gradients(name):
    logits = torch.zeros(3, 5, requires_grad=True)
    y, target = torch.tensor([0, 1, 4]), torch.tensor([1, 2, 0])
    loss = attack_loss(name, logits, y, target)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    assert loss.shape == (3,) and loss.isfinite().all() and grad.isfinite().all()


def test_unknown_loss():
    with pytest.raises(ValueError, match="'hinge'"):
        attack_loss("hinge", torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), torch.ones(1).long())


@pytest.mark.parametrize("scale", [1.0, 10.0, 1e4, 1e6])
def test_cross_entropy_points_the_same_way_where_float32_rounds_it_to_zero(problem, scale):
    """Its gradient in float64 with 1 + exp(u) not rounded: that of u = log sum_{i != y} exp(z_i) - z_y."""
    logits, y, target = problem
    logits = logits.clone()
    logits[torch.arange(50), y] = logits.amax(1) + 2  # all correct, and by far where the scale is large
    here = (scale * logits).float().requires_grad_()
    exact = (scale * logits).float().double().requires_grad_()
    loss = attack_loss("cross-entropy", here, y, target)
    (grad,) = torch.autograd.grad(loss.sum(), here)
    own = exact.gather(1, y.unsqueeze(1)).squeeze(1)
    rest = exact.scatter(1, y.unsqueeze(1), -torch.inf).logsumexp(1) - own
    (wanted,) = torch.autograd.grad(rest.sum(), exact)
    directions = (g.double() / g.double().norm(dim=1, keepdim=True) for g in (grad, wanted))
    # Where 1 + exp(u) is nearly rounded the label's part has few digits left.
    assert (next(directions) - next(directions)).abs().max() < (1e-5 if scale >= 1e4 else 0.2)
    assert grad.any(1).all()
    order = rest.argsort()
    assert (loss[order].diff() >= 0).all(), "the loss rises with u"


def test_cross_entropy_is_the_usual_one_where_it_is_positive(problem):
    logits, y, target = problem
    logits = logits.float().requires_grad_()
    usual = torch.nn.functional.cross_entropy(logits, y, reduction="none")
    loss = attack_loss("cross-entropy", logits, y, target)
    assert torch.equal(loss, usual)
    assert torch.equal(*(torch.autograd.grad(v.sum(), logits)[0] for v in (loss, usual)))
