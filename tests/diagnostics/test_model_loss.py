"""Hessians of the zoo's own losses: the closed-form top layer against the exact trace, and bad input."""

from __future__ import annotations

import math

import pytest
import torch

import robustzoo
from robustzoo.data import load_dataset
from robustzoo.diagnostics.bound import Guarantee, Prior
from robustzoo.diagnostics.hessian import LossHessian
from robustzoo.diagnostics.model_bound import Draws, model_bound, report
from robustzoo.diagnostics.model_loss import (
    Points,
    adversarial_points,
    loss_function,
    square_norm,
    top_layer_trace,
)
from robustzoo.diagnostics.spectrum import layer_table, spectrum_table
from robustzoo.errors import RobustzooError
from robustzoo.models import pixel_model
from robustzoo.registry import recipe

HEAD = "network.head.weight"


def random_model(method: str):
    torch.manual_seed(0)
    made = recipe(f"vit_micro2.digits_linf.{method}", {"attack_steps": 1})
    model = pixel_model(made).eval()
    with torch.no_grad():
        model.head.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
    model.recipe, model.name = made, made.name
    return model


@pytest.fixture(scope="module")
def holdout():
    return load_dataset("digits", split="holdout")


@pytest.mark.parametrize("method", ["at_base", "trades_base", "alp_base", "mart_base", "trades_trh"])
@pytest.mark.parametrize("stop_gradient", [True, False])
def test_the_closed_form_is_the_exact_trace(method, stop_gradient, holdout):
    model = random_model(method)
    points = adversarial_points(model, holdout, 6)
    loss, parameters = loss_function(model, points, stop_gradient=stop_gradient, double=True)
    exact = LossHessian(loss, parameters, [HEAD]).exact_traces(chunk=130)["head"]
    assert exact == pytest.approx(top_layer_trace(model, points, stop_gradient=stop_gradient), rel=1e-5)


def test_stopping_the_gradient_matters_for_paired_losses(holdout):
    model = random_model("trades_base")
    points = adversarial_points(model, holdout, 6)
    both = [top_layer_trace(model, points, stop_gradient=stop) for stop in (True, False)]
    assert abs(both[0] - both[1]) > 1e-3 * abs(both[0])


def test_a_layers_hessian_through_attention_equals_finite_differences(holdout):
    """Fused attention has no second derivative: this fails where it is used."""
    model = random_model("at_base")
    points = adversarial_points(model, holdout, 4)
    loss, parameters = loss_function(model, points, double=True)
    name = "network.blocks.0.attn.qkv.bias"
    hessian = LossHessian(loss, parameters, [name])
    v = hessian.signs(0, 0)[name]
    product, h = hessian.product({name: v})[name], 1e-5
    moved = [LossHessian(loss, parameters | {name: parameters[name] + s * h * v}, [name]) for s in (1, -1)]
    gradients = [other._gradients[name].detach() for other in moved]
    assert torch.allclose(product, (gradients[0] - gradients[1]) / (2 * h), rtol=1e-5, atol=1e-8)


def test_adversarial_points_are_in_the_ball_and_keyed(holdout):
    model = random_model("at_base")
    points = adversarial_points(model, holdout, 5, seed=3)
    eps = model.recipe.threat_model.eps
    assert (points.x_adv - points.x).abs().max() <= eps + 1e-6
    assert not torch.equal(points.x_adv, points.x)
    again = adversarial_points(model, holdout, 5, seed=3, batch=2)
    assert torch.allclose(points.x_adv, again.x_adv, atol=1e-5)
    assert points.y.tolist() == [holdout[i][1] for i in range(5)]


def test_the_model_is_left_as_it_was(holdout):
    model = random_model("at_base")
    before = {name: p.clone() for name, p in model.named_parameters()}
    points = adversarial_points(model, holdout, 3)
    LossHessian(*loss_function(model, points, double=True), [HEAD]).exact_traces()
    assert all(torch.equal(before[name], p) and p.grad is None for name, p in model.named_parameters())
    assert all(p.requires_grad for p in model.parameters()) and model.mean.dtype == torch.float32


def test_layer_table(holdout):
    model = random_model("at_base")
    points = adversarial_points(model, holdout, 3)
    loss, parameters = loss_function(model, points)
    names = [name for name in parameters if "norm." in name or "head" in name]
    rows = layer_table(LossHessian(loss, parameters, names), probes=2, exact_up_to=650, extremes=2)
    assert [row["layer"] for row in rows] == ["norm", "head", "all"]
    assert {row["method"] for row in rows} == {"exact"}
    assert rows[2]["trace"] == pytest.approx(rows[0]["trace"] + rows[1]["trace"])
    largest = [float(value) for value in rows[1]["largest"].split()]
    assert len(largest) == 2 and largest[0] <= largest[1]
    estimated = layer_table(LossHessian(loss, parameters, names), probes=2, exact_up_to=130, extremes=0)
    assert [row["method"] for row in estimated] == ["exact", "hutchinson", "hutchinson"]
    assert estimated[1]["largest"] == ""


def test_spectrum_table(holdout):
    model = random_model("at_base")
    points = adversarial_points(model, holdout, 3)
    loss, parameters = loss_function(model, points, double=True)
    names = [name for name in parameters if "network.norm." in name or name == "network.head.bias"]
    rows = spectrum_table(LossHessian(loss, parameters, names), steps=20, exact_up_to=128)
    methods = {row["layer"]: row["method"] for row in rows}
    assert methods == {"norm": "exact", "head": "exact", "all": "lanczos quadrature"}
    for layer, size in {"norm": 128, "head": 10}.items():
        chosen = [row for row in rows if row["layer"] == layer]
        assert len(chosen) == size and sum(row["weight"] for row in chosen) == pytest.approx(1.0)
    # Of the logits' Hessian diag(s) - s s': positive semi-definite, and 0 along equal shifts.
    bias = [row["eigenvalue"] for row in rows if row["layer"] == "head"]
    assert bias[0] == pytest.approx(0.0, abs=1e-7) and bias[1] > 0.0


def test_bound_of_a_published_model(holdout):
    model = robustzoo.load("vit_micro2.digits_linf.at_trh")
    points = adversarial_points(model, holdout, 4)
    made = model.recipe
    prior = Prior.of_recipe(made.trh_lambda, made.trh_gamma)
    found = model_bound(model, points, prior, Guarantee(1147), Draws(2, 8))
    assert found["norm_term"] == pytest.approx(made.trh_gamma * square_norm(model))
    assert found["trace_term_top"] == pytest.approx(made.trh_lambda * top_layer_trace(model, points))
    assert found["value_top"] == pytest.approx(
        found["robust_loss"] + found["norm_term"] + found["trace_term_top"]
    )
    assert found["total_top"] is None
    x = prior.sigma0_squared * prior.beta * found["trace_top"] / 640
    assert found["x_mean_top"] == pytest.approx(x) and found["weights_looked_at_top"] == 640
    assert found["case_1_top"] == pytest.approx(640 / (2 * prior.beta) * math.log1p(x))
    assert found["value_case_1_top"] == pytest.approx(
        found["robust_loss"] + found["norm_term"] + found["case_1_top"]
    )
    loss, parameters = loss_function(model, points)
    entries = LossHessian(loss, parameters, [HEAD]).diagonal()
    by_hand = torch.log1p(prior.sigma0_squared * prior.beta * entries).sum() / (2 * prior.beta)
    assert found["case_2_top"] == pytest.approx(by_hand.item()) and found["case_2_standard_error_top"] == 0.0
    assert 0 < found["case_2_top"] <= found["case_1_top"] < found["trace_term_top"]
    assert found["weights_looked_at_all"] == 8 and found["weights_all"] == 202_186
    assert (found["case_2_all"] is None) == (found["x_min_all"] <= -1)
    text = report(found)
    assert "does not and is" in text and "over its N = 640 weights" in text and "8 weights drawn" in text
    assert "Psi / beta" in text and "states neither tau, nor C" in text
    assumed = model_bound(model, points, prior, Guarantee(1147, sub_gaussian=1.0), Draws(2, 2))
    assert assumed["total_top"] > assumed["value_top"] and "assuming s^2 = 1" in report(assumed)


def test_the_linear_form_of_a_weak_prior_holds(holdout):
    model = random_model("trades_base")
    points = adversarial_points(model, holdout, 2)
    found = model_bound(model, points, Prior(1e-4, 1e-3), Guarantee(1147), Draws(2, 2))
    for of in ("top", "all"):
        assert found[f"linear_form_holds_{of}"] and abs(found[f"x_mean_{of}"]) < 1e-3
        assert found[f"case_1_{of}"] == pytest.approx(found[f"trace_term_{of}"], rel=1e-3)
    assert report(found).count("it does;") == 1 and "it does." in report(found)
    none = {f"{key}_{of}": None for key in ("case_1", "value_case_1", "case_2") for of in ("top", "all")}
    holds = {"linear_form_holds_top": False, "linear_form_holds_all": False}
    assert report(found | none | holds).count("no variance is best") == 2
    assert "the top layer, it does not; all parameters, it does not." in report(found | none | holds)


def test_bad_input(holdout):
    model = random_model("at_base")
    with pytest.raises(RobustzooError, match=r"expected 1\.\.150"):
        adversarial_points(model, holdout, 151)
    points = Points(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8), torch.tensor([0]))
    with pytest.raises(RobustzooError, match="training mode"):
        top_layer_trace(model.train(), points)
    model.recipe = None
    for call in (lambda: adversarial_points(model, holdout, 1), lambda: loss_function(model, points)):
        with pytest.raises(RobustzooError, match="no recipe"):
            call()
