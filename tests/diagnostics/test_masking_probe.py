"""diagnose masking: silent on an honest model, and each way of hiding the gradient is named."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from robustzoo.cli import group
from robustzoo.diagnostics.masking_probe import MaskingProbe, _signs, probe_masking


class Wrapped(nn.Module):
    """A classifier behind a change of its input or output."""

    def __init__(self, inner, before=lambda x: x, after=lambda z: z):
        super().__init__()
        self.inner, self.before, self.after = inner, before, after

    def forward(self, x):
        return self.after(self.inner(self.before(x)))


def run(model, **options):
    return probe_masking(model.eval(), "digits", "linf:1/20", n=12, progress=False, **options)


def test_an_honest_model_shows_no_sign(linear):
    found = run(linear)
    assert found.signs == [] and found.clean[0] == found.clean[1] > 8
    start, few, many = found.loss
    assert start < few <= many * 1.001, "on a linear model more steps reach the same corner of the ball"
    assert found.square == found.white_box < found.clean[0]
    assert "no proof of its absence" in found.text()


def test_rounding_hides_the_gradient_and_square_finds_what_it_hides(linear):
    found = run(Wrapped(linear, before=lambda x: (x * 16).round() / 16))
    words = " ".join(found.signs)
    assert found.zero_gradients == found.clean[0]
    assert "zero at every pixel" in words and "do not raise the loss" in words
    assert "Square, which uses no gradient" in words


@pytest.mark.slow
def test_saturated_outputs_are_named(linear):
    found = run(Wrapped(linear, after=lambda z: 500 * z))
    assert found.zero_gradients > 5 and "saturated" in " ".join(found.signs)


def probe(**changes):
    return MaskingProbe("m", "linf:1/20", 100, **{"clean": (90, 90), "loss": (0.1, 1, 1), **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"clean": (90, 89)}, "clean accuracy changes between runs"),
        ({"zero_gradients": 1}, "zero at every pixel of 1 of 90"),
        ({"zero_gradients": 0, "loss": (0.1, 1, 0.5)}, "more steps find less"),
        ({"loss": (0.1, 0.1, 0.1)}, "do not raise the loss"),
        ({"white_box": 50, "square": 49}, "broke 1 of 100"),
    ],
)
def test_each_sign_alone(changes, words):
    signs = list(_signs(probe(**changes)))
    assert (signs == []) if words is None else (len(signs) == 1 and words in signs[0])


def test_no_correct_image_gives_no_experiment(linear):
    wrong = Wrapped(linear, after=torch.neg)
    found = run(wrong)
    assert found.clean == (0, 0) and found.white_box == 0 and found.signs == []
    assert "nothing to try" in found.text()


@pytest.mark.slow
def test_the_command_on_a_bundled_model():
    command = ["diagnose", "masking", "vit_micro2.digits_linf.at_base", "--n", "10", "--json"]
    done = CliRunner().invoke(group, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["signs"] == []
