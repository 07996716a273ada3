"""A frozen model is quiet inside the block and exactly as before after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robustzoo.attacks.frozen import frozen
from robustzoo.errors import RobustzooError
from robustzoo.models import PixelModel, build_network


def mixed_model() -> nn.Module:
    """A model whose flags differ from part to part."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))
    model[0].weight.requires_grad_(False)
    model[2][0].eval()
    return model


def flags(model: nn.Module):
    return [p.requires_grad for p in model.parameters()], [m.training for m in model.modules()]


def test_eval_and_frozen_inside_restored_after():
    model = mixed_model()
    before = flags(model)
    assert True in before[0] and False in before[0] and True in before[1] and False in before[1]
    with frozen(model) as same:
        assert same is model
        assert not any(flag for group in flags(model) for flag in group)
    assert flags(model) == before


def test_restored_after_an_exception_and_when_nested():
    model = mixed_model()
    before = flags(model)
    with pytest.raises(RuntimeError, match="inside"), frozen(model), frozen(model):
        raise RuntimeError("inside")
    assert flags(model) == before


class Counting(nn.Module):
    """Counts its forwards, in one buffer in place and in another by a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inside", torch.zeros(()))
        self.register_buffer("outside", torch.zeros(()))

    def forward(self, x):
        self.inside += 1
        self.outside = self.outside + 1
        return x


def test_buffers_that_a_forward_changes_get_their_values_back():
    model = Counting()
    before = dict(model.named_buffers())
    with frozen(model), frozen(model):
        model(torch.zeros(1))
        assert model.inside == model.outside == 1
    assert all(model.get_buffer(name) is buffer and buffer == 0 for name, buffer in before.items())


def test_input_gradients_flow_and_weights_get_none():
    model = mixed_model()
    x = torch.rand(3, 4, requires_grad=True)
    with frozen(model):
        (grad,) = torch.autograd.grad(model(x).sum(), x)
    assert grad.shape == x.shape
    assert all(p.grad is None for p in model.parameters())


def test_pixel_checks_are_off_inside_also_deep_down():
    pixel_model = PixelModel(build_network("vit_micro2", 8, 1, 10), (0.3,), (0.37,)).eval()
    pixel_model.validate_pixels = True
    outside = torch.full((1, 1, 8, 8), 1.5)
    with frozen(nn.Sequential(pixel_model)):
        assert pixel_model(outside).shape == (1, 10)
    with pytest.raises(RobustzooError):
        pixel_model(outside)
    pixel_model.validate_pixels = False
    with frozen(pixel_model):
        pass
    assert pixel_model.validate_pixels is False
