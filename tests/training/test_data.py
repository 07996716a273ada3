"""The images of a run: what they make of the recipe, and what a resumed run knows them by."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
from PIL import Image

from robustzoo.data import DataError, load_dataset
from robustzoo.data.readers.digits import Digits
from robustzoo.training.data import digest, open_training_data
from robustzoo.training.plan import make_plan
from tests.training.small import AT_TRH, small

NAME = "vit_ti4.cifar10jpg_linf.at_trh"
MIXED = ["--set", "extra_fraction=0.5", "--batch-size", "8"]


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


def planned(root, file, extra_data: str = "ddpm"):
    data = ["--data", str(root), "--extra-data", str(file), "--set", f"extra_data={extra_data}"]
    return make_plan([NAME, *data, *MIXED])


def test_another_number_of_generated_images_is_another_recipe(root, tmp_path):
    plan = planned(root, generated(tmp_path, 64))
    made = plan.recipe
    data = open_training_data(plan)
    assert (made.extra_data, data.recipe.extra_data, len(data.generated)) == ("ddpm", "ddpm:64", 64)
    assert data.recipe.name not in (made.name, NAME) and data.recipe.base_name == NAME
    assert data.recipe.sources["extra_data"].startswith("what the training really did (was ddpm")
    more = planned(root, generated(tmp_path, 80))
    assert open_training_data(more).recipe.name != data.recipe.name


def test_a_recipe_of_so_many_generated_images_wants_them(root, tmp_path):
    data = open_training_data(planned(root, generated(tmp_path, 64), "ddpm:64"))
    assert data.recipe.extra_data == "ddpm:64"
    with pytest.raises(DataError, match=r"with 64 generated images, but .* has 80: give the file"):
        open_training_data(planned(root, generated(tmp_path, 80), "ddpm:64"))


def test_an_epoch_of_a_recipe_counts_the_images_held_out():
    plan = make_plan([AT_TRH, "--set", "epochs=1000", "--batch-size", "1147"])
    data = open_training_data(plan)
    assert (len(data.images), len(data.holdout)) == (1_147, 150)
    made = plan.recipe
    assert made.total_steps == math.ceil(
        1000 * 1_297 / 1_147
    )  # a step here is a pass over what is trained on
    assert made.cost()["epochs"] == pytest.approx(1000, rel=1e-3)


def test_data_of_the_same_number_are_told_apart(root, tmp_path):
    def identity(folder, file):
        plan = planned(folder, file)
        return open_training_data(plan).identity()

    known = identity(root, generated(tmp_path, 64))
    assert known == identity(root, generated(tmp_path, 64))
    assert (known["training_images"], known["generated_images"]) == (90 + 64, 64)
    other_labels = identity(root, generated(tmp_path, 64, first_label=1))
    assert other_labels != known and other_labels["training_data_digest"] == known["training_data_digest"]
    other = shutil.copytree(root, tmp_path / "other")
    for path in other.rglob("*.png"):
        Image.new("RGB", (32, 32), (1, 2, 3)).save(path)
    other_pixels = identity(other, generated(tmp_path, 64))
    assert other_pixels | {"training_data_digest": known["training_data_digest"]} == known != other_pixels


def test_a_digest_covers_every_label():
    images = load_dataset("digits", split="train")
    known = digest(images)
    assert known == digest(load_dataset("digits", split="train"))
    for i in (0, len(images) - 1):
        images.labels = images.labels.copy()
        images.labels[i] = (images.labels[i] + 1) % 10
        assert digest(images) != known
        images.labels[i] = (images.labels[i] - 1) % 10


def test_a_run_resumed_with_other_data_is_refused(train, tmp_path, capsys, monkeypatch):
    run = [AT_TRH, *small(), "--max-steps", "1", "--out", str(tmp_path / "run")]
    assert train(run) == 0
    image = Digits._image
    monkeypatch.setattr(Digits, "_image", lambda self, i: 1 - image(self, i))
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    (tmp_path / "run/model/model.safetensors").unlink()
    assert train([*run, "--resume"]) == 2
    assert "cannot resume" in (said := capsys.readouterr().err) and "training_data_digest was '" in said
    after = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    assert [path for path, _ in before if path.name != "model.safetensors"] == [path for path, _ in after]
