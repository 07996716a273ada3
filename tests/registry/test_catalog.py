"""The catalog's tables: every row recomputed where it can be."""

from __future__ import annotations

import json

import pytest

from robustzoo.registry.catalog import (
    ARCHITECTURES,
    DATASETS,
    DEFENCES,
    LOSSES,
    THREAT_SOURCES,
    THREATS,
    all_names,
)
from robustzoo.registry.names import NORMS, parse


@pytest.mark.parametrize("table", [ARCHITECTURES, DATASETS, LOSSES, DEFENCES])
def test_rows_are_under_their_own_key_and_titled(table):
    assert table
    for key, row in table.items():
        assert row.key == key
        assert row.title


@pytest.mark.parametrize("key", ARCHITECTURES)
def test_networks_are_json_and_leave_the_dataset_out(key):
    architecture = ARCHITECTURES[key]
    assert set(architecture.networks) == set(architecture.parameters)
    for size, network in architecture.networks.items():
        assert json.loads(json.dumps(network.model_args)) == network.model_args
        assert network.model_args["img_size"] == size
        assert not {"in_chans", "num_classes"} & set(network.model_args)
    for dataset in architecture.datasets:
        assert DATASETS[dataset].image_size in architecture.networks


@pytest.mark.parametrize("key", ARCHITECTURES)
def test_parameter_counts_by_arithmetic(key):
    """Count of a plain ViT: embeddings, blocks of 12 d^2 + 13 d, final norm and head."""
    shape = {"vit_micro2": (64, 4), "vit_ti4": (192, 12), "vit_b16": (768, 12), "vit_l16": (1024, 24)}
    width, depth = shape[key]
    architecture = ARCHITECTURES[key]
    for name in architecture.datasets:
        dataset = DATASETS[name]
        patch = architecture.networks[dataset.image_size].model_args["patch_size"]
        tokens = (dataset.image_size // patch) ** 2 + 1
        embedding = (dataset.channels * patch**2 + 1) * width + (tokens + 1) * width
        block = 12 * width**2 + 13 * width
        head = (width + 1) * dataset.num_classes
        total = embedding + depth * block + 2 * width + head
        assert total == architecture.parameters[dataset.image_size]


@pytest.mark.parametrize("key", DATASETS)
def test_datasets_can_normalise_their_images(key):
    dataset = DATASETS[key]
    for scalars in (dataset.mean, dataset.std):
        assert len(scalars) in (1, dataset.channels)
    assert all(std > 0 for std in dataset.std)
    assert dataset.normalisation_source and dataset.licence and dataset.source
    assert key in THREAT_SOURCES


def test_threats_have_their_own_norm():
    for (dataset, norm), threat_model in THREATS.items():
        assert dataset in DATASETS
        assert norm in NORMS
        assert threat_model.norm == norm


def test_every_available_row_has_a_name():
    names = [parse(name) for name in all_names()]
    assert {n.architecture for n in names} == set(ARCHITECTURES)
    assert {n.loss for n in names} == {key for key, loss in LOSSES.items() if loss.available}
    assert {m for n in names for m in n.modifiers} == {k for k, d in DEFENCES.items() if d.available}
