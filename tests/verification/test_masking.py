"""What zero gradients and a saturated cross-entropy do to a number: told in the report, or without effect."""

from __future__ import annotations

import copy

import pytest
import torch

import robustzoo
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.models.folder import read_folder
from robustzoo.verification.verify import verify
from tests.small_models import digits


@pytest.mark.filterwarnings("ignore:gradient masking suspected")
@pytest.mark.parametrize("mode", ["spot", "full"])
def test_zero_gradients_stand_in_the_report(folder, mode, monkeypatch):
    """The digits have 17 shades, and rounding to these changes no clean answer but hides every gradient."""

    def rounding(*given):
        model = read_folder(*given)
        normalise = model.normalise
        model.normalise = lambda x: normalise((x * 16).round() / 16)
        return model

    monkeypatch.setattr("robustzoo.verification.verify.read_folder", rounding)
    report = verify(folder, mode=mode, progress=False)
    (claim,) = report.claims
    assert claim.masking and "every gradient was zero for pgd-5" in claim.masking[0]
    assert "with signs of gradient masking" in report.text().splitlines()[0]
    assert report.to_json()["claims"][0]["masking"] == claim.masking


def robust(model, head, scale, data, **options):
    """Images of 128 that apgd-ce leaves with the last layer's weights times `scale`."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in head(model).parameters():
            parameter.mul_(scale)
    return evaluate(model, data, protocol="apgd-ce", progress=False, **options)


def test_large_logits_hide_nothing_from_cross_entropy(linear):
    x, y = digits("test")
    plain, scaled = (
        robust(linear, lambda m: m[1], scale, (x[:128], y[:128]), threat_model="linf:1/20")
        for scale in (1.0, 1e4)
    )
    assert 20 < plain.robust_accuracy.correct < plain.clean_accuracy.correct - 20
    assert abs(scaled.robust_accuracy.correct - plain.robust_accuracy.correct) <= 1
    assert scaled.clean_accuracy.correct == plain.clean_accuracy.correct
    assert not scaled.doc["run"]["zero_gradients"]


@pytest.mark.slow
def test_a_bundled_model_with_large_logits_is_broken_as_without():
    model = robustzoo.load("vit_micro2.digits_linf.at_base")
    plain, scaled = (
        robust(model, lambda m: m.head, scale, "digits", n=128).robust_accuracy.correct
        for scale in (1.0, 1e4)
    )
    assert plain == 111
    assert abs(scaled - plain) <= 1
