"""The losses against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robustzoo.objectives.losses import cross_entropy, kl_divergence, log_softmax


def test_kl_by_hand():
    # s = (3/4, 1/4), s' = (1/2, 1/2): KL = 3/4 log(3/2) + 1/4 log(1/2).
    log_s, log_sa = log_softmax(torch.tensor([[math.log(3.0), 0.0]])), log_softmax(torch.zeros(1, 2))
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert kl_divergence(log_s, log_sa).item() == pytest.approx(expected, rel=1e-6)
    assert kl_divergence(log_s, log_s).item() == 0.0


def test_kl_mean_is_batchmean():
    g, ga = torch.randn(5, 4), torch.randn(5, 4)
    reference = torch.nn.functional.kl_div(ga.log_softmax(-1), g.softmax(-1), reduction="batchmean")
    torch.testing.assert_close(kl_divergence(log_softmax(g), log_softmax(ga)).mean(), reference)


def test_cross_entropy_by_hand():
    logits, y = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]]), torch.tensor([1, 0])
    torch.testing.assert_close(cross_entropy(logits, y), torch.tensor([math.log(4.0), math.log(2.0)]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_computed_in_float32_at_least(dtype):
    expected = torch.promote_types(dtype, torch.float32)
    logits = torch.zeros(2, 3, dtype=dtype)
    assert cross_entropy(logits, torch.tensor([0, 1])).dtype == expected
    assert kl_divergence(log_softmax(logits), log_softmax(logits)).dtype == expected


def test_extreme_logits_are_finite():
    g = torch.tensor([[1e4, 0.0, -1e4]], requires_grad=True)
    ga = torch.tensor([[-1e4, 0.0, 1e4]], requires_grad=True)
    loss = kl_divergence(log_softmax(g), log_softmax(ga)) + cross_entropy(ga, torch.tensor([0]))
    assert loss.item() == pytest.approx(4e4)
    for gradient in torch.autograd.grad(loss.sum(), [g, ga]):
        assert gradient.isfinite().all()
