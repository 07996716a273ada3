"""The losses against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from robustzoo.objectives.losses import (
    cross_entropy,
    kl_divergence,
    log_rest,
    log_softmax,
    runner_up_margin,
    squared_softmax_distance,
)


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


def test_squared_softmax_distance_by_hand():
    # s = (3/4, 1/4), s' = (1/2, 1/2): |s - s'|^2 = 1/16 + 1/16.
    log_s, log_sa = log_softmax(torch.tensor([[math.log(3.0), 0.0]])), log_softmax(torch.zeros(1, 2))
    assert squared_softmax_distance(log_s, log_sa).item() == pytest.approx(1 / 8, rel=1e-6)
    assert squared_softmax_distance(log_s, log_s).item() == 0.0


@pytest.mark.parametrize(("label", "runner_up"), [(0, 3 / 10), (1, 5 / 10), (2, 5 / 10), (3, 5 / 10)])
def test_margin_by_hand(label, runner_up):
    # s = (5, 3, 1, 1) / 10: the largest of the other classes.
    logits = torch.tensor([[5.0, 3.0, 1.0, 1.0]]).log()
    margin = runner_up_margin(logits, torch.tensor([label]))
    assert margin.item() == pytest.approx(-math.log(1 - runner_up), rel=1e-6)


def test_margin_of_two_classes_is_the_cross_entropy():
    logits, y = torch.tensor([[2.0, -1.0], [0.5, 3.0]]), torch.tensor([0, 0])
    torch.testing.assert_close(runner_up_margin(logits, y), cross_entropy(logits, y))


def test_the_rest_keeps_its_digits_where_the_prediction_is_sure():
    # 1 - s_0 = 2 / (e^40 + 2): below the spacing of float32 and float64 at 1.
    log_s = log_softmax(torch.tensor([[40.0, 0.0, 0.0]]))
    expected = math.log(2.0) - 40.0
    assert log_rest(log_s, torch.tensor([0])).item() == pytest.approx(expected, rel=1e-6)
    assert log_rest(log_s, torch.tensor([2])).item() == pytest.approx(0.0, abs=1e-7)


def test_margin_of_extreme_logits_is_the_log_sum_exp():
    logits = torch.tensor([[1e4, 0.0, -1e4], [-1e4, 0.0, 1e4], [0.0, 1e4, 1e4]], requires_grad=True)
    margin = runner_up_margin(logits, torch.tensor([1, 1, 1]))
    # -log of (e^0 + e^-1e4) / e^1e4 twice; of (e^0 + e^1e4) / (2 e^1e4).
    torch.testing.assert_close(margin, torch.tensor([1e4, 1e4, math.log(2.0)]))
    (gradient,) = torch.autograd.grad(margin.sum(), logits)
    expected = torch.tensor([[1.0, -1.0, 0.0], [0.0, -1.0, 1.0], [0.0, -0.5, 0.5]])
    torch.testing.assert_close(gradient, expected)


def test_soft_labels_that_are_one_hot_are_the_labels():
    logits, y = torch.randn(6, 5), torch.tensor([0, 4, 2, 2, 1, 3])
    torch.testing.assert_close(
        cross_entropy(logits, torch.nn.functional.one_hot(y, 5).float()), cross_entropy(logits, y)
    )


def test_soft_labels_mix_the_cross_entropies():
    logits = torch.randn(1, 3)
    each = [cross_entropy(logits, torch.tensor([k])) for k in range(3)]
    mixed = cross_entropy(logits, torch.tensor([[0.25, 0.0, 0.75]]))
    torch.testing.assert_close(mixed, 0.25 * each[0] + 0.75 * each[2])
