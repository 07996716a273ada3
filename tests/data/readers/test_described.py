"""Images of one's own: dataset.json is written from them, and says how they are read."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from robustzoo.cli import group
from robustzoo.data import DataError, MissingData, load_dataset, open_data
from robustzoo.data.sources import data_place
from robustzoo.errors import RobustzooError
from robustzoo.registry import recipe
from robustzoo.registry.dataset_files import DatasetFile
from robustzoo.registry.names import IncompatibleName, parse
from robustzoo.registry.recipes import Recipe
from tests.data.readers.test_parquet_images import png, write
from tests.own_images import CLASSES, write_flowers

NAME = "resnet_mini.cifar10jpg_linf.at_base"
CODE = """
import torch
from PIL import Image

class Squares(torch.utils.data.Dataset):
    classes = ("dark", "light")
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i):
        if i >= self.n: raise IndexError
        return Image.new("RGB", (8, 8), (200 * (i % 2), 10, 20)), i % 2

def squares(split):
    print("ran", split)
    return Squares({"train": 30, "test": 10}[split])
"""


@pytest.fixture
def flowers(tmp_path):
    folder = write_flowers(tmp_path / "flowers")
    done = CliRunner().invoke(
        group, ["data", "describe", str(folder), "--licence", "CC0", "--source", "drawn"]
    )
    assert done.exit_code == 0, done.output
    assert "own:flowers: 5 classes in this order: daisy, iris" in done.output
    assert "train: 60 images in train; test: 20 images in test" in done.output
    return folder


def test_describe_writes_what_the_images_are(flowers):
    document = json.loads((flowers / "dataset.json").read_text())
    assert document["classes"] == list(CLASSES)
    assert (document["image_size"], document["channels"], document["licence"]) == (16, 3, "CC0")
    assert document["splits"] == {"train": ["train", 60], "test": ["test", 20]}
    images = load_dataset("own:flowers", flowers, "train")
    pixels = torch.stack([images[i][0] for i in range(len(images))])
    assert torch.allclose(torch.tensor(document["mean"]), pixels.mean((0, 2, 3)), atol=1e-4)
    assert torch.allclose(torch.tensor(document["std"]), pixels.std((0, 2, 3)), atol=1e-3)


def test_splits_are_whole_and_apart(flowers):
    parts = {split: load_dataset("own:flowers", flowers, split) for split in ("train", "holdout", "test")}
    assert [len(part) for part in parts.values()] == [54, 6, 20]
    assert all(part.key == "own:flowers" and part.classes == CLASSES for part in parts.values())
    assert not set(parts["train"]._names) & set(parts["holdout"]._names)
    assert open_data(f"flowers:{flowers}").key == open_data(str(flowers)).key == open_data(flowers).key


def described(*arguments):
    return CliRunner().invoke(group, ["data", "describe", *map(str, arguments)])


def test_splits_in_capitals_are_splits(tmp_path):
    folder = write_flowers(tmp_path / "f", train=3, test=1)
    for name, other in (("train", "Train"), ("test", "TEST")):
        (folder / name).rename(folder / other)
    assert "train: 15 images in Train; test: 5 images in TEST" in described(folder).output
    assert load_dataset("own:f", folder, "test").classes == CLASSES
    shutil.rmtree(folder / "Train")
    done = described(folder, "--overwrite")
    assert isinstance(done.exception, RobustzooError) and "none of train" in str(done.exception)


def test_a_class_without_images_in_a_split_is_said(tmp_path):
    folder = write_flowers(tmp_path / "f", train=3, test=1)
    shutil.rmtree(folder / "test" / "iris")
    assert "the split test has no images of 'iris'" in described(folder).output
    (tmp_path / "code").mkdir()
    (tmp_path / "code/data.py").write_text(CODE.replace('"light")', '"light", "grey")'))
    assert "no images at all of 'grey'" in described(f"{tmp_path / 'code/data.py'}:squares").output


def test_a_reserved_name_is_said_with_the_way_out(tmp_path):
    folder = write_flowers(tmp_path / "Own", train=3, test=1)
    for more in ((), ("--name", "folder")):
        done = described(folder, *more)
        assert isinstance(done.exception, RobustzooError) and "--name NAME" in str(done.exception)
    assert described(folder, "--name", "flowers").exit_code == 0


def test_a_stray_folder_is_said_under_the_name_of_the_images(tmp_path):
    folder = write_flowers(tmp_path / "f", train=3, test=1)
    (folder / "test" / "weed").mkdir()
    assert "classes of own:f" in str(described(folder).exception)


def test_one_folder_per_class_alone_is_drawn_from(tmp_path):
    folder = write_flowers(tmp_path / "all", train=10, test=1) / "train"
    assert CliRunner().invoke(group, ["data", "describe", str(folder), "--name", "f"]).exit_code == 0
    parts = [load_dataset("own:f", folder, split) for split in ("train", "holdout", "test")]
    assert [len(part) for part in parts] == [36, 4, 10]
    assert len({name for part in parts for name in part._names}) == 50


def test_parquet_in_the_layout_of_the_hub(tmp_path):
    for split, n in (("train", 30), ("test", 10)):
        write(tmp_path / f"{split}-00000-of-00001.parquet", [*map(png, range(n))], [i % 3 for i in range(n)])
    done = CliRunner().invoke(group, ["data", "describe", str(tmp_path), "--name", "letters"])
    assert done.exit_code == 0, done.output
    images = open_data(f"letters:{tmp_path}", split="train")
    assert (len(images), images.classes, images.image_shape) == (27, ("0", "1", "2"), (3, 32, 32))


def test_a_dataset_of_torch_is_run_only_when_it_is_named(tmp_path):
    file = tmp_path / "my_squares.py"
    file.write_text(CODE)
    run = [sys.executable, "-m", "robustzoo", "data", "describe", f"{file}:squares", "--name", "squares"]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0 and "running" in done.stderr, done.stderr
    with pytest.raises(DataError, match="not been run"):
        open_data(tmp_path)
    assert "my_squares" not in sys.modules
    images = open_data(f"{file}:squares", split="train")
    assert (images.key, images.classes, len(images)) == ("own:squares", ("dark", "light"), 27)
    assert images.labels.tolist() == [images[i][1] for i in range(27)]
    assert np.isclose(images[0][0].amax().item(), max(200 * images[0][1], 20) / 255)


@pytest.mark.parametrize(
    ("change", "keyword"),
    [
        ({"name": "cifar10"}, "none of digits"),
        ({"name": "Flowers"}, "lower-case"),
        ({"classes": ["a"]}, "at least 2"),
        ({"classes": ["a", "a"]}, "each once"),
        ({"image_size": "16"}, "whole number"),
        ({"mean": [0.5]}, "per channel"),
        ({"splits": {"train": ["../..", 60], "test": ["test", 20]}}, "in the folder"),
        ({"splits": {"train": ["train", 60]}}, "train, test"),
        ({"more": 1}, "the keys"),
        ({"schema": "x"}, "schema"),
    ],
)
def test_a_dataset_file_that_says_nonsense_is_refused(flowers, change, keyword):
    file = flowers / "dataset.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(RobustzooError, match=keyword):
        DatasetFile.read(file)


def test_data_that_are_not_as_described(flowers, tmp_path):
    with pytest.raises(MissingData, match="--data DIR"):
        load_dataset("own:flowers")
    with pytest.raises(DataError, match="own:roses is wanted"):
        load_dataset("own:roses", flowers)
    with pytest.raises(DataError, match="is about 'flowers'"):
        data_place(f"roses:{flowers}")
    next((flowers / "train" / "iris").iterdir()).unlink()
    with pytest.raises(DataError, match=r"59 images .*says 60"):
        load_dataset("own:flowers", flowers, "train")
    done = CliRunner().invoke(group, ["data", "describe", str(flowers)])
    assert done.exit_code != 0 and "--overwrite" in str(done.exception)


def test_a_recipe_of_own_images_is_theirs_and_names_no_catalogs(flowers):
    made = recipe(NAME, {"dataset": str(flowers), "threat_model": "linf:4/255"})
    assert made.name.startswith("resnet_mini.own-flowers_linf.at_base+") and made.base_name == NAME
    assert parse(made.name.partition("+")[0]).dataset_id == made.dataset
    assert (made.dataset, made.training_data, made.training_images) == ("own:flowers", "own:flowers", 54)
    assert (made.image_size, made.num_classes, made.classes) == (16, 5, CLASSES)
    assert "CC0" in made.images.source and made.cost()["epochs"] > 0
    assert Recipe.from_json(json.loads(json.dumps(made.to_json()))) == made
    for changes, keyword in (
        ({"num_classes": 7}, "classes"),
        ({"training_data": "cifar10"}, "does not go with|do not go with"),
        ({"classes": "none"}, "named by"),
    ):
        with pytest.raises(RobustzooError, match=keyword):
            recipe(NAME, {"dataset": str(flowers), **changes})
    with pytest.raises(RobustzooError, match="data describe"):
        recipe(NAME, {"dataset": str(flowers / "train")})
    with pytest.raises(IncompatibleName, match="own images"):
        recipe("resnet_mini.own-flowers_linf.at_base")
