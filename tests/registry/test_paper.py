"""The paper's tables in the package, and that recipes and catalog say what they say."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from robustzoo.registry import ThreatModel, UnknownName, all_names, recipe
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, THREATS
from robustzoo.registry.fields import read_value
from robustzoo.registry.names import parse
from robustzoo.registry.paper import TABLES, cells, hyperparameters, published_cell, read_table, tallies

IN_TABLES = [
    name
    for name in all_names()
    if re.search(r"(vit_[bl]16|hybrid_l16)\.(cifar10|cifar100|imagenet)_.*\.(at|trades)_[a-z0-9]+$", name)
]


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


def test_every_published_value_is_in_force():
    for name in IN_TABLES:
        made, parsed = recipe(name), parse(name)
        values = {row.field: row for row in hyperparameters() if row.applies_to(parsed)}
        assert len(values) >= (1 if name.startswith("hybrid_l16.imagenet") else 8)  # table 4 is of the ViTs
        if parsed.modifiers == ("trh",):
            assert made.l2_reg == 0, "gamma replaces l2_reg"
            values.pop("l2_reg", None)
        for field, row in values.items():
            assert getattr(made, field) == read_value(field, row.value), (name, field)
            assert made.sources[field] == row.source


def test_names_in_the_tables_are_the_cells():
    assert len(IN_TABLES) == 120
    assert set(IN_TABLES) == {name for name in all_names() if published_cell(name) is not None}
    assert {cell.name for cell in cells()} == set(IN_TABLES)


def test_cells_are_of_the_recipe_and_its_threat_model():
    for cell in cells():
        made = recipe(cell.name)
        assert made.threat_model == ThreatModel.parse(f"{cell.norm}:{cell.eps}")
        assert (made.architecture, made.dataset, made.loss) == (cell.architecture, cell.dataset, cell.loss)
        assert made.defences == (() if cell.defence == "base" else (cell.defence,))
        assert published_cell(cell.name) == (cell.clean_percent, cell.aa_percent)


def test_tallies_of_the_main_table_are_as_the_text_counts_them():
    """Section 4.2: TrH has 3 top and 5 silver, AWP 3 and 3, S2O 1 and 4, SWA 0 and 3, base 1 and 3."""
    main = [cell for cell in cells() if cell.table == "main" and cell.dataset != "imagenet"]
    assert len(main) == 40
    assert tallies(main) == {"trh": (3, 5), "awp": (3, 3), "s2o": (1, 4), "swa": (0, 3), "base": (1, 3)}
    assert {round(cell.standard_error, 1) for cell in cells()} == {0.5, 0.2}


def test_a_value_that_the_paper_lacks_is_that_of_a_named_cell_that_has_it():
    for name, like, field in (
        ("vit_b16.cifar100_linf.at_trh", "vit_l16.cifar100_linf.at_trh", "trh_lambda"),
        ("hybrid_l16.imagenet_l2.trades_awp", "vit_l16.imagenet_l2.trades_awp", "awp_delta"),
        ("hybrid_l16.imagenet_linf.trades_trh", "vit_l16.imagenet_linf.trades_trh", "trh_schedule"),
        ("vit_l16.imagenet_linf.at_trh_awp", "vit_l16.imagenet_linf.at_awp", "awp_delta"),
        ("vit_b16.imagenet_l2.alp_trh", "vit_b16.imagenet_l2.at_trh", "trh_lambda"),
        ("vit_b16.imagenet_l2.mart_trh", "vit_b16.imagenet_l2.trades_trh", "trh_lambda"),
        ("vit_ti4.cifar10jpg_linf.trades_trh", "vit_l16.cifar10_linf.trades_trh", "trh_lambda"),
        ("vit_micro2.digits_linf.alp_s2o", "vit_l16.cifar10_linf.at_s2o", "s2o_weight"),
        ("vit_l16.imagenet_linf.trades1_trh", "vit_l16.imagenet_linf.trades_trh", "trh_lambda"),
        ("vit_b16.imagenet_l2.trades3_awp", "vit_b16.imagenet_l2.trades_awp", "awp_delta"),
        ("vit_l16.cifar10_linf.trades3_awp", "vit_l16.cifar10_linf.trades_awp", "awp_delta"),
        ("hybrid_l16.cifar10_linf.at_base", "vit_l16.cifar10_linf.at_base", "kernel_downsampling"),
        ("hybrid_l16.imagenet_l2.at_base", "vit_l16.imagenet_l2.at_base", "base_lr"),
    ):
        made, source = recipe(name), recipe(like)
        assert getattr(made, field) == getattr(source, field), name
        assert made.sources[field] == f"ours: as {like} ({source.sources[field]})"


@pytest.mark.parametrize(
    ("name", "field", "source"),
    [
        ("vit_l16.cifar10_linf.at_base", "mean", "appendix C (table 3: centered)"),
        ("vit_l16.cifar100_linf.at_base", "std", "appendix C (table 3: centered)"),
        ("vit_l16.cifar10_linf.at_base", "threat_model", "table 1 (section 4.1 prints 0.031)"),
        ("vit_l16.imagenet_linf.at_base", "threat_model", "table 1 (section 4.1 prints 0.0157)"),
        (
            "vit_l16.cifar10_linf.alp_base",
            "loss_weight",
            "the ALP release has 0.5 in its commands, on logits",
        ),
        ("vit_l16.cifar10_linf.mart_base", "loss_weight", "the MART release has 6 for WideResNet, 5 for"),
        ("vit_l16.cifar10_linf.mart_s2o", "s2o_weight", "the S2O release (its MART)"),
        ("vit_micro2.digits_linf.at_base", "training_images", "less the images held out"),
        ("vit_b16.imagenet_linf.at_base", "init", "in no public record that we found"),
        ("hybrid_l16.imagenet_linf.at_base", "init", "section 4.1"),
    ],
)
def test_sources_say_where_a_value_is_printed(name, field, source):
    assert source in recipe(name).sources[field]


@pytest.mark.parametrize(
    ("dataset", "diagonal"),
    [("vit_l16.cifar10", 0.2), ("vit_l16.cifar100", 0.02), ("vit_l16.imagenet", 0.002)],
)
def test_s2o_constants(dataset, diagonal):
    at, trades = recipe(f"{dataset}_linf.at_s2o"), recipe(f"{dataset}_linf.trades_s2o")
    assert (at.s2o_weight, trades.s2o_weight) == (0.1, 0.3)
    assert at.s2o_diagonal == trades.s2o_diagonal == diagonal


def test_only_the_papers_networks_take_its_values_of_a_dataset():
    small, large = recipe("vit_ti4.cifar10_linf.at_base"), recipe("vit_l16.cifar10_linf.at_base")
    assert (large.optimizer, large.base_lr, large.extra_data, large.extra_fraction) == (
        "sgd",
        0.1,
        "ddpm",
        0.7,
    )
    assert (small.optimizer, small.extra_data, small.extra_fraction) == ("adam", "none", 0)
    assert (large.kernel_downsampling, small.kernel_downsampling) == ("cubic", None)


def test_the_catalog_agrees_with_the_shared_tables():
    values = {
        (row["dataset"], row["parameter"]): row["value"] for row in read_table("shared_hyperparameters")
    }
    assert values["imagenet", "img_size"] == "224x224"
    assert values["imagenet", "patch_size"] == "16x16"
    assert values["cifar10;cifar100", "img_size"] == "32x32"
    assert (
        values["cifar10;cifar100", "patch_size"] == "4x4"
        and values["cifar10;cifar100", "patch_stride"] == "2"
    )
    for key in ("vit_b16", "vit_l16"):
        assert ARCHITECTURES[key].networks[32].timm_name.endswith("_k4s2")
        assert ARCHITECTURES[key].networks[224].model_args == {"img_size": 224, "patch_size": 16}
    assert values["imagenet", "data_range"] == "[-1,1]"
    low, high = ((pixel - DATASETS["imagenet"].mean[0]) / DATASETS["imagenet"].std[0] for pixel in (0, 1))
    assert (low, high) == (-1, 1)
    centred = values["cifar10;cifar100", "data_range"]
    assert f"mean {DATASETS['cifar10'].mean[0]}, std {DATASETS['cifar10'].std[0]}" in centred
    assert values["imagenet", "epsilon_linf"].split()[0] == THREATS["imagenet", "linf"].epsilon_text
    assert float(values["imagenet", "epsilon_l2"]) == THREATS["imagenet", "l2"].eps
    assert values["cifar10;cifar100", "epsilon_linf"].split()[0] == THREATS["cifar10", "linf"].epsilon_text


def test_the_cost_table_is_the_papers_and_that_of_the_benchmarks(shared):
    """docs/paper.md: the paper's numbers, ours, and what they come to over AT base."""
    docs = Path(__file__).resolve().parents[2] / "docs"

    def rows(page: str, heading: str) -> dict[str, list[str]]:
        text = (docs / page).read_text(encoding="utf-8").partition(heading)[2]
        cells = [re.split(r" *\| *", line)[1:-1] for line in text.splitlines() if line.startswith("| ")]
        return {row[0].lower(): row[1:] for row in cells}

    shown, ours = rows("paper.md", "## Its cost table"), rows("benchmarks.md", "## Training")
    with (shared / "paper" / "efficiency.csv").open(encoding="utf-8", newline="") as file:
        paper = {row["defence"]: row for row in csv.DictReader(file)}
    assert len(paper) == 5
    base = paper["base"]
    for defence, row in paper.items():
        memory, speed = int(row["memory_mb_per_chip"]), float(row["images_per_second_per_chip"])
        measured, cost = ours[f"at_{defence}"], recipe(f"vit_ti4.cifar10_linf.at_{defence}").cost()
        of_base = recipe("vit_ti4.cifar10_linf.at_base").cost()["forward_equivalents"]
        assert shown[defence] == [
            str(memory),
            str(speed),
            f"{float(base['images_per_second_per_chip']) / speed:.2f}",
            f"{float(measured[2]):.2f}",
            f"{cost['forward_equivalents'] / of_base:.2f}",
            f"{memory / int(base['memory_mb_per_chip']):.2f}",
            f"{float(measured[4]):.2f}",
        ]
