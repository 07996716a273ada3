"""Every network of the catalog is the one that its row describes."""

from __future__ import annotations

import pytest
import torch

from robustzoo.models import ArchitectureError, build_network
from robustzoo.models.architectures import timm_arguments
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS

ROWS = [(key, size) for key, row in ARCHITECTURES.items() for size in row.networks]


def dataset_of(key: str, size: int):
    return next(DATASETS[name] for name in ARCHITECTURES[key].datasets if DATASETS[name].image_size == size)


def test_the_catalog_is_not_empty():
    assert {"vit_micro2", "vit_b16", "vit_l16"} <= {key for key, _ in ROWS}


@pytest.mark.parametrize(("key", "size"), ROWS)
def test_parameters_are_those_of_the_catalog(key, size):
    data = dataset_of(key, size)
    network = build_network(key, size, data.channels, data.num_classes, device="meta")
    assert sum(p.numel() for p in network.parameters()) == ARCHITECTURES[key].parameter_count(
        size, data.num_classes
    )
    assert all(p.is_meta for p in network.parameters())  # nothing was allocated


@pytest.mark.parametrize(("key", "millions"), [("vit_b16", 86.6), ("vit_l16", 304.3)])
def test_published_sizes(key, millions):
    """Table 6 of Dosovitskiy et al. 2021 gives 86M and 307M with a 21k head; these have 1,000 classes."""
    assert ARCHITECTURES[key].parameter_count(224, 1_000) / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(("key", "size"), ROWS)
def test_logits_have_one_value_per_class(key, size):
    data = dataset_of(key, size)
    network = build_network(key, size, data.channels, data.num_classes, device="meta")
    x = torch.empty(2, data.channels, size, size, device="meta")
    assert network(x).shape == (2, data.num_classes)


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
        (("vit_l16", 96, 3, 10), "no network for image size 96"),
        (("vit_micro2", 8, 0, 10), "channels is 0"),
        (("vit_micro2", 8, 1, 1), "num_classes is 1"),
        (("vit_micro2", 8, 1, "10"), "num_classes is '10'"),
    ],
)
def test_refusals(arguments, words):
    with pytest.raises(ArchitectureError, match=words):
        build_network(*arguments)
