"""PGD on models whose optimum is known, and what it must leave alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.geometry import in_ball
from robustzoo.attacks.pgd import pgd, uniform_start
from robustzoo.models import PixelModel, build_network
from robustzoo.registry.threat_model import ThreatModel

THREATS = [ThreatModel.parse("linf:0.1"), ThreatModel.parse("l2:0.25")]


class Linear(nn.Module):
    """Logits (0, w.x): the cross-entropy of label 0 grows with w.x."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        score = x.flatten(1) @ self.weight
        return torch.stack((torch.zeros_like(score), score), 1)


def rise(logits):
    return logits.logsumexp(1) - logits[:, 0]


def tiny_vit() -> PixelModel:
    torch.manual_seed(0)
    return PixelModel(build_network("vit_micro2", 8, 1, 10), (0.3,), (0.37,)).eval()


def attack(model, x, threat_model, ids, steps=10):
    start = uniform_start(x, threat_model, seed=3, ids=ids, purpose="test")
    y = ids % 10
    with frozen(model):
        return pgd(
            model,
            x,
            lambda logits: nn.functional.cross_entropy(logits, y, reduction="none"),
            threat_model=threat_model,
            steps=steps,
            step_size=2.5 * threat_model.eps / steps,
            x_start=start,
        )


@pytest.mark.parametrize("threat_model", THREATS, ids=str)
def test_reaches_the_known_optimum_of_a_linear_model(threat_model):
    weight = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0, -1.0])
    eps = threat_model.eps
    # Far enough from the edges of the box for the best point to be the ball's.
    x = 0.3 + 0.4 * torch.rand(7, 1, 2, 3, generator=torch.Generator().manual_seed(0))
    start = uniform_start(x, threat_model, seed=0, ids=torch.arange(7), purpose="test")
    x_adv = pgd(
        Linear(weight), x, rise, threat_model=threat_model, steps=60, step_size=eps / 4, x_start=start
    )
    gain = (x_adv - x).flatten(1) @ weight
    best = eps * (weight.abs().sum() if threat_model.norm == "linf" else weight.norm())
    assert in_ball(x_adv, x, threat_model.norm, eps).all()
    torch.testing.assert_close(gain, best.expand(7), rtol=1e-5, atol=0)


def test_the_box_is_part_of_the_optimum():
    weight = torch.tensor([1.0, -1.0])
    x = torch.tensor([[0.95, 0.02], [0.5, 0.5]])
    threat_model = ThreatModel.parse("linf:0.1")
    x_adv = pgd(Linear(weight), x, rise, threat_model=threat_model, steps=4, step_size=0.05, x_start=x)
    torch.testing.assert_close(x_adv, torch.tensor([[1.0, 0.0], [0.6, 0.4]]))


@pytest.mark.parametrize("threat_model", THREATS, ids=str)
def test_does_not_depend_on_the_batch(threat_model):
    model, x, ids = tiny_vit(), torch.rand(6, 1, 8, 8), torch.tensor([4, 9, 17, 2, 33, 5])
    together = attack(model, x, threat_model, ids)
    order = torch.tensor([5, 2, 0, 4, 1, 3])
    assert torch.equal(attack(model, x[order], threat_model, ids[order]), together[order])
    halves = torch.cat([attack(model, x[i : i + 2], threat_model, ids[i : i + 2]) for i in range(0, 6, 2)])
    # Float32 kernels differ by shape, and a sign near 0 may flip: all but a few pixels agree.
    assert ((halves - together).abs() <= 1e-6).float().mean() > 0.97


@pytest.mark.parametrize("threat_model", THREATS, ids=str)
def test_raises_the_loss_and_leaves_the_model_alone(threat_model):
    model, x, ids = tiny_vit(), torch.rand(8, 1, 8, 8), torch.arange(8)
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    x_before = x.clone()
    x_adv = attack(model, x, threat_model, ids)
    assert x_adv.dtype == torch.float32 and not x_adv.requires_grad
    assert in_ball(x_adv, x, threat_model.norm, threat_model.eps).all()
    loss = nn.functional.cross_entropy
    assert loss(model(x_adv), ids, reduction="none").gt(loss(model(x), ids, reduction="none")).all()
    assert torch.equal(x, x_before)
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_points_are_float32_whatever_the_network_runs_in():
    seen = []

    class Half(Linear):
        def forward(self, x):
            seen.append(x.dtype)
            return super().forward(x.bfloat16())

    weight = torch.tensor([1.0, -1.0]).bfloat16()
    x, threat_model = torch.tensor([[0.9, 0.9]]), ThreatModel.parse("linf:1/255")
    x_adv = pgd(
        Half(weight),
        x,
        lambda g: rise(g.float()),
        threat_model=threat_model,
        steps=2,
        step_size=1 / 255,
        x_start=x,
    )
    assert seen == [torch.float32] * 2
    torch.testing.assert_close(x_adv, x + torch.tensor([[1.0, -1.0]]) / 255)


def test_works_under_no_grad_and_float64_stays():
    x = torch.full((2, 2), 0.5, dtype=torch.float64)
    model, threat_model = Linear(torch.tensor([1.0, -1.0], dtype=torch.float64)), THREATS[0]
    with torch.no_grad():
        x_adv = pgd(model, x, rise, threat_model=threat_model, steps=3, step_size=0.1, x_start=x)
    torch.testing.assert_close(x_adv, torch.tensor([[0.6, 0.4]], dtype=torch.float64).expand(2, 2))


def test_a_step_size_per_sample():
    x = torch.full((2, 2), 0.5)
    x_adv = pgd(
        Linear(torch.tensor([1.0, -1.0])),
        x,
        rise,
        threat_model=THREATS[0],
        steps=1,
        step_size=torch.tensor([0.01, 0.02]),
        x_start=x,
    )
    torch.testing.assert_close(x_adv - x, torch.tensor([[0.01, -0.01], [0.02, -0.02]]))


def test_no_steps_gives_the_projected_start():
    x = torch.full((1, 2), 0.5)
    arguments = {"threat_model": THREATS[0], "step_size": 0.1, "x_start": x + 1.0}
    torch.testing.assert_close(pgd(Linear(x[0]), x, rise, steps=0, **arguments), x + 0.1)
    with pytest.raises(ValueError, match="-1"):
        pgd(Linear(x[0]), x, rise, steps=-1, **arguments)


def test_a_reduced_loss_is_refused():
    x = torch.rand(3, 2)
    with pytest.raises(ValueError, match="one value per sample"):
        pgd(
            Linear(x[0]),
            x,
            lambda g: rise(g).mean(),
            threat_model=THREATS[0],
            steps=1,
            step_size=0.1,
            x_start=x,
        )


@pytest.mark.parametrize("threat_model", THREATS, ids=str)
def test_starts_are_keyed_by_sample_and_index(threat_model):
    x, ids = torch.full((4, 1, 3, 5), 0.5), torch.tensor([7, 8, 9, 7])

    def start(**key):
        return uniform_start(x, threat_model, **{"seed": 1, "ids": ids, "purpose": "a", "index": 0, **key})

    first = start()
    assert in_ball(first, x, threat_model.norm, threat_model.eps).all()
    assert torch.equal(first[0], first[3]) and not torch.equal(first[0], first[1])
    assert torch.equal(start(index=torch.zeros(4, dtype=torch.int64)), first)
    for other in ({"seed": 2}, {"purpose": "b"}, {"index": 1}):
        assert not torch.equal(start(**other), first)
