"""Every network of the catalog is the one that its row describes."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from robustzoo.errors import RobustzooError
from robustzoo.models import build_network
from robustzoo.models.architectures import timm_arguments
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS

ROWS = [(key, size) for key, row in ARCHITECTURES.items() for size in row.networks]


def dataset_of(key: str, size: int):
    return next(DATASETS[name] for name in ARCHITECTURES[key].datasets if DATASETS[name].image_size == size)


def test_the_catalog_is_not_empty():
    assert {"vit_micro2", "vit_b16", "vit_l16", "hybrid_l16"} <= {key for key, _ in ROWS}


@cache
def built(key: str, size: int):
    """The network on the meta device, for the first of its datasets of this image size."""
    data = dataset_of(key, size)
    return build_network(key, size, data.channels, data.num_classes, device="meta")


@pytest.mark.parametrize(("key", "size"), ROWS)
def test_parameters_are_those_of_the_catalog_and_logits_one_per_class(key, size):
    data, network = dataset_of(key, size), built(key, size)
    count = ARCHITECTURES[key].parameter_count(size, data.num_classes)
    assert sum(p.numel() for p in network.parameters()) == count
    assert all(p.is_meta for p in network.parameters())  # nothing was allocated
    x = torch.empty(2, data.channels, size, size, device="meta")
    assert network(x).shape == (2, data.num_classes)


@pytest.mark.parametrize(
    ("key", "size", "millions"),
    [
        ("vit_b16", 224, 86.6),
        ("vit_b16", 32, 85.3),
        ("vit_l16", 224, 304.3),
        ("vit_l16", 32, 302.6),
        ("hybrid_l16", 224, 316.5),
        ("hybrid_l16", 32, 315.3),
    ],
)
def test_sizes_of_the_papers_networks(key, size, millions):
    """Table 6 of Dosovitskiy et al. 2021 gives ViT-B 86M and ViT-L 307M with a larger head."""
    network = built(key, size)
    assert sum(p.numel() for p in network.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize("key", ["vit_b16", "vit_l16"])
def test_transformers_on_32_pixels_have_overlapping_patches_of_four(key):
    network = built(key, 32)
    convolution = network.patch_embed.proj
    assert (convolution.kernel_size, convolution.stride, convolution.padding) == ((4, 4), (2, 2), (0, 0))
    assert network.pos_embed.shape[1] == 15 * 15 + 1


@pytest.mark.parametrize(("size", "tokens"), [(224, 14 * 14 + 1), (32, 8 * 8 + 1)])
def test_the_hybrid_has_a_stem_of_three_stages(size, tokens):
    network = built("hybrid_l16", size)
    assert [len(stage.blocks) for stage in network.patch_embed.backbone.stages] == [3, 4, 9]
    assert network.patch_embed.proj.weight.shape == (1024, 1024, 1, 1)
    assert network.pos_embed.shape[1] == tokens and len(network.blocks) == 24


def test_micro_is_eight_by_eight_in_patches_of_two():
    network = build_network("vit_micro2", 8, 1, 10)
    assert network.patch_embed.num_patches == 16 and len(network.blocks) == 4
    assert network.get_classifier().in_features == 64 and network.blocks[0].attn.num_heads == 4


def test_arguments_spell_out_size_patch_and_channels():
    arguments = timm_arguments("vit_l16", 224, 3)
    assert (arguments["img_size"], arguments["patch_size"], arguments["in_chans"]) == (224, 16, 3)


def test_the_global_generator_decides_the_weights():
    torch.manual_seed(5)
    first = build_network("vit_micro2", 8, 1, 10).state_dict()
    torch.manual_seed(5)
    second = build_network("vit_micro2", 8, 1, 10).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("vit_huge", 224, 3, 10), "unknown architecture 'vit_huge'"),
        (("vit_l16", 97, 3, 10), "no network for image size 97"),
        (("vit_micro2", 8, 0, 10), "channels is 0"),
        (("vit_micro2", 8, 1, 1), "num_classes is 1"),
        (("vit_micro2", 8, 1, "10"), "num_classes is '10'"),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(RobustzooError, match=words):
        build_network(*arguments)
