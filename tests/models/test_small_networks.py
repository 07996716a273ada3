"""Small networks for photographs: what the residual one computes, and both in timm's factory and folders."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from robustzoo.attacks.frozen import frozen
from robustzoo.errors import RobustzooError
from robustzoo.models import pixel_model, read_folder, write_folder
from robustzoo.models.initial import load_initial
from robustzoo.models.small_networks import ResidualBlock, StandardisedConv2d
from robustzoo.objectives.weight_perturbation import perturbed_parameters
from robustzoo.registry import recipe

NAMES = ["resnet_mini.cifar10jpg_linf.at_base", "vit_mini4c.cifar10jpg_linf.at_base"]
RESNET18 = "resnet18.cifar10jpg_linf.at_base"
RESIDUAL = NAMES[0]


def model_of(name: str):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return pixel_model(recipe(name)).eval()


@pytest.fixture
def pixels():
    return torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_a_standardised_convolution_by_hand():
    convolution = StandardisedConv2d(3, 5, 3, padding=1, scale=1.5)
    nn.init.normal_(convolution.weight, 2.0, 3.0)
    with torch.no_grad():
        convolution.gain.copy_(torch.arange(1.0, 6.0))
    used = []
    convolution._conv_forward = lambda x, weight, bias: used.append(weight)
    convolution(torch.zeros(1, 3, 4, 4))
    for channel, weight in enumerate(used[0]):
        assert weight.mean().item() == pytest.approx(0, abs=1e-5)
        assert weight.std(correction=0).item() == pytest.approx(1.5 * (channel + 1) / 27**0.5, rel=1e-4)


def test_activations_keep_their_size_at_first():
    """Blocks expect the deviation of what they are given: without norm layers nothing else holds it."""
    model = model_of(RESIDUAL)
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    x = model.network.stem(x)
    for block in model.network.blocks:
        assert 0.6 < (x * block.scale).std() < 1.5
        x = block(x)
    assert 0.6 < (x * model.network.last_scale).std() < 1.5


def test_a_block_is_the_shortcut_and_what_it_adds():
    block = ResidualBlock(8, 8, 1, variance=4.0)
    x = torch.randn(2, 8, 4, 4)
    active = nn.functional.silu(x / 2)
    added = block.conv2(nn.functional.silu(block.conv1(active)))
    assert torch.allclose(block(x), x + added, atol=1e-6)
    with torch.no_grad():
        block.skip_gain.fill_(0)
    assert torch.equal(block(x), x)


def test_logits_of_an_image_depend_on_no_other_image_and_on_no_mode(pixels):
    model = model_of(RESIDUAL)
    together = model(pixels)
    assert torch.allclose(together[3:4], model(pixels[3:4]), atol=1e-5)
    assert torch.equal(model.train()(pixels), together)
    with frozen(model):
        assert torch.equal(model(pixels), together)
    assert not list(model.network.buffers())


def test_recomputing_activations_changes_no_gradient(pixels):
    model, gradients = model_of(RESIDUAL), []
    for recompute in (False, True):
        model.network.set_grad_checkpointing(recompute)
        model.zero_grad()
        model(pixels).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*gradients, strict=True))


def test_awp_moves_the_kernels_and_the_head_alone():
    model = model_of(RESIDUAL)
    names = {id(parameter): name for name, parameter in model.network.named_parameters()}
    moved = [names[id(parameter)] for parameter in perturbed_parameters(model)]
    assert moved and all(name.endswith("weight") for name in moved)


@pytest.mark.parametrize("name", [*NAMES, RESNET18])
def test_a_folder_of_it_is_read_by_us_and_by_timm(name, pixels, tmp_path):
    model = model_of(name)
    assert model.input_shape == (3, 32, 32)
    assert torch.equal(model.head(model.features(pixels)), model(pixels))
    assert model.features(pixels).shape == (16, model.head.in_features)
    write_folder(tmp_path / "model", model, recipe(name))
    assert torch.equal(read_folder(tmp_path / "model")(pixels), model(pixels))
    by_timm = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    assert torch.equal(by_timm(model.normalise(pixels)), model(pixels))
    assert isinstance(by_timm.get_submodule(by_timm.pretrained_cfg["first_conv"]), nn.Conv2d)


@pytest.mark.parametrize("name", NAMES)
def test_initial_weights_of_a_folder(name, pixels, tmp_path):
    model, other = model_of(name), pixel_model(recipe(name)).eval()
    write_folder(tmp_path / "model", model, recipe(name))
    load_initial(other.network, tmp_path / "model")
    assert torch.equal(other(pixels), model(pixels))


def test_initial_weights_of_another_network_are_refused(tmp_path):
    write_folder(tmp_path / "model", model_of(NAMES[1]), recipe(NAMES[1]))
    with pytest.raises(RobustzooError, match=r"does not fit the network: .*unknown"):
        load_initial(model_of(RESIDUAL).network, tmp_path / "model")
