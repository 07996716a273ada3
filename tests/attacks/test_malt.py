"""apgd-malt: targets by linearised distance, a valid attack, under no AutoAttack name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from runs import run_protocol
from torch import nn

from robustzoo.attacks.geometry import dual_norm, in_ball
from robustzoo.attacks.protocols import protocol
from robustzoo.attacks.searches import SEARCHES
from robustzoo.registry.threat_model import ThreatModel


def distances(model, x, y, norm):
    """(K,) linearised distance of every class for one image, infinite for the label."""
    x = x[None].clone().requires_grad_()
    logits = model(x)[0]
    found = torch.full_like(logits, torch.inf)
    for t in range(len(logits)):
        if t != y:
            (grad,) = torch.autograd.grad(logits[y] - logits[t], x, retain_graph=True)
            found[t] = (logits[y] - logits[t]) / dual_norm(grad, norm)[0]
    return found.detach()


def test_every_sample_meets_its_targets_by_rising_distance(threat_model, tiny_vit, toys, monkeypatch):
    """On samples that are never broken, every attempt's target is the next nearest class."""
    tiny = ThreatModel.parse(f"{threat_model.norm}:0.00001")
    data = toys.labelled(tiny_vit, toys.random_images(5, (1, 8, 8)))
    (attack,) = protocol("apgd-malt", tiny, 10).attacks
    attack = replace(attack, iterations=2, targets=4, restarts=2)
    p = replace(protocol("apgd-malt", tiny, 10), attacks=(attack,))
    seen = {i: [] for i in range(5)}

    class Watched(SEARCHES[attack.algorithm]):
        def _attack(self, starting):
            super()._attack(starting)
            for lane in (starting & self.lanes.active).nonzero().squeeze(1).tolist():
                seen[int(self.lanes.ids[lane])].append(int(self.lanes.target[lane]))

    monkeypatch.setitem(SEARCHES, attack.algorithm, Watched)
    results = run_protocol(tiny_vit, data, range(5), p, tiny, 10, micro_batch_size=2)
    assert all(r.robust for r in results)
    for i, (x, y) in enumerate(data):
        ranked = distances(tiny_vit, x, y, threat_model.norm).argsort().tolist()[:4]
        assert seen[i] == [t for t in ranked for _ in range(2)]
    assert all((r.forwards - 1, r.backwards) == attack.passes for r in results)


class Lure(nn.Module):
    """Two wrong classes: 1 has the larger clean logit, but hardly rises; 2 is lower and steep."""

    def forward(self, x):
        mean = x.flatten(1).mean(1)
        flat = 0.9 + 0.01 * (mean - 0.5)
        steep = 0.5 + 20 * (mean - 0.5)
        return torch.stack((torch.ones_like(mean), flat, steep), 1)


def test_the_first_target_breaks_where_the_largest_logit_would_not(threat_model):
    threat_model = ThreatModel.parse({"linf": "linf:0.1", "l2": "l2:0.8", "l1": "l1:6"}[threat_model.norm])
    data = [(torch.full((1, 8, 8), 0.5), 0)]
    (result,) = run_protocol(
        Lure(),
        data,
        [0],
        protocol("apgd-malt", threat_model, 3),
        threat_model,
        3,
        micro_batch_size=1,
    )
    assert result.broken_by.attack == "apgd-malt" and result.broken_by.target == 2
    assert in_ball(result.witness[None], data[0][0][None], threat_model.norm, threat_model.eps).all()


@pytest.mark.parametrize("classes, candidates, targets", [(2, 1, 1), (10, 9, 9), (1000, 100, 9)])
def test_candidates_follow_the_number_of_classes(classes, candidates, targets):
    (attack,) = protocol("apgd-malt", ThreatModel.parse("linf:0.1"), classes).attacks
    assert (attack.constants["candidates"], attack.targets) == (candidates, targets)
