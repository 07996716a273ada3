"""Attack losses against their formulas, written out with sorting."""

from __future__ import annotations

import pytest
import torch

from robustzoo.attacks.losses import attack_loss, dlr, margin, targeted_dlr, targeted_margin


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
