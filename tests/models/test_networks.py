"""The transformers that timm does not have: geometry, size, and timm's own factory and folders."""

from __future__ import annotations

import dataclasses

import pytest
import timm
import torch
from torch import nn

from robustzoo.models import (
    PixelModel,
    batch_norm_networks,
    networks,
    pixel_model,
    read_folder,
    small_networks,
    write_folder,
)
from robustzoo.models.architectures import build_for
from robustzoo.registry import recipe
from robustzoo.registry.catalog import ARCHITECTURES

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 10}
ALL = [
    # entry point, image size, grid, million parameters with 1,000 classes
    ("robustzoo_vit_base_k4s2", 32, 15, 86.04),
    ("robustzoo_vit_large_k4s2", 32, 15, 303.62),
    ("robustzoo_vit_large_r50_s16", 224, 14, 316.48),
    ("robustzoo_vit_large_r50_s4", 32, 8, 316.34),
]
NAMES = [row[0] for row in ALL]


def small(name: str, **changes) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return timm.create_model(name, **SMALL | changes).eval()


def test_every_entry_point_is_tested():
    others = {*small_networks.default_cfgs, *batch_norm_networks.default_cfgs}  # see test_small_networks
    assert set(networks.default_cfgs) == {*NAMES, "robustzoo_vit_small_c16"}
    assert {*networks.default_cfgs, *others} == set(timm.list_models("robustzoo_*"))


@pytest.mark.parametrize(("name", "size", "grid", "millions"), ALL)
def test_true_size(name, size, grid, millions):
    with torch.device("meta"):
        network = timm.create_model(name)
    parameters = dict(network.named_parameters())
    assert all(p.is_meta for p in parameters.values())
    assert sum(p.numel() for p in parameters.values()) / 1e6 == pytest.approx(millions, abs=0.005)
    assert network.patch_embed.img_size == (size, size)
    assert network.patch_embed.grid_size == (grid, grid)
    assert network.pos_embed.shape[1] == grid * grid + 1
    assert network(torch.empty(2, 3, size, size, device="meta")).shape == (2, 1000)


def test_overlapping_patches_are_a_convolution_of_kernel_four_stride_two():
    network = small("robustzoo_vit_large_k4s2")
    x = torch.randn(2, 3, 32, 32)
    tokens = network.patch_embed(x)
    weight, bias = network.patch_embed.proj.weight, network.patch_embed.proj.bias
    assert weight.shape == (32, 3, 4, 4) and tokens.shape == (2, 225, 32)
    for row, column in ((0, 0), (3, 7), (14, 14)):
        patch = x[:, :, 2 * row : 2 * row + 4, 2 * column : 2 * column + 4]
        wanted = torch.einsum("bcij,ocij->bo", patch, weight) + bias
        assert torch.allclose(tokens[:, 15 * row + column], wanted, atol=1e-5)


def test_overlapping_patches_follow_timms_input_size():
    network = small("robustzoo_vit_base_k4s2", img_size=16)
    assert network.patch_embed.grid_size == (7, 7) and network.patch_embed.feat_ratio() == 2
    network.set_input_size(img_size=(32, 32))
    assert network(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    with pytest.raises(ValueError, match="patch size 8 asked for"):
        network.set_input_size(patch_size=8)


@pytest.mark.parametrize("name", NAMES)
def test_another_patch_size_is_refused(name):
    with pytest.raises(ValueError, match="leave patch_size out"):
        timm.create_model(name, patch_size=16)


def test_the_hybrid_is_timms_own_with_a_large_transformer():
    """Same stem and projection as timm's R50+ViT-B/16, so the same function of the same weights."""
    ours, theirs = small("robustzoo_vit_large_r50_s16"), small("vit_base_r50_s16_224")
    theirs.load_state_dict(ours.state_dict(), strict=True)
    x = torch.randn(1, 3, 224, 224)
    assert torch.equal(ours(x), theirs(x))


def test_the_small_hybrid_differs_in_its_first_convolution_and_pooling_alone():
    small_images, large = small("robustzoo_vit_large_r50_s4"), small("robustzoo_vit_large_r50_s16")
    differing = {
        name
        for name, tensor in small_images.state_dict().items()
        if tensor.shape != large.state_dict()[name].shape
    }
    assert differing == {"patch_embed.backbone.stem.conv.weight", "pos_embed"}
    stem = small_images.patch_embed.backbone.stem
    assert (stem.conv.kernel_size, stem.conv.stride) == ((3, 3), (1, 1))
    assert stem(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 32, 32)
    assert small_images.patch_embed.backbone(torch.zeros(1, 3, 32, 32)).shape == (1, 1024, 8, 8)
    he = stem.conv.weight.std() * (64 * 9 / 2) ** 0.5  # 1 for He's initialisation by outputs, as timm's stems
    assert 0.95 < he < 1.05


@pytest.mark.parametrize("name", NAMES)
def test_a_pixel_model_of_it(name):
    network = small(name, in_chans=1)
    model = PixelModel(network, (0.3,), (0.4,)).eval()
    size = network.patch_embed.img_size[0]
    assert model.input_shape == (1, size, size)
    pixels = torch.rand(1, 1, size, size)
    assert torch.equal(model(pixels), network((pixels - 0.3) / 0.4))
    assert torch.equal(model.head(model.features(pixels)), model(pixels))
    assert model.features(pixels).shape == (1, 32)


@pytest.mark.parametrize(
    ("name", "entry_point"),
    [
        ("vit_b16.cifar10_linf.at_base", "robustzoo_vit_base_k4s2"),
        ("vit_l16.cifar100_linf.trades_trh", "robustzoo_vit_large_k4s2"),
        ("hybrid_l16.imagenet_l2.at_base", "robustzoo_vit_large_r50_s16"),
        ("hybrid_l16.cifar10_linf.trades_trh", "robustzoo_vit_large_r50_s4"),
    ],
)
def test_a_folder_of_it_is_read_by_us_and_by_timm(name, entry_point, tmp_path, monkeypatch):
    """The paper's recipes, on transformers made small behind the entry points."""
    for width in ("_BASE", "_LARGE"):
        monkeypatch.setattr(networks, width, {"embed_dim": 32, "depth": 2, "num_heads": 2})
    plan = recipe(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = pixel_model(plan).eval()
        torch.nn.init.normal_(model.head.weight)
    assert model.network.pretrained_cfg["architecture"] == entry_point
    write_folder(tmp_path / "model", model, plan)
    pixels = torch.rand(1, *model.input_shape)
    assert torch.equal(read_folder(tmp_path / "model")(pixels), model(pixels))
    by_timm = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    assert torch.equal(by_timm(model.normalise(pixels)), model(pixels))
    first_conv = by_timm.get_submodule(by_timm.pretrained_cfg["first_conv"])
    assert isinstance(first_conv, nn.Conv2d) and first_conv.in_channels == 3


@pytest.mark.parametrize(("name", "grid"), [("vit_b16", 8), ("vit_l16", 8)])
def test_a_patch_stride_of_4_is_a_network_of_patches_side_by_side(name, grid):
    plan = recipe(f"{name}.cifar10_linf.at_base", {"patch_stride": 4})
    network = build_for(plan, device="meta")
    assert network.patch_embed.grid_size == (grid, grid) and network.patch_embed.proj.stride == (4, 4)
    assert network.patch_embed.proj.kernel_size == (4, 4)
    counted = ARCHITECTURES[name].parameter_count(32, 10, 4)
    assert sum(p.numel() for p in network.parameters()) == counted


def test_a_folder_with_another_patch_stride_comes_back(tmp_path, monkeypatch):
    strides = ARCHITECTURES["vit_b16"].networks[32].strides
    narrow = strides[4].model_args | {"embed_dim": 32, "depth": 2, "num_heads": 2}
    monkeypatch.setitem(strides, 4, dataclasses.replace(strides[4], model_args=narrow))
    plan = recipe(
        "vit_b16.cifar10_linf.at_base",
        {"patch_stride": 4, "init": "random"} | {"kernel_downsampling": "none"},
    )
    model = pixel_model(plan).eval()
    torch.nn.init.normal_(model.head.weight)
    write_folder(tmp_path / "model", model, plan)
    pixels = torch.rand(1, 3, 32, 32)
    again = read_folder(tmp_path / "model")
    assert torch.equal(again(pixels), model(pixels)) and again.recipe.patch_stride == 4
    by_timm = timm.create_model(f"local-dir:{tmp_path / 'model'}", pretrained=True).eval()
    assert torch.equal(by_timm(model.normalise(pixels)), model(pixels))
