"""S2O: its matrix of soft targets and its loss, by hand and on every kind of logits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustzoo.objectives.second_order_statistics import s2o_loss, soft_targets

# Z^T Z = ((5, 1, 2), (1, 2, -2), (2, -2, 5)), so A = -((5, 1, 2), (1, 2, 2), (2, 2, 5)).
Z = torch.tensor([[1.0, 1.0, 0.0], [2.0, 0.0, 1.0], [0.0, -1.0, 2.0]])
# Less each row's minimum, without the diagonal: (., 4, 3), (1, ., 0), (3, 3, .); then to the sum 1 - c.
TARGETS = torch.tensor([[0.2, 3.2 / 7, 2.4 / 7], [0.8, 0.2, 0.0], [0.4, 0.4, 0.2]])


def test_matrix_of_three_classes_by_hand():
    torch.testing.assert_close(soft_targets(Z, 0.2), TARGETS)


def test_the_smallest_similarity_has_the_largest_share():
    """A row's minimum is not its diagonal where another class varies more; the diagonal then counts for
    nothing: A = -((1, 2), (2, 4)) and a third class apart."""
    z = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    expected = torch.tensor([[0.4, 0.0, 0.6], [0.3 * 2 / 3, 0.4, 0.3 * 4 / 3], [0.3, 0.3, 0.4]])
    torch.testing.assert_close(soft_targets(z, 0.4), expected)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("value", [0.0, 1.0, -7.0])
def test_a_row_of_equal_entries_is_uniform(value, classes):
    targets = soft_targets(torch.full((4, classes), value), 0.2)
    expected = torch.full((classes, classes), 0.8 / (classes - 1)).fill_diagonal_(0.2)
    torch.testing.assert_close(targets, expected)


def test_one_zero_row():
    """A class whose logits are 0 is equally far from all others."""
    z = Z.clone()
    z[:, 1] = 0.0
    targets = soft_targets(z, 0.2)
    torch.testing.assert_close(targets[1], torch.tensor([0.4, 0.2, 0.4]))
    assert targets.isfinite().all()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    batch=st.integers(1, 9),
    classes=st.integers(2, 12),
    scale=st.sampled_from([0.0, 1e-25, 1e-20, 1e-10, 1e-3, 1.0, 1e4]),
    diagonal=st.floats(0.01, 0.99),
    zeroed=st.integers(0, 11),
)
def test_rows_are_stochastic(seed, batch, classes, scale, diagonal, zeroed):
    z = scale * torch.randn(batch, classes, generator=torch.Generator().manual_seed(seed))
    z[:, zeroed % classes] = 0.0
    targets = soft_targets(z, diagonal)
    assert (targets >= 0).all()
    torch.testing.assert_close(targets.sum(1), torch.ones(classes))
    torch.testing.assert_close(targets.diag(), torch.full((classes,), diagonal))


@pytest.mark.parametrize("soft", [False, True])
def test_no_gradient_flows_through_the_matrix(soft):
    """The gradient in the logits is half of softmax - target, for each of clean and adversarial."""
    g, ga = Z.clone().requires_grad_(True), (Z + 1.0).flip(0).requires_grad_(True)
    y = torch.tensor([2, 0, 0])
    labels = torch.nn.functional.one_hot(y, 3).float() if soft else y
    assert not soft_targets(g, 0.2).requires_grad
    for logits, gradient in zip(
        (g, ga), torch.autograd.grad(s2o_loss(g, ga, labels, 0.2).sum(), [g, ga]), strict=True
    ):
        expected = 0.5 * (logits.softmax(-1) - soft_targets(logits, 0.2)[y])
        torch.testing.assert_close(gradient, expected.detach())


def test_loss_by_hand():
    """Labels 0, 1, 2; every KL(T[y] || s) written out."""
    loss = s2o_loss(Z, torch.zeros(3, 3), torch.arange(3), 0.2)
    for sample in range(3):
        s = [math.exp(z) for z in Z[sample].tolist()]
        s = [value / sum(s) for value in s]
        clean = sum(t * math.log(t / s[k]) for k, t in enumerate(TARGETS[sample].tolist()) if t > 0)
        # Logits of 0: s' is a third each, and T' is 0.2 on the diagonal, 0.4 beside it.
        adversarial = 0.2 * math.log(0.2 * 3) + 2 * 0.4 * math.log(0.4 * 3)
        assert loss[sample].item() == pytest.approx(0.5 * (clean + adversarial), rel=1e-5)


def test_clean_and_adversarial_have_their_own_moments():
    g, ga, y = Z, torch.tensor([[0.0, 3.0, 1.0], [1.0, -1.0, 2.0], [4.0, 0.0, 0.0]]), torch.tensor([0, 2, 1])

    def half(logits):
        target = soft_targets(logits, 0.2)[y]
        return torch.nn.functional.kl_div(logits.log_softmax(-1), target, reduction="none").sum(-1) / 2

    torch.testing.assert_close(s2o_loss(g, ga, y, 0.2), half(g) + half(ga))
    assert not torch.allclose(soft_targets(g, 0.2), soft_targets(ga, 0.2))


def test_soft_labels_mix_the_rows():
    y = torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    target = y @ TARGETS
    expected = torch.nn.functional.kl_div(Z.log_softmax(-1), target, reduction="none").sum(-1)
    torch.testing.assert_close(s2o_loss(Z, Z, y, 0.2), expected)


def test_extreme_logits_and_a_target_of_zero_stay_finite():
    z = torch.tensor([[1e4, -1e4, 0.0], [1e4, 1e4, 0.0]], requires_grad=True)
    loss = s2o_loss(z, -z, torch.tensor([0, 1]), 0.2)
    assert loss.isfinite().all()
    assert torch.autograd.grad(loss.sum(), z)[0].isfinite().all()


@pytest.mark.parametrize("soft", [False, True])
def test_computed_in_float32_at_least(soft):
    """From half-precision logits, and inside autocast, which lowers matrix products."""
    y = torch.tensor([2, 0, 0])
    labels = torch.nn.functional.one_hot(y, 3).float() if soft else y
    z = Z + 0.01
    assert soft_targets(z.bfloat16(), 0.2).dtype == torch.float32
    expected = s2o_loss(z, 2 * z, labels, 0.2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(s2o_loss(z, 2 * z, labels, 0.2), expected)
    assert s2o_loss(z.double(), z.double(), labels, 0.2).dtype == torch.float64
