"""The inner maximisation of an objective: in the ball, keyed, and without a trace in the model."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import nn

from robustzoo.attacks.geometry import in_ball
from robustzoo.objectives import Objective
from robustzoo.registry import ThreatModel
from tests.objectives.small import AT, FOUR, TRADES, make_recipe, tiny_vit

LOSSES = pytest.mark.parametrize("loss", FOUR, ids=lambda loss: loss["loss"])


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
    if loss["attack_loss"] == "ce":
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
    objective, model = Objective(make_recipe(loss, attack_steps=1, attack_step_ratio=0.1)), tiny_vit()
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


@LOSSES
def test_soft_labels_that_are_one_hot_attack_alike(loss):
    objective, model = Objective(make_recipe(loss)), tiny_vit()
    x, y = torch.rand(4, 1, 8, 8), torch.tensor([3, 0, 9, 3])
    ids = torch.arange(4)

    def attack(labels):
        return objective.attack(model, x, labels, step=0, seed=0, epochs=torch.zeros_like(ids), ids=ids)

    soft = nn.functional.one_hot(y, 10).float()
    torch.testing.assert_close(attack(soft), attack(y), rtol=0, atol=1e-6)
