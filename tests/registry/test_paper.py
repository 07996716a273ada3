"""The paper's tables in the package, and that recipes and catalog say what they say."""

from __future__ import annotations

import pytest

from robustzoo.registry import UnknownName, all_names, recipe
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, THREATS
from robustzoo.registry.fields import read_value
from robustzoo.registry.names import parse
from robustzoo.registry.paper import TABLES, hyperparameters, published_cell, read_table

IMAGENET = [name for name in all_names() if ".imagenet_" in name]


def test_the_tables_are_the_published_ones(shared):
    for name in ("method_hyperparameters", "shared_hyperparameters", "results", "results_extra"):
        ours, theirs = TABLES / f"{name}.csv", shared / "paper" / f"{name}.csv"
        assert ours.read_text(encoding="utf-8") == theirs.read_text(encoding="utf-8")


def test_all_120_cells_are_there_once():
    rows = read_table("results")
    assert len(rows) == 120
    assert len({tuple(list(row.values())[:6]) for row in rows}) == 120


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("vit_l16.imagenet_linf.at_trh", (75.8, 48.8)),
        ("vit_b16.imagenet_l2.trades_base", (67.8, 39.7)),
        ("vit_l16.cifar10_linf.at_swa", (88.0, 61.7)),
        ("vit_l16.imagenet_linf.trades1_trh", (78.7, 46.7)),
        ("vit_l16.imagenet_l2.trades1_trh", (77.1, 45.2)),
        ("vit_l16.imagenet_linf.trades2_trh", None),
        ("vit_l16.imagenet_linf.at_trh_swa", None),
        ("vit_micro2.digits_linf.at_base", None),
    ],
)
def test_published_cells(name, cell):
    assert published_cell(name) == cell


def test_no_cell_for_no_name():
    with pytest.raises(UnknownName):
        published_cell("vit_l16.imagenet_linf.at")


@pytest.mark.parametrize("name", IMAGENET)
def test_every_published_value_is_in_force(name):
    made, parsed = recipe(name), parse(name)
    values = {row.field: row for row in hyperparameters() if row.applies_to(parsed)}
    assert len(values) >= 8
    if parsed.modifiers == ("trh",):
        assert {"trh_lambda", "trh_schedule", "trh_gamma"} <= set(values)
        assert made.l2_reg == 0, "gamma replaces l2_reg"
        del values["l2_reg"]
    for field, row in values.items():
        assert getattr(made, field) == read_value(field, row.value), field
        assert made.sources[field] == row.source


@pytest.mark.parametrize("name", IMAGENET)
def test_imagenet_results_exist_for_the_recipe_and_its_threat_model(name):
    assert published_cell(name) is not None
    parsed = parse(name)
    rows = [r for r in read_table("results") if (r["dataset"], r["norm"]) == ("imagenet", parsed.norm)]
    assert {f"{parsed.norm}:{row['eps']}" for row in rows} <= {"linf:4/255", "l2:3.0"}
    assert recipe(name).threat_model == THREATS["imagenet", parsed.norm]


def test_the_catalog_agrees_with_the_shared_tables():
    values = {
        (row["dataset"], row["parameter"]): row["value"] for row in read_table("shared_hyperparameters")
    }
    assert values["imagenet", "img_size"] == "224x224"
    assert values["imagenet", "patch_size"] == "16x16"
    for key in ("vit_b16", "vit_l16"):
        assert ARCHITECTURES[key].networks[224].model_args == {"img_size": 224, "patch_size": 16}
    assert values["imagenet", "data_range"] == "[-1,1]"
    low, high = ((pixel - DATASETS["imagenet"].mean[0]) / DATASETS["imagenet"].std[0] for pixel in (0, 1))
    assert (low, high) == (-1, 1)
    centred = values["cifar10;cifar100", "data_range"]
    assert f"mean {DATASETS['cifar10'].mean[0]}, std {DATASETS['cifar10'].std[0]}" in centred
    assert values["imagenet", "epsilon_linf"].split()[0] == THREATS["imagenet", "linf"].epsilon_text
    assert float(values["imagenet", "epsilon_l2"]) == THREATS["imagenet", "l2"].eps
    assert values["cifar10;cifar100", "epsilon_linf"].split()[0] == THREATS["cifar10", "linf"].epsilon_text
