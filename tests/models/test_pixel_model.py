"""PixelModel: one function of pixels, equal to the network on normalised pixels, strict about its input."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from torchvision.transforms import Normalize

from robustzoo.errors import RobustzooError
from robustzoo.models import PixelModel, build_network, pixel_model


def test_logits_are_the_networks_on_normalised_pixels_bit_for_bit(small_model, small_recipe, digits):
    normalised = Normalize(small_recipe.mean, small_recipe.std)(digits)
    assert torch.equal(small_model(digits), small_model.network(normalised))


def test_logits_are_the_head_of_the_features(small_model, digits):
    features = small_model.features(digits)
    assert features.shape == (16, 64)
    assert torch.equal(small_model(digits), small_model.head(features))
    weight, bias = small_model.head.weight, small_model.head.bias
    assert torch.allclose(small_model(digits), features @ weight.T + bias, atol=1e-6)


def test_the_state_is_the_networks_alone(small_model):
    assert set(small_model.state_dict()) == {f"network.{name}" for name in small_model.network.state_dict()}


def test_one_value_stands_for_every_channel(digits):
    network = build_network("vit_ti4", 32, 3, 10).eval()
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(
        PixelModel(network, (0.47,), (0.25,))(x), PixelModel(network, (0.47,) * 3, (0.25,) * 3)(x)
    )


def test_gradients_are_those_of_pixels(small_model, small_recipe, digits):
    """The chain rule through (x - mean) / std divides by std, so epsilon stays in pixel units."""
    x = digits.requires_grad_()
    normalised = ((x - small_recipe.mean[0]) / small_recipe.std[0]).detach().requires_grad_()
    (of_pixels,) = torch.autograd.grad(small_model(x).square().sum(), x)
    (of_normalised,) = torch.autograd.grad(small_model.network(normalised).square().sum(), normalised)
    assert torch.allclose(of_pixels, of_normalised / small_recipe.std[0], rtol=1e-5, atol=1e-7)


def test_copies_and_pickles_give_the_same_logits(small_model, small_recipe, digits):
    small_model.recipe, small_model.card = small_recipe, "text"
    expected = small_model(digits)
    for other in (copy.deepcopy(small_model), pickle.loads(pickle.dumps(small_model))):
        assert torch.equal(other(digits), expected)
        assert (other.recipe, other.card, other.validate_pixels) == (small_recipe, "text", True)


def test_double_precision_model_takes_double_pixels(small_model, digits):
    double = copy.deepcopy(small_model).double()
    assert double(digits.double()).dtype == torch.float64
    assert torch.allclose(double(digits.double()).float(), small_model(digits), atol=1e-4)


def test_a_new_model_has_no_origin_and_trains(small_recipe):
    model = pixel_model(small_recipe)
    assert model.training
    assert (model.name, model.recipe, model.threat_model, model.card, model.folder) == (None,) * 5


def test_the_edges_of_the_range_and_an_empty_batch_are_fine(small_model):
    assert small_model(torch.tensor([0.0, 1.0]).repeat(32).view(1, 1, 8, 8)).shape == (1, 10)
    assert small_model(torch.empty(0, 1, 8, 8)).shape == (0, 10)


def with_value(value: float) -> torch.Tensor:
    x = torch.full((2, 1, 8, 8), 0.5)
    x[1, 0, 3, 3] = value
    return x


BAD_PIXELS = [
    (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), r"torch.uint8.*x.float\(\) / 255"),
    (torch.zeros(2, 1, 8, 8, dtype=torch.int64), "torch.int64"),
    (np.zeros((2, 1, 8, 8), dtype=np.float32), "ndarray.*expected a torch.Tensor"),
    (with_value(1.001), r"\[0.5, 1.001\].*divided by 255"),
    (with_value(-1e-3), r"\[-0.001, 0.5\]"),
    (with_value(1.0000001), r"\[0.5, 1.0000001\]"),
    (with_value(float("nan")), "NaN"),
    (with_value(float("inf")), "inf"),
    (torch.zeros(2, 3, 8, 8), r"\(2, 3, 8, 8\); expected \(B, 1, 8, 8\)"),
    (torch.zeros(2, 1, 8, 7), r"expected \(B, 1, 8, 8\)"),
    (torch.zeros(1, 8, 8), r"\(1, 8, 8\); expected \(B, 1, 8, 8\)"),
    (torch.zeros(2, 1, 8, 8, dtype=torch.float64), "torch.float64 but the model computes in torch.float32"),
]


@pytest.mark.parametrize(("pixels", "words"), BAD_PIXELS, ids=[words[:24] for _, words in BAD_PIXELS])
@pytest.mark.parametrize("method", ["forward", "features"])
def test_bad_pixels_are_refused_in_words(small_model, method, pixels, words):
    with pytest.raises(RobustzooError, match=words):
        getattr(small_model, method)(pixels)


def test_loops_that_clamp_can_switch_the_check_off(small_model):
    small_model.validate_pixels = False
    assert torch.isfinite(small_model(with_value(1.001))).all()


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        ((0.5, 0.5), (0.5,), "mean has 2 values; expected 1 or 3"),
        ((0.5,), (), "std has 0 values"),
        ((0.5,), (0.0,), "std > 0"),
        ((float("nan"),), (0.5,), "finite"),
        ((0.5,), (float("inf"),), "finite"),
    ],
)
def test_normalisation_is_checked(mean, std, words):
    network = build_network("vit_ti4", 32, 3, 10, device="meta")
    with pytest.raises(ValueError, match=words):
        PixelModel(network, mean, std)
