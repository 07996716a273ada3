"""The images of a run: what they make of the recipe, and what a resumed run knows them by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from robustzoo.data import DataError
from training.arguments import parse
from training.data import open_training_data

NAME = "vit_ti4.cifar10jpg_linf.at_trh"
MIXED = ["--set", "extra_data=ddpm", "--set", "extra_fraction=0.5", "--batch-size", "8"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of 100 images, ten a class."""
    root = tmp_path_factory.mktemp("images")
    for label in range(10):
        (root / f"train/{label}").mkdir(parents=True)
        for number in range(10):
            color = (25 * label, 25 * number, 0)
            Image.new("RGB", (32, 32), color).save(root / f"train/{label}/{number}.png")
    return root


def generated(folder, count: int, first_label: int = 0):
    """A file of so many generated images."""
    labels = (np.arange(count) + first_label) % 10
    file = folder / f"generated_{count}_{first_label}.npz"
    np.savez(file, image=np.full((count, 32, 32, 3), 7, np.uint8), label=labels)
    return file


def job(root, file, *flags: str):
    return parse([NAME, "--data", str(root), "--extra-data", str(file), *MIXED, *flags])


def test_another_number_of_generated_images_is_another_recipe(root, tmp_path):
    asked = job(root, generated(tmp_path, 64))
    made = asked.recipe()
    data = open_training_data(made, asked)
    assert (made.extra_data, data.recipe.extra_data, data.generated) == ("ddpm", "ddpm:64", 64)
    assert data.recipe.name not in (made.name, NAME) and data.recipe.base_name == NAME
    assert data.recipe.sources["extra_data"].startswith("what the training really did (was ddpm")
    more = job(root, generated(tmp_path, 80))
    assert open_training_data(more.recipe(), more).recipe.name != data.recipe.name


def test_a_recipe_of_so_many_generated_images_wants_them(root, tmp_path):
    asked = job(root, generated(tmp_path, 64))
    stated = replace(asked, overrides=asked.overrides | {"extra_data": "ddpm:64"})
    assert open_training_data(stated.recipe(), stated).recipe.extra_data == "ddpm:64"
    other = replace(stated, extra_data=generated(tmp_path, 80))
    with pytest.raises(DataError, match=r"with 64 generated images, but .* has 80: give the file"):
        open_training_data(other.recipe(), other)
