"""The catalog's tables: every row recomputed where it can be."""

from __future__ import annotations

import json

import pytest

from robustzoo.registry.catalog import (
    ARCHITECTURES,
    DATASETS,
    DEFENCES,
    LOSSES,
    OWN_DATA_MARK,
    THREAT_SOURCES,
    THREATS,
    is_catalog_key,
)
from robustzoo.registry.names import NORMS, all_names, parse

SHAPES = {
    "vit_micro2": (64, 4),
    "vit_ti4": (192, 12),
    "vit_mini4": (128, 6),
    "vit_mini4c": (128, 6),
    "vit_b16": (768, 12),
    "vit_l16": (1024, 24),
    "hybrid_l16": (1024, 24),
}  # width, depth


@pytest.mark.parametrize("table", [ARCHITECTURES, DATASETS, LOSSES, DEFENCES])
def test_rows_are_under_their_own_key_and_titled(table):
    assert table
    for key, row in table.items():
        assert row.key == key
        assert row.title


def test_no_key_of_a_dataset_can_be_the_id_of_other_data():
    assert all(is_catalog_key(key) and OWN_DATA_MARK not in key for key in DATASETS)
    assert not any(map(is_catalog_key, ("folder:digits", "dataset:cifar10", "tensors", "Digits", "")))


@pytest.mark.parametrize("key", ARCHITECTURES)
def test_networks_are_json_and_leave_the_dataset_out(key):
    architecture = ARCHITECTURES[key]
    for size, network in architecture.networks.items():
        assert json.loads(json.dumps(network.model_args)) == network.model_args
        assert network.model_args.get("img_size", size) == size  # convolutions take any
        assert not {"in_chans", "num_classes"} & set(network.model_args)
    for dataset in architecture.datasets:
        assert DATASETS[dataset].image_size in architecture.networks


@pytest.mark.parametrize("key", SHAPES)
def test_parameter_counts_by_arithmetic(key):
    """Count of a plain ViT: embeddings, blocks of 12 d^2 + 13 d, final norm and head."""
    width, depth = SHAPES[key]
    architecture = ARCHITECTURES[key]
    for name in architecture.datasets:
        dataset = DATASETS[name]
        network = architecture.networks[dataset.image_size]
        if key == "hybrid_l16":
            side = dataset.image_size // (4 if network.downsampled else 16)
            patches = (1024 + 1) * width + resnet_parameters(3 if network.downsampled else 7)
        elif key == "vit_mini4c":
            side = dataset.image_size // 4
            patches = (9 * dataset.channels + 1) * 64 + (9 * 64 + 1) * width + (width + 1) * width
        else:
            patch = network.model_args.get("patch_size", 4)
            stride = patch // 2 if network.downsampled else patch
            side = (dataset.image_size - patch) // stride + 1
            patches = (dataset.channels * patch**2 + 1) * width
        embedding = patches + (side**2 + 2) * width
        block = 12 * width**2 + 13 * width
        head = (width + 1) * dataset.num_classes
        total = embedding + depth * block + 2 * width + head
        assert total == architecture.parameter_count(dataset.image_size, dataset.num_classes)
        for stride in network.strides:  # only the number of tokens differs
            tokens = ((dataset.image_size - patch) // stride + 1) ** 2
            other = architecture.parameter_count(dataset.image_size, dataset.num_classes, stride)
            assert total - other == (side**2 - tokens) * width > 0


def resnet_parameters(stem_kernel: int) -> int:
    """A ResNetV2-50 of three stages: convolutions without bias, two parameters a channel of each norm."""
    total, inside = 3 * stem_kernel**2 * 64 + 2 * 64, 64
    for blocks, outside in ((3, 256), (4, 512), (9, 1024)):
        middle = outside // 4
        for block in range(blocks):
            total += inside * middle + 9 * middle**2 + middle * outside + 2 * (2 * middle + outside)
            if block == 0:
                total += inside * outside + 2 * outside  # the projected shortcut
            inside = outside
    return total


@pytest.mark.parametrize("key", ["resnet_mini"])
def test_parameter_counts_of_residual_networks_by_arithmetic(key):
    """Of every convolution the weight, a bias and a gain a channel; of every block the gain of its skip."""
    architecture = ARCHITECTURES[key]
    for name in architecture.datasets:
        dataset = DATASETS[name]
        arguments = architecture.networks[dataset.image_size].model_args
        inside = arguments["widths"][0]
        total = (16 * dataset.channels + 2) * inside
        for stage, (width, depth) in enumerate(zip(arguments["widths"], arguments["depths"], strict=True)):
            for block in range(depth):
                total += (9 * inside + 2) * width + (9 * width + 2) * width + 1
                total += (inside + 2) * width if stage > 0 and block == 0 else 0
                inside = width
        total += (inside + 1) * dataset.num_classes
        assert total == architecture.parameter_count(dataset.image_size, dataset.num_classes)


def test_parameter_counts_of_batch_norm_networks_as_published():
    """11.17 and 36.48 million with ten classes are what papers on CIFAR-10 state of the two."""
    assert ARCHITECTURES["resnet18"].parameter_count(32, 10) == 11_173_962
    assert ARCHITECTURES["wrn28_10"].parameter_count(32, 10) == 36_479_194


@pytest.mark.parametrize(("key", "millions"), [("vit_b16", 86), ("vit_l16", 304), ("hybrid_l16", 320)])
def test_published_sizes(key, millions):
    assert ARCHITECTURES[key].parameter_count(224, 1_000) / 1e6 == pytest.approx(millions, rel=0.015)


@pytest.mark.parametrize("key", DATASETS)
def test_datasets_can_normalise_their_images(key):
    dataset = DATASETS[key]
    for scalars in (dataset.mean, dataset.std):
        assert len(scalars) in (1, dataset.channels)
    assert all(std > 0 for std in dataset.std)
    assert dataset.normalisation_source and dataset.licence and dataset.source


def test_threats_have_their_own_norm():
    assert THREAT_SOURCES.keys() == THREATS.keys()
    for (dataset, norm), threat_model in THREATS.items():
        assert dataset in DATASETS
        assert norm in NORMS
        assert threat_model.norm == norm


def test_every_row_has_a_name():
    names = [parse(name) for name in all_names()]
    assert {n.architecture for n in names} == set(ARCHITECTURES)
    assert {n.loss for n in names} == set(LOSSES)
    assert {m for n in names for m in n.modifiers} == set(DEFENCES)
