"""aa-rand: gradients and verdicts are means over draws of a random model, and only it takes such a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from runs import run_protocol
from torch import nn

from robustzoo import evaluate
from robustzoo.attacks.answers import predict, seeded_draws
from robustzoo.attacks.protocols import protocol
from robustzoo.errors import RobustzooError
from robustzoo.registry.threat_model import ThreatModel

LINF = ThreatModel.parse("linf:0.1")


class Noisy(nn.Module):
    """A model whose logits have noise added, drawn from torch's generator."""

    def __init__(self, model: nn.Module, noise: float) -> None:
        super().__init__()
        self.model, self.noise = model, noise

    def forward(self, x):
        logits = self.model(x)
        return logits + self.noise * torch.randn_like(logits)


def run(model, data, p, threat_model=LINF):
    return run_protocol(model, data, range(len(data)), p, threat_model, 4, micro_batch_size=8)


@pytest.mark.parametrize("threat_model", ["linf:0.1", "l2:0.5", "l1:1"])
def test_on_a_model_without_noise_it_is_the_attack_without_draws(threat_model, toys):
    threat_model = ThreatModel.parse(threat_model)
    model = toys.Linear(4, (1, 5, 5))
    data = toys.labelled(model, toys.random_images(12, (1, 5, 5)))
    averaged = toys.short("aa-rand", threat_model, 4, iterations=8)
    plain = replace(
        averaged,
        attacks=tuple(replace(m, constants={**m.constants, "draws": 1}) for m in averaged.attacks),
    )
    many, one = (run(model, data, p, threat_model) for p in (averaged, plain))
    assert {r.robust for r in many} == {True, False}
    assert [(r.robust, r.broken_by) for r in many] == [(r.robust, r.broken_by) for r in one]
    assert all(r.forwards == 2 * s.forwards for r, s in zip(many, one, strict=True))


def test_counts_of_a_sample_that_is_never_broken(toys):
    """20 draws for the clean image and for each of 101 points of both attacks; 100 of them differentiated."""
    model = toys.Linear(4, (1, 3, 3))
    data = toys.labelled(model, toys.random_images(1, (1, 3, 3), 0.4, 0.6))
    threat_model = ThreatModel.parse("linf:0.00001")
    calls = []
    model.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
    p = protocol("aa-rand", threat_model, 4)
    (r,) = run_protocol(model, data, [0], p, threat_model, 4, micro_batch_size=1)
    assert (r.robust, r.forwards, r.backwards) == (True, 20 * (1 + 2 * 101), 20 * 2 * 100)
    assert sum(calls) == r.forwards
    assert (r.forwards - 20, r.backwards) == tuple(map(sum, zip(*(m.passes for m in p.attacks), strict=True)))


def test_noise_alone_breaks_nothing_and_is_averaged_away(toys):
    """Single draws are wrong on every third image; the mean of 40 hardly ever is."""
    model = toys.Linear(4, (1, 5, 5))
    x = toys.random_images(60, (1, 5, 5))
    data = toys.labelled(model, x)
    y = torch.tensor([label for _, label in data])
    with torch.no_grad():
        top = model(x).topk(2, dim=1).values
    sure = ((top[:, 0] - top[:, 1]) > 0.4).nonzero().squeeze(1)
    noisy = Noisy(model, 0.5)
    with seeded_draws(0, torch.device("cpu"), draws=400):
        assert (predict(noisy, x[sure]).argmax(1) != y[sure]).float().mean() > 0.1
        assert (predict(noisy, x[sure], draws=400).argmax(1) == y[sure]).all()


def test_the_same_run_is_the_same_again_and_the_generator_goes_on(toys):
    model = Noisy(toys.Linear(4, (1, 5, 5)), 0.02)
    data = toys.labelled(model.model, toys.random_images(12, (1, 5, 5)))
    p = toys.short("aa-rand", LINF, 4, iterations=6)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = run(model, data, p)
    assert torch.equal(torch.rand(3), expected)
    second = run(model, data, p)
    assert [(r.robust, r.broken_by, r.margin) for r in first] == [
        (r.robust, r.broken_by, r.margin) for r in second
    ]


def test_a_random_model_is_allowed_under_aa_rand_alone(toys):
    model = Noisy(toys.Linear(4, (1, 3, 3)), 0.05).eval()
    x = toys.random_images(6, (1, 3, 3))
    y = model.model(x).argmax(1)
    with pytest.raises(RobustzooError, match="aa-rand"):
        evaluate(model, (x, y), "linf:0.3", "aa-standard", progress=False)
    evidence = evaluate(model, (x, y), "linf:0.3", "aa-rand", progress=False)
    assert evidence.doc["protocol"]["members"][0]["draws"] == 20
    assert evidence.doc["counts"]["robust_correct"] < evidence.doc["counts"]["clean_correct"]
