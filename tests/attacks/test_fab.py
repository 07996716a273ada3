"""FAB-T on models with a known boundary."""

from __future__ import annotations

import pytest
import torch

from robustzoo.attacks.autoattack import run_protocol
from robustzoo.attacks.projections import perturbation_norm
from robustzoo.attacks.protocols import protocol
from robustzoo.registry.threat_model import ThreatModel


def attack(model, data, i, norm, eps, classes):
    threat_model = ThreatModel.parse(f"{norm}:{eps:.9f}")
    p = protocol("fab-t", threat_model, classes)
    (result,) = run_protocol(model, data, [i], p, threat_model, classes, seed=0, micro_batch_size=1)
    return result


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("low, high", [(0.3, 0.7), (0.0, 1.0)], ids=["inside", "box"])
def test_linear_model_is_left_within_five_percent_of_the_minimum(norm, low, high, toys):
    """Inside the box the minimum is known; where the box is met it can only be larger."""
    model = toys.Linear(4, (1, 6, 6))
    x = toys.random_images(12, (1, 6, 6), low, high)
    data = toys.labelled(model, x)
    minimal = model.minimal_epsilon(x, torch.tensor([y for _, y in data]), norm)
    for i in minimal.argsort()[:8:2].tolist():
        if low == 0.3 and float(minimal[i]) < 0.25:
            assert not attack(model, data, i, norm, 1.051 * float(minimal[i]), 4).robust
        assert attack(model, data, i, norm, 0.99 * float(minimal[i]), 4).robust


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_the_witness_is_on_the_far_side_of_the_boundary_and_near_it(norm, toys):
    model = toys.Linear(3, (1, 6, 6))
    x = toys.random_images(6, (1, 6, 6), 0.4, 0.6)
    data = toys.labelled(model, x)
    minimal = model.minimal_epsilon(x, torch.tensor([y for _, y in data]), norm)
    i = int(minimal.argmin())
    result = attack(model, data, i, norm, 1.5 * float(minimal[i]), 3)
    distance = perturbation_norm((result.witness - x[i]).unsqueeze(0), norm)
    assert float(minimal[i]) * 0.999 <= float(distance) <= 1.06 * float(minimal[i])
    assert result.broken_by.iteration == 1
