"""Rounding to bytes keeps a witness inside ball and box; what is reported survives another batch shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from robustzoo.attacks.geometry import project
from robustzoo.data import TensorSource
from robustzoo.evaluation.ledger import Finding, Success
from robustzoo.evaluation.witnessing import (
    BORDERLINE,
    inside,
    make_witnesses,
    margins,
    quantised_forms,
)
from robustzoo.registry import ThreatModel

CPU = torch.device("cpu")


def problem(seed: int, threat_model: ThreatModel, on_grid: bool):
    """A clean image and a point in its ball, with some pixels at the edges of the box."""
    generator = torch.Generator().manual_seed(seed)
    clean = (torch.rand(1, 2, 4, 3, generator=generator) * 1.2 - 0.1).clamp(0, 1)
    if on_grid:
        clean = (clean * 255).round() / 255
    noise = torch.randn(clean.shape, generator=generator)
    point = project(clean + 3 * threat_model.eps * noise, clean, threat_model.norm, threat_model.eps)
    return clean[0], point[0]


@given(
    seed=st.integers(0, 2**31),
    text=st.sampled_from(
        [
            "linf:8/255",
            "linf:1/10",
            "linf:1/255",
            "linf:0.003",
            "l2:0.5",
            "l2:0.02",
            "l2:3",
            "l1:2",
            "l1:0.02",
            "l1:12",
        ]
    ),
    on_grid=st.booleans(),
)
def test_quantised_points_stay_inside_ball_and_box(seed, text, on_grid):
    threat_model = ThreatModel.parse(text)
    clean, point = problem(seed, threat_model, on_grid)
    for form in quantised_forms(point, clean, threat_model):
        assert form.dtype == torch.float32
        assert inside(form[None], clean[None], threat_model)[0]
        assert torch.equal((form * 255).round() / 255, form)


@given(seed=st.integers(0, 2**31), levels=st.integers(1, 40))
def test_byte_images_and_whole_levels_always_have_a_quantised_form(seed, levels):
    threat_model = ThreatModel.parse(f"linf:{levels}/255")
    clean, point = problem(seed, threat_model, on_grid=True)
    first = next(iter(quantised_forms(point, clean, threat_model)))
    assert (first - point).abs().max() <= 0.5 / 255 + 1e-6


@given(seed=st.integers(0, 2**31), text=st.sampled_from(["l1:2", "l1:12", "l2:0.5"]))
def test_byte_images_have_a_quantised_form_in_every_ball(seed, text):
    """Rounding towards a clean pixel on the grid never lengthens the perturbation."""
    threat_model = ThreatModel.parse(text)
    clean, point = problem(seed, threat_model, on_grid=True)
    *_, last = quantised_forms(point, clean, threat_model)
    assert (last - point).abs().max() <= 1 / 255 + 1e-6


def test_a_ball_smaller_than_a_level_has_none():
    threat_model = ThreatModel.parse("linf:1/1000")
    clean = torch.full((1, 2, 2), 100.5 / 255)
    assert not list(quantised_forms(clean, clean, threat_model))


def test_margins_are_the_difference_of_logits_at_any_batch_size():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval()
    x = torch.rand(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    logits = model(x).detach()
    expected = torch.stack(
        [logits[i, [c for c in range(3) if c != 1]].max() - logits[i, 1] for i in range(5)]
    )
    for size in (1, 2, 5, 8):
        assert torch.allclose(margins(model, x, [1] * 5, size, CPU), expected, atol=1e-6)


def test_a_nan_counts_as_fooled():
    class Broken(nn.Module):
        def forward(self, x):
            return torch.full((len(x), 3), float("nan"))

    assert margins(Broken(), torch.zeros(1, 1, 2, 2), [0], 1, CPU)[0] > 0


@pytest.mark.parametrize(("gain", "quantised", "borderline"), [(1.0, True, False), (1e-4, False, True)])
def test_a_witness_too_close_to_a_tie_is_kept_as_it_was_found(gain, quantised, borderline):
    """The mean decides: above 1/2 is class 1. The gain scales the logits, and with them every margin."""

    class Mean(nn.Module):
        def forward(self, x):
            score = gain * (x.mean((1, 2, 3)) - 0.5)
            return torch.stack([-score, score], 1)

    clean = torch.full((1, 1, 2, 2), 120 / 255)
    data = TensorSource(clean, torch.tensor([0]), num_classes=2)
    point = torch.full((1, 2, 2), 0.523)
    broken = Finding(0, 1, 4, 3, success=Success(1, None, 0, 2, point))
    (found,) = make_witnesses(Mean(), data, [broken], ThreatModel.parse("linf:0.1"), 4, CPU)
    assert replace(found, success=None) == replace(broken, success=None)
    assert (found.success.point.dtype == np.uint8) == quantised
    assert found.success.margin > 0 and (found.success.margin < BORDERLINE) == borderline
    if not quantised:
        assert np.array_equal(found.success.point, point.numpy())
