"""Objectives: the attack, the terms of a step against a reference written out, and the registry's recipes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from robustzoo.attacks.geometry import in_ball
from robustzoo.objectives import Objective, ObjectiveError
from robustzoo.registry import all_names, recipe
from tests.objectives.small import (
    ALP,
    AT,
    AWP,
    FOUR,
    MART,
    S2O,
    TRADES,
    TRH,
    TwoLayers,
    batch,
    make_recipe,
    tiny_vit,
)

LOSSES = pytest.mark.parametrize("loss", FOUR, ids=lambda loss: loss["loss"])


def robust_loss(recipe, g: Tensor, ga: Tensor, y: Tensor, stop_kl: bool) -> Tensor:
    """The loss of one sample, written plainly."""
    clean, sa = g.softmax(-1), ga.softmax(-1)
    s = clean.detach() if stop_kl else clean
    classes = range(len(s))
    if recipe.loss == "at":
        return -torch.log(sa[y])
    if recipe.loss == "alp":
        return -torch.log(sa[y]) + recipe.loss_weight * sum((s[k] - sa[k]) ** 2 for k in classes)
    divergence = sum(s[k] * (torch.log(s[k]) - torch.log(sa[k])) for k in classes)
    if recipe.loss == "trades":
        return -torch.log(clean[y]) + recipe.loss_weight * divergence
    runner_up = max((k for k in classes if k != y), key=lambda k: sa[k].item())
    boosted = -torch.log((sa if recipe.mart_bce_input == "adv" else clean)[y]) - torch.log(1 - sa[runner_up])
    return boosted + recipe.loss_weight * (1 - s[y]) * divergence


def reference(recipe, model: TwoLayers, x: Tensor, x_adv: Tensor, y: Tensor) -> Tensor:
    """loss + lambda Tr Hess_W (by automatic differentiation) + gamma |theta|^2."""
    total = 0.0
    for clean, adv, label in zip(model.body(x), model.body(x_adv), y, strict=True):

        def of_weight(W, stop, clean=clean, adv=adv, label=label):
            return robust_loss(recipe, W @ clean, W @ adv, label, stop)

        W = model.head.weight
        full = torch.autograd.functional.hessian(
            lambda W: of_weight(W, recipe.trh_stop_gradient), W, create_graph=True
        )
        trace = full.reshape(W.numel(), -1).trace()
        total = total + of_weight(W, recipe.loss_stop_gradient) + recipe.trh_lambda * trace
    return total / len(y) + recipe.trh_gamma * sum(p.square().sum() for p in model.parameters())


PARTS = {
    "at": set(),
    "trades": {"clean_ce", "kl"},
    "alp": {"adversarial_ce", "pairing"},
    "mart": {"boosted_ce", "margin", "weighted_kl"},
}


def step_terms(objective: Objective, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, step: int = 7):
    return objective.terms(*model(objective.inputs(x, x_adv)), y, step=step)


@pytest.mark.parametrize("loss", [*FOUR, MART | {"mart_bce_input": "clean"}], ids=lambda loss: loss["loss"])
@pytest.mark.parametrize("loss_stop", [False, True])
@pytest.mark.parametrize("trh_stop", [False, True])
def test_a_whole_step_equals_the_written_out_objective(loss, loss_stop, trh_stop):
    recipe = make_recipe(loss, TRH, loss_stop_gradient=loss_stop, trh_stop_gradient=trh_stop)
    x, x_adv, y = (tensor[:2] for tensor in batch())
    ours, theirs = TwoLayers(), TwoLayers()
    objective = Objective(recipe)

    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, weight_decay=objective.weight_decay)
    terms = step_terms(objective, ours, x, x_adv, y)
    l2 = objective.l2_term(ours.parameters())
    terms["total"].backward()
    optimizer.step()

    expected = reference(recipe, theirs, x, x_adv, y)
    expected.backward()
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()

    torch.testing.assert_close(terms["total"] + l2, expected, rtol=1e-10, atol=0)
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-12)


@LOSSES
def test_terms_add_up(loss):
    x, x_adv, y = batch()
    model = TwoLayers()
    base = step_terms(Objective(make_recipe(loss)), model, x, x_adv, y)
    trh = step_terms(Objective(make_recipe(loss, TRH, trh_schedule="linear")), model, x, x_adv, y, step=49)
    parts = PARTS[loss["loss"]]
    assert base.keys() == {"total", "robust"} | parts
    assert trh.keys() == {"total", "robust", "trace", "trh"} | parts
    assert torch.equal(base["total"], base["robust"]) and torch.equal(base["robust"], trh["robust"])
    assert trh["trace"] > 0
    torch.testing.assert_close(trh["trh"], 0.15 * trh["trace"])
    torch.testing.assert_close(trh["total"], trh["robust"] + trh["trh"])
    weights = {"kl": 6.0, "pairing": 6.0, "weighted_kl": 6.0}
    total = sum(weights.get(part, 1.0) * base[part] for part in parts or {"robust"})
    torch.testing.assert_close(base["robust"], total)


@LOSSES
def test_terms_with_s2o_add_up(loss):
    """(1 - alpha) CE + alpha S2O, and the loss's second term at its full weight; MART's CE is the boosted."""
    x, x_adv, y = batch()
    terms = step_terms(Objective(make_recipe(loss, S2O)), TwoLayers(), x, x_adv, y)
    ce = {"trades": {"clean_ce"}, "mart": {"boosted_ce", "margin"}}.get(loss["loss"], {"adversarial_ce"})
    second = {"trades": "kl", "alp": "pairing", "mart": "weighted_kl"}.get(loss["loss"])
    assert terms.keys() == {"total", "robust", "s2o"} | ce | ({second} if second else set())
    expected = (
        0.7 * sum(terms[part] for part in ce) + 0.3 * terms["s2o"] + (6.0 * terms[second] if second else 0.0)
    )
    torch.testing.assert_close(terms["robust"], expected)
    assert terms["s2o"] > 0


def test_trades_by_hand():
    # s = (3/4, 1/4), s' = (1/2, 1/2), label 0: CE = log(4/3), KL = 3/4 log(3/2) + 1/4 log(1/2).
    logits = torch.tensor([[math.log(3.0), 0.0], [0.0, 0.0]])
    features = torch.tensor([[1.0, 2.0], [3.0, 1.0]])
    terms = Objective(make_recipe(TRADES, TRH)).terms(features, logits, torch.tensor([0]), step=0)
    assert terms["clean_ce"].item() == pytest.approx(math.log(4 / 3), rel=1e-6)
    assert terms["kl"].item() == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=1e-5)
    # sum h = 3/8 and 1/2; |f|^2 = 5, |f'|^2 = 10.
    assert terms["trace"].item() == pytest.approx(5 * 3 / 8 + 6 * 10 / 2, rel=1e-6)


@LOSSES
def test_terms_are_float32_for_a_half_precision_network(loss):
    objective = Objective(make_recipe(loss, TRH))
    rows = 4 if objective.needs_clean else 2
    features, logits = torch.randn(rows, 4).bfloat16(), torch.randn(rows, 3).bfloat16()
    terms = objective.terms(features, logits, torch.tensor([0, 1]), step=0)
    assert {term.dtype for term in terms.values()} == {torch.float32}


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", {0: 1.0, 9: 1.0, 99: 1.0}),
        ("linear", {0: 0.01, 24: 0.25, 99: 1.0}),
        ("multistep", {0: 0.01, 9: 0.01, 10: 0.1, 49: 0.1, 50: 1.0, 99: 1.0}),
    ],
)
def test_lambda_schedules(schedule, expected):
    objective = Objective(make_recipe(AT, TRH, trh_schedule=schedule, trh_lambda=0.5, total_steps=100))
    for step, factor in expected.items():
        assert objective.trh_lambda(step) == pytest.approx(0.5 * factor, rel=1e-12, abs=0)
    assert Objective(make_recipe(AT)).trh_lambda(50) == 0.0


def test_gamma_replaces_the_l2_regularisation():
    assert Objective(make_recipe(AT)).weight_decay == pytest.approx(2 * 5e-4)
    assert Objective(make_recipe(AT, TRH)).weight_decay == pytest.approx(2 * 1e-3)
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    term = Objective(make_recipe(AT, TRH)).l2_term(model.parameters())
    assert term.item() == pytest.approx(1e-3 * 31.0) and not term.requires_grad


def test_inputs_are_one_batch():
    x, x_adv, _ = batch()
    for parts in ((AT,), (AT, TRH), (AT, AWP)):
        objective = Objective(make_recipe(*parts))
        assert not objective.needs_clean and objective.inputs(x, x_adv) is x_adv
    for parts in ((TRADES,), (ALP,), (MART,), (AT, S2O)):
        objective = Objective(make_recipe(*parts))
        assert objective.needs_clean and torch.equal(objective.inputs(x, x_adv), torch.cat((x, x_adv)))
    with pytest.raises(ValueError, match="10 rows"):
        Objective(make_recipe(TRADES)).terms(torch.zeros(5, 4), torch.zeros(5, 3), batch()[2], step=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "hat"}, "loss 'hat'.*at, trades, alp, mart"),
        ({"defences": ("trh", "sam")}, "defence 'sam'.*trh, s2o, awp, swa"),
        ({"attack_start": "zero"}, "attack_start 'zero'"),
        ({"attack_loss": "dlr"}, "attack_loss 'dlr'"),
        ({"defences": ("trh",), "trh_schedule": "cosine"}, "trh_schedule 'cosine'.*multistep"),
    ],
)
def test_what_no_objective_offers_is_named(changes, message):
    with pytest.raises(ObjectiveError, match=message):
        Objective(make_recipe(AT, changes))


def test_recipes_of_the_registry_have_an_objective():
    for name in all_names()[::23]:  # every method among them
        r = recipe(name)
        objective = Objective(r)
        assert objective.needs_clean == (r.loss != "at" or "s2o" in r.defences), name
        assert objective.weight_decay == 2 * (r.trh_gamma if "trh" in r.defences else r.l2_reg), name
        assert (objective.trh_lambda(r.total_steps - 1) > 0) == ("trh" in r.defences), name
        assert objective.ascends(r.total_steps - 1) == ("awp" in r.defences), name


def test_awp_waits_for_its_warm_up():
    objective = Objective(make_recipe(AT, AWP, awp_warmup_steps=3))
    assert [objective.ascends(step) for step in range(5)] == [False, False, False, True, True]
    assert not Objective(make_recipe(AT)).ascends(99)


DIGITS = [name for name in all_names() if name.startswith("vit_micro2.digits_linf.")]


@pytest.mark.parametrize("name", DIGITS[::5])
def test_a_training_step_of_a_registry_recipe(name):
    r = recipe(name)
    objective, model = Objective(r), tiny_vit()
    x, y, ids = torch.rand(4, 1, 8, 8), torch.arange(4), torch.arange(4)
    x_adv = objective.attack(model, x, y, step=0, seed=0, epochs=torch.zeros_like(ids), ids=ids)
    assert in_ball(x_adv, x, r.threat_model.norm, r.threat_model.eps).all()
    features = model.features(objective.inputs(x, x_adv))
    terms = objective.terms(features, model.head(features), y, step=r.total_steps - 1)
    terms["total"].backward()
    assert all(term.isfinite() for term in terms.values())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("soft", [False, True])
def test_label_smoothing_is_that_of_torch_in_the_outer_loss(soft):
    """Mixed labels included; TRADES smooths its clean part. The name's own recipe does without."""
    g, ga = torch.randn(4, 10), torch.randn(4, 10)
    y = torch.randn(4, 10).softmax(-1) if soft else torch.arange(4)
    expected = nn.CrossEntropyLoss(label_smoothing=0.4)
    for name, term, of in (("at_base", "robust", ga), ("trades_base", "clean_ce", g)):
        plain = recipe(f"vit_micro2.digits_linf.{name}")
        smooth = recipe(plain.name, {"label_smoothing": 0.4})
        logits = ga if name == "at_base" else torch.cat((g, ga))
        terms = Objective(smooth).terms(torch.zeros(len(logits), 3), logits, y, step=0)
        assert terms[term].item() == pytest.approx(expected(of, y).item(), rel=1e-6)
        assert "label_smoothing" not in plain.to_json() and smooth.to_json()["label_smoothing"] == 0.4
    with pytest.raises(ValueError, match=r"label_smoothing 0\.4 does not go with loss mart"):
        recipe("vit_micro2.digits_linf.mart_base", {"label_smoothing": 0.4})
