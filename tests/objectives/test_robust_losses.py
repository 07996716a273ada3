"""The robust losses of a step: by hand, with soft labels, and on extreme logits."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import one_hot

from robustzoo.errors import RobustzooError
from robustzoo.objectives import Objective
from robustzoo.objectives.robust_losses import LOSSES, SoftLabelError
from robustzoo.registry import recipe
from tests.objectives.small import ALP, AT, FOUR, MART, S2O, TRADES, TRH, make_recipe

# s = (3/4, 1/4) and s' = (1/2, 1/2), of which the label is the first.
G, GA, Y = torch.tensor([[math.log(3.0), 0.0]]), torch.zeros(1, 2), torch.tensor([0])
KL = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
SOFT = pytest.mark.parametrize(
    "parts",
    [(AT,), (TRADES,), (ALP,), (AT, TRH), (TRADES, TRH), (ALP, TRH), (AT, S2O), (TRADES, S2O), (ALP, S2O)],
    ids=lambda parts: "_".join([parts[0]["loss"], *(d for part in parts[1:] for d in part["defences"])]),
)


def values(loss, **changes):
    terms = LOSSES[loss["loss"]](make_recipe(loss, **changes), G, GA, Y)
    return {name: term.item() for name, term in terms.items()}


def test_at_by_hand():
    assert values(AT) == pytest.approx({"robust": math.log(2.0)}, rel=1e-6)


def test_trades_by_hand():
    ce = math.log(4 / 3)
    assert values(TRADES) == pytest.approx({"robust": ce + 6 * KL, "clean_ce": ce, "kl": KL}, rel=1e-5)


def test_alp_by_hand():
    ce = math.log(2.0)
    expected = {"robust": ce + 6 / 8, "adversarial_ce": ce, "pairing": 1 / 8}
    assert values(ALP) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("bce_input", "ce"), [("adv", math.log(2.0)), ("clean", math.log(4 / 3))])
def test_mart_by_hand(bce_input, ce):
    # The runner-up is the second class, s' = 1/2; 1 - s_y = 1/4.
    margin = math.log(2.0)
    expected = {
        "robust": ce + margin + 6 * KL / 4,
        "boosted_ce": ce,
        "margin": margin,
        "weighted_kl": KL / 4,
    }
    assert values(MART, mart_bce_input=bce_input) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", [TRADES, ALP, MART], ids=lambda loss: loss["loss"])
def test_the_stop_gradient_holds_the_clean_softmax_of_the_second_term(loss):
    second = {"trades": "kl", "alp": "pairing", "mart": "weighted_kl"}[loss["loss"]]
    for stop in (False, True):
        g, ga = G.clone().requires_grad_(True), GA.clone().requires_grad_(True)
        term = LOSSES[loss["loss"]](make_recipe(loss, loss_stop_gradient=stop), g, ga, Y)[second]
        clean, adversarial = torch.autograd.grad(term, [g, ga], allow_unused=True)
        assert adversarial.abs().sum() > 0
        assert clean is None if stop else clean.abs().sum() > 0


@pytest.mark.parametrize("loss", FOUR, ids=lambda loss: loss["loss"])
@pytest.mark.parametrize("scale", [1e2, 1e4])
def test_extreme_logits_stay_finite(loss, scale):
    eye = scale * torch.eye(4)
    g, ga = eye.repeat_interleave(4, 0).requires_grad_(True), eye.repeat(4, 1).requires_grad_(True)
    for label in range(4):
        terms = LOSSES[loss["loss"]](make_recipe(loss), g, ga, torch.full((16,), label))
        assert all(term.isfinite() for term in terms.values())
        for gradient in torch.autograd.grad(terms["robust"], [g, ga], allow_unused=True):
            assert gradient is None or gradient.isfinite().all()


def test_mart_keeps_the_weight_of_a_sure_clean_prediction():
    """1 - s_y = 1 / (e^30 + 1), which float32 has no digits for next to 1."""
    g, ga = torch.tensor([[30.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    term = LOSSES["mart"](make_recipe(MART), g, ga, torch.tensor([0]))["weighted_kl"]
    assert term.item() == pytest.approx(math.exp(-30) * math.log(2.0), rel=1e-4)


def outputs(classes: int = 5):
    """Features and logits of 6 clean and 6 adversarial images, float64, with gradients."""
    generator = torch.Generator().manual_seed(3)
    f = torch.randn(12, 4, generator=generator, dtype=torch.float64).requires_grad_(True)
    return f, f @ torch.randn(4, classes, generator=generator, dtype=torch.float64)


def terms_and_gradient(parts, y):
    objective, (f, g) = Objective(make_recipe(*parts)), outputs()
    rows = slice(None) if objective.needs_clean else slice(6)
    terms = objective.terms(f[rows], g[rows], y, step=0)
    return terms, torch.autograd.grad(terms["total"], f)[0]


@SOFT
def test_soft_labels_that_are_one_hot_are_the_labels(parts):
    y = torch.tensor([0, 4, 2, 2, 1, 3])
    hard, hard_gradient = terms_and_gradient(parts, y)
    soft, soft_gradient = terms_and_gradient(parts, one_hot(y, 5).float())
    assert hard.keys() == soft.keys()
    for name in hard:
        torch.testing.assert_close(soft[name], hard[name], msg=name)
    torch.testing.assert_close(soft_gradient, hard_gradient)


@SOFT
def test_soft_labels_mix_the_losses_of_their_classes(parts):
    """A loss is linear in the labels, but for the entropy of S2O's target, which no gradient sees."""
    y, z = torch.tensor([0, 4, 2, 2, 1, 3]), torch.tensor([1, 4, 0, 3, 2, 3])
    mixed, gradient = terms_and_gradient(parts, 0.3 * one_hot(y, 5).double() + 0.7 * one_hot(z, 5).double())
    (of_y, gradient_y), (of_z, gradient_z) = terms_and_gradient(parts, y), terms_and_gradient(parts, z)
    if "s2o" not in mixed:
        torch.testing.assert_close(mixed["total"], 0.3 * of_y["total"] + 0.7 * of_z["total"])
    torch.testing.assert_close(gradient, 0.3 * gradient_y + 0.7 * gradient_z)


def test_mart_refuses_soft_labels():
    soft = one_hot(torch.tensor([0, 4, 2, 2, 1, 3]), 5).float()
    with pytest.raises(SoftLabelError, match=r"\(6, 5\).*mart expects one class.*cutmix=false"):
        terms_and_gradient((MART, TRH), soft)
    with pytest.raises(RobustzooError, match=r"needs one class an image.*cutmix=false"):
        recipe("vit_micro2.digits_linf.mart_base", {"cutmix": True})
