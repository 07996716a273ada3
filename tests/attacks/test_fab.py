"""FAB on models with a known boundary; its optimum is in test_linear_optimum.py."""

from __future__ import annotations

import pytest
import torch
from runs import run_protocol

from robustzoo.attacks.fab import UntargetedFAB
from robustzoo.attacks.geometry import dual_norm, perturbation_norm
from robustzoo.attacks.lanes import Lanes
from robustzoo.attacks.protocols import protocol
from robustzoo.registry.threat_model import ThreatModel


def attack(name, model, data, i, norm, eps, classes):
    threat_model = ThreatModel.parse(f"{norm}:{eps:.9f}")
    p = protocol(name, threat_model, classes)
    (result,) = run_protocol(model, data, [i], p, threat_model, classes, micro_batch_size=1)
    return result


@pytest.mark.parametrize("attack_name", ["fab-t", "fab"])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_witness_is_on_the_far_side_of_the_boundary_and_near_it(norm, attack_name, toys):
    model = toys.Linear(3, (1, 6, 6))
    x = toys.random_images(6, (1, 6, 6), 0.4, 0.6)
    data = toys.labelled(model, x)
    minimal = model.minimal_epsilon(x, torch.tensor([y for _, y in data]), norm)
    i = int(minimal.argmin())
    result = attack(attack_name, model, data, i, norm, 1.5 * float(minimal[i]), 3)
    distance = perturbation_norm((result.witness - x[i]).unsqueeze(0), norm)
    rounding = perturbation_norm(torch.full_like(x[:1], 0.5 / 255), norm)  # of witnesses to whole levels
    assert 0.999 * float(minimal[i]) <= float(distance) <= 1.051 * float(minimal[i]) + float(rounding)
    assert result.broken_by.iteration == 1


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_untargeted_steps_to_the_nearest_boundary_and_restarts_at_half_the_budget(norm, toys):
    """All boundaries are linearised: the class reached is the nearest one, whatever its logit."""
    model = toys.Linear(5, (1, 6, 6))
    model.bias.data = -0.5 * model.weight.data.sum(1)
    x = toys.random_images(8, (1, 6, 6), 0.45, 0.55)
    data = toys.labelled(model, x)
    y = torch.tensor([label for _, label in data])
    minimal = model.minimal_epsilon(x, y, norm)
    threat_model = ThreatModel.parse(f"{norm}:{1.06 * float(minimal.max()):.9f}")
    (attack,) = protocol("fab", threat_model, 5).attacks
    lanes = Lanes(8, (1, 6, 6), torch.device("cpu"))
    lanes.x, lanes.y, lanes.ids = x, y, torch.arange(8)
    lanes.active, lanes.attempt = torch.ones(8, dtype=torch.bool), torch.ones(8, dtype=torch.int64)
    search = UntargetedFAB(attack, lanes, norm, threat_model.eps, seed=0)
    search.begin(lanes.active)
    distance = perturbation_norm(search.points - x, norm)
    torch.testing.assert_close(distance, torch.full((8,), 0.5 * threat_model.eps), rtol=1e-4, atol=0)
    points = x.clone().requires_grad_()
    logits = model(points)
    loss, grad = search.gradient(logits, search.loss(logits), points)
    torch.testing.assert_close(-loss / dual_norm(grad, norm), minimal)
