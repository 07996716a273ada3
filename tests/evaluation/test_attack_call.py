"""robustzoo.attack: points that can be used, the verdicts of the evaluation of the same images."""

import torch

import robustzoo
from robustzoo.cards import Evidence


def test_points_fool_the_model_within_the_ball_and_agree_with_the_evaluation(linear):
    x = torch.rand(30, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        y = linear(x).argmax(1)
    y[0] = (y[0] + 1) % 10  # wrong before any attack
    images, succeeded = robustzoo.attack(linear, x, y, "linf:1/40", "apgd-ce")
    evidence = robustzoo.evaluate(linear, (x, y), "linf:1/40", "apgd-ce", progress=False)
    assert 1 < succeeded.sum() < 30 and float(evidence) == int((~succeeded).sum()) / 30
    assert (images - x).abs().max() <= 1 / 40 + 1e-6 and images.min() >= 0 and images.max() <= 1
    with torch.no_grad():
        assert torch.equal(linear(images).argmax(1) != y, succeeded)
    assert torch.equal(images[0], x[0]) and succeeded[0] and torch.equal(images[~succeeded], x[~succeeded])
    # one line each, and the numbers themselves
    assert len(str(evidence).splitlines()) == 1 and str(evidence) == repr(evidence)
    assert float(evidence.clean_accuracy) == evidence.clean_accuracy.value == 29 / 30
    assert "robust accuracy" in robustzoo.report(evidence)
    assert robustzoo.compare([evidence], [Evidence(evidence.doc)])
