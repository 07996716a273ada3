"""Objectives: the attack, the terms of a step against a reference written out, and the registry's recipes."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from robustzoo.attacks.projections import in_ball
from robustzoo.models import PixelModel, build_network
from robustzoo.objectives import Objective, ObjectiveError
from robustzoo.registry import ThreatModel, all_names, recipe

AT = {"loss": "at", "attack_start": "uniform", "attack_loss": "ce"}
TRADES = {"loss": "trades", "attack_start": "gaussian", "attack_loss": "kl"}
TRH = {"defences": ("trh",)}
LOSSES = pytest.mark.parametrize("loss", [AT, TRADES], ids=["at", "trades"])


def make_recipe(*parts, **changes):
    """The fields an objective reads, with TrH values that are visible in every term."""
    fields = {
        "defences": (),
        "threat_model": ThreatModel.parse("linf:0.1"),
        "total_steps": 100,
        "l2_reg": 5e-4,
        "attack_steps": 5,
        "attack_warmup_steps": 0,
        "attack_step_ratio": 2.5,
        "loss_weight": 6.0,
        "loss_stop_gradient": False,
        "trh_lambda": 0.3,
        "trh_schedule": "constant",
        "trh_gamma": 1e-3,
        "trh_stop_gradient": True,
        "mart_bce_input": None,
        "s2o_weight": 0.3,
        "s2o_diagonal": 0.2,
    }
    for part in parts:
        fields |= part
    return SimpleNamespace(**(fields | changes))


def tiny_vit() -> PixelModel:
    torch.manual_seed(0)
    return PixelModel(build_network("vit_micro2", 8, 1, 10), (0.3,), (0.37,))


class TwoLayers(nn.Module):
    """Pixels (B, 6) to features (B, 4) to logits (B, 3), in float64 and without a bias at the top."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Sequential(nn.Linear(6, 4), nn.Tanh()).double()
        self.head = nn.Linear(4, 3, bias=False).double()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


def batch():
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(5, 6, generator=generator, dtype=torch.float64)
    x_adv = (x + 0.3 * torch.randn(5, 6, generator=generator, dtype=torch.float64)).clamp(0, 1)
    return x, x_adv, torch.tensor([0, 2, 1, 1, 0])


def robust_loss(recipe, g: Tensor, ga: Tensor, y: Tensor, stop_kl: bool) -> Tensor:
    """The loss of one sample, written plainly."""
    if recipe.loss == "at":
        return -torch.log(ga.softmax(-1))[y]
    s = g.softmax(-1).detach() if stop_kl else g.softmax(-1)
    divergence = sum(s[k] * (torch.log(s[k]) - torch.log(ga.softmax(-1)[k])) for k in range(len(s)))
    return -torch.log(g.softmax(-1))[y] + recipe.loss_weight * divergence


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


def step_terms(objective: Objective, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, step: int = 7):
    return objective.terms(*model(objective.inputs(x, x_adv)), y, step=step)


@LOSSES
@pytest.mark.parametrize("kl_stop", [False, True])
@pytest.mark.parametrize("trh_stop", [False, True])
def test_a_whole_step_equals_the_written_out_objective(loss, kl_stop, trh_stop):
    recipe = make_recipe(loss, TRH, loss_stop_gradient=kl_stop, trh_stop_gradient=trh_stop)
    x, x_adv, y = batch()
    ours, theirs = TwoLayers(), TwoLayers()
    objective = Objective(recipe)

    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, weight_decay=objective.weight_decay)
    terms = step_terms(objective, ours, x, x_adv, y)
    l2 = objective.l2_term(ours)
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
    trh = step_terms(Objective(make_recipe(loss, TRH, trh_schedule="linear")), model, x, x_adv, y, step=50)
    parts = {"clean_ce", "kl"} if loss is TRADES else set()
    assert base.keys() == {"total", "robust"} | parts
    assert trh.keys() == {"total", "robust", "trace", "trh"} | parts
    assert torch.equal(base["total"], base["robust"]) and torch.equal(base["robust"], trh["robust"])
    assert trh["trace"] > 0
    torch.testing.assert_close(trh["trh"], 0.15 * trh["trace"])
    torch.testing.assert_close(trh["total"], trh["robust"] + trh["trh"])
    if parts:
        torch.testing.assert_close(base["robust"], base["clean_ce"] + 6.0 * base["kl"])


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
        ("linear", {0: 0.0, 25: 0.25, 99: 0.99}),
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
    term = Objective(make_recipe(AT, TRH)).l2_term(model)
    assert term.item() == pytest.approx(1e-3 * 31.0) and not term.requires_grad


@LOSSES
@pytest.mark.parametrize("threat", ["linf:0.1", "l2:1"])
def test_attack_stays_in_the_ball_and_leaves_the_model_alone(loss, threat):
    objective = Objective(make_recipe(loss, threat_model=ThreatModel.parse(threat)))
    model = tiny_vit()
    model.head.bias.requires_grad_(False)
    flags = [p.requires_grad for p in model.parameters()]
    x, y, ids = torch.rand(6, 1, 8, 8), torch.arange(6), torch.arange(6)
    x_adv = objective.attack(model, x, y, step=0, seed=0, epochs=torch.zeros(6, dtype=torch.int64), ids=ids)
    assert x_adv.dtype == torch.float32 and not x_adv.requires_grad
    assert in_ball(x_adv, x, threat.split(":")[0], ThreatModel.parse(threat).eps).all()
    assert all(p.grad is None for p in model.parameters())
    assert [p.requires_grad for p in model.parameters()] == flags
    assert model.training and model.validate_pixels
    with torch.no_grad():
        model.eval()
        g, ga = model(x), model(x_adv)
    if loss is AT:
        rise = nn.functional.cross_entropy(ga, y) - nn.functional.cross_entropy(g, y)
    else:
        rise = nn.functional.kl_div(ga.log_softmax(-1), g.softmax(-1), reduction="batchmean")
    assert rise > 1e-3


@LOSSES
def test_attack_does_not_depend_on_the_batch(loss):
    objective, model = Objective(make_recipe(loss)), tiny_vit()
    x, y = torch.rand(6, 1, 8, 8), torch.arange(6)
    ids, epochs = torch.tensor([40, 3, 77, 8, 1, 100]), torch.tensor([2, 2, 2, 3, 3, 3])

    def attack(rows):
        return objective.attack(model, x[rows], y[rows], step=0, seed=5, epochs=epochs[rows], ids=ids[rows])

    rows = torch.arange(6)
    together, order = attack(rows), torch.tensor([3, 5, 1, 0, 4, 2])
    assert torch.equal(attack(rows), together)
    assert torch.equal(attack(order), together[order])
    # Another shape may round differently, and the sign of a gradient near 0 with it: all but a few pixels.
    halves = torch.cat([attack(rows[:2]), attack(rows[2:])])
    assert ((halves - together).abs() <= 1e-6).double().mean() > 0.97


@LOSSES
def test_attack_noise_changes_with_epoch_seed_and_sample(loss):
    objective, model = Objective(make_recipe(loss, attack_steps=1)), tiny_vit()
    x, y = torch.rand(1, 1, 8, 8).expand(2, 1, 8, 8), torch.tensor([1, 1])

    def attack(seed=0, epoch=0, ids=(3, 3)):
        epochs = torch.full((2,), epoch)
        return objective.attack(model, x, y, step=0, seed=seed, epochs=epochs, ids=torch.tensor(ids))

    first = attack()
    assert torch.equal(first[0], first[1])
    for other in (attack(seed=1), attack(epoch=1), attack(ids=(4, 4))):
        assert not torch.equal(other, first)


def test_trades_computes_the_clean_softmax_once():
    calls = []
    model = tiny_vit()
    model.register_forward_hook(lambda module, args, output: calls.append(args[0].requires_grad))
    x, ids = torch.rand(2, 1, 8, 8), torch.arange(2)
    Objective(make_recipe(TRADES)).attack(
        model, x, ids, step=0, seed=0, epochs=torch.zeros_like(ids), ids=ids
    )
    assert calls == [False] + [True] * 5


def test_inputs_are_one_batch():
    x, x_adv, _ = batch()
    assert Objective(make_recipe(AT)).inputs(x, x_adv) is x_adv
    assert torch.equal(Objective(make_recipe(TRADES)).inputs(x, x_adv), torch.cat((x, x_adv)))
    with pytest.raises(ValueError, match="10 rows"):
        Objective(make_recipe(TRADES)).terms(torch.zeros(5, 4), torch.zeros(5, 3), batch()[2], step=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "gairat"}, "loss 'gairat'.*at, trades, alp, mart"),
        ({"defences": ("trh", "cutout")}, "defence 'cutout'.*trh, s2o, awp, swa"),
        ({"attack_start": "zero"}, "attack_start 'zero'"),
        ({"attack_loss": "dlr"}, "attack_loss 'dlr'"),
        ({"defences": ("trh",), "trh_schedule": "cosine"}, "trh_schedule 'cosine'.*multistep"),
    ],
)
def test_what_no_objective_offers_is_named(changes, message):
    with pytest.raises(ObjectiveError, match=message):
        Objective(make_recipe(AT, changes))


def test_every_recipe_of_the_registry_has_an_objective():
    for name in all_names():
        r = recipe(name)
        objective = Objective(r)
        assert objective.needs_clean == (r.loss != "at" or "s2o" in r.defences), name
        assert objective.weight_decay == 2 * (r.trh_gamma if "trh" in r.defences else r.l2_reg) >= 0, name
        assert (objective.trh_lambda(r.total_steps - 1) > 0) == ("trh" in r.defences), name


@pytest.mark.parametrize("name", [name for name in all_names() if name.startswith("vit_micro2.")])
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


def test_the_radius_grows_to_epsilon_and_stays():
    objective = Objective(make_recipe(AT, attack_warmup_steps=4))
    radii = [str(objective.threat_model(step).epsilon) for step in range(6)]
    assert radii == ["1/40", "1/20", "3/40", "1/10", "1/10", "1/10"]
    assert Objective(make_recipe(AT)).threat_model(0).epsilon == Fraction(1, 10)


@LOSSES
def test_the_attack_keeps_to_the_radius_of_its_step(loss):
    objective, model = Objective(make_recipe(loss, attack_warmup_steps=4)), tiny_vit()
    x, ids = torch.full((4, 1, 8, 8), 0.5), torch.arange(4)
    for step, radius in ((0, 0.025), (3, 0.1)):
        x_adv = objective.attack(model, x, ids, step=step, seed=0, epochs=torch.zeros_like(ids), ids=ids)
        assert (x_adv - x).abs().amax().item() == pytest.approx(radius, abs=1e-6)
