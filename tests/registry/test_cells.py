"""The 120 cells, one by one: each has a whole recipe, sourced and loadable, of its true size."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe, composition, recipe
from robustzoo.registry.catalog import ARCHITECTURES
from robustzoo.registry.fields import FIELDS
from robustzoo.registry.paper import ARCHITECTURES as NETWORKS
from robustzoo.registry.paper import DEFENCES, LOSSES, Cell, cells

THREATS = ("cifar10_linf", "cifar100_linf", "imagenet_linf", "imagenet_l2")
NAMES = [f"{n}.{t}.{loss}_{d}" for n in NETWORKS for t in THREATS for loss in LOSSES for d in DEFENCES]
EXTRA = ["vit_l16.imagenet_linf.trades1_trh", "vit_l16.imagenet_l2.trades1_trh"]


def problems(grid: Iterable[Cell], folder: Path, make: Callable[[str | Path], Recipe] = recipe) -> list[str]:
    """What is wrong with the recipes of a grid that should have every name once."""
    names = [cell.name for cell in grid]
    found = [f"{name} is not in the grid once" for name in NAMES if names.count(name) != 1]
    found += [f"{name} does not belong there" for name in names if name not in NAMES]
    for name in names:
        try:
            made = make(name)
            path = folder / f"{name}.json"
            path.write_text(json.dumps(made.to_json()), encoding="utf-8")
            again = (Recipe.from_json(json.loads(path.read_text(encoding="utf-8"))), recipe(path))
        except (ValueError, KeyError, TypeError) as error:
            found.append(f"{name}: {error!r}")
            continue
        if made.name != name or any(other != made for other in again):
            found.append(f"{name} does not come back from JSON")
        if any(other.sources != made.sources for other in again):
            found.append(f"{name}: its sources do not come back from JSON")
        found += [f"{name}: no source for {key}" for key in FIELDS if not made.sources.get(key, "").strip()]
    return found


def test_all_120_cells_have_a_whole_sourced_recipe(tmp_path):
    assert len(NAMES) == len(set(NAMES)) == 120
    assert problems(cells(), tmp_path) == []


@pytest.mark.parametrize("name", EXTRA)
def test_the_two_results_at_another_weight_are_recipes(name, tmp_path):
    made = recipe(name)
    assert made.loss_weight == 1.0 and made.name == name
    assert Recipe.from_json(json.loads(json.dumps(made.to_json()))) == made
    plain = recipe(name.replace("trades1", "trades"))
    assert dataclasses.replace(made, name=plain.name, base_name=plain.name, loss_weight=6.0) == plain


def test_a_missing_or_doubled_cell_is_noticed(tmp_path):
    assert problems(cells()[1:], tmp_path) == [f"{cells()[0].name} is not in the grid once"]
    assert problems((*cells(), cells()[5]), tmp_path) == [f"{cells()[5].name} is not in the grid once"]


@pytest.mark.parametrize("field", [*FIELDS][::10])
def test_a_value_without_a_source_is_noticed(field, tmp_path, monkeypatch):
    """At the root of all sources: the layers of composition."""

    def without(name):
        values, sources = composition.composed(name)
        return values, {**sources, field: ""}

    monkeypatch.setattr("robustzoo.registry.recipes.composed", without)
    with pytest.raises(RobustzooError, match=f"no source for {field}"):
        recipe(NAMES[0])
    assert len(problems(cells()[:1], tmp_path)) >= 1


@pytest.mark.parametrize("row", ["momentum", "attack_step_ratio", "total_steps"])
def test_a_missing_row_of_our_table_is_noticed(row, tmp_path, monkeypatch):
    monkeypatch.setattr(composition, "_compose", composition._compose.__wrapped__)  # without its cache
    rows = tuple(value for value in composition._ours() if value.field != row)
    monkeypatch.setattr(composition, "_ours", lambda: rows)
    found = problems(cells()[:5], tmp_path)
    assert len([line for line in found if not line.endswith("is not in the grid once")]) == 5


def test_every_cell_is_of_its_true_size():
    """By the catalog's counts, which tests/models/test_architectures.py compares with networks."""
    for name in NAMES + EXTRA:
        made = recipe(name)
        count = ARCHITECTURES[made.architecture].parameter_count(made.image_size, made.num_classes)
        millions = {"vit_b16": 86, "vit_l16": 304, "hybrid_l16": 320}[made.architecture]
        assert count / 1e6 == pytest.approx(millions, rel=0.02), name
