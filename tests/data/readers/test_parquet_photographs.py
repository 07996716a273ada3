from __future__ import annotations

import csv
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from robustzoo.data import DataError, MissingData, load_dataset


def jpeg(seed: int, width: int = 40, height: int = 30) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return file.getvalue()


def write(path, images: list[bytes | None], labels: list[int], row_group_size: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    structs = pa.array([{"bytes": image, "path": f"{i}.JPEG"} for i, image in enumerate(images)])
    pq.write_table(pa.table({"image": structs, "label": labels}), path, row_group_size=row_group_size)


def name(split: str, shard: int = 0, of: int = 1) -> str:
    return f"data/{split}-{shard:05d}-of-{of:05d}.parquet"


@pytest.fixture
def root(tmp_path):
    """24 training images in two shards, two validation images, and the unlabelled test shard of the Hub."""
    images = [jpeg(i, 40 + i) for i in range(24)]
    write(tmp_path / name("train", 0, 2), images[:14], list(range(14)))
    write(tmp_path / name("train", 1, 2), images[14:], list(range(985, 995)))
    write(tmp_path / name("validation"), [jpeg(90), jpeg(91)], [999, 0])
    write(tmp_path / name("test"), [jpeg(92)], [-1])
    return tmp_path


def test_splits_of_the_hub(root):
    test = load_dataset("imagenet", root)
    assert test.labels.tolist() == [999, 0] and test.num_classes == 1000
    assert test[0][0].shape == (3, 224, 224) and test[1][1] == 0
    train, holdout = (load_dataset("imagenet", root, split) for split in ("train", "holdout"))
    assert (len(train), len(holdout)) == (22, 2)
    assert sorted([*train._rows, *holdout._rows]) == list(range(24))
    assert not train.complete and "24 of the 1,281,167 training images" in train.shortfall


def test_pixels_and_crops_are_those_of_class_folders(tmp_path):
    """The same photographs in both layouts: one rule for resizing and cropping."""
    wnids = ["n01440764", "n02099712"]
    images = [jpeg(i, 300 + 10 * i, 270) for i in range(12)]
    write(tmp_path / "p" / name("train"), images, [0] * 6 + [208] * 6, row_group_size=5)
    for i, image in enumerate(images):
        path = tmp_path / "f" / "train" / wnids[i // 6] / f"{i:02d}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
    parquet, folders = (load_dataset("imagenet", tmp_path / where, "train") for where in "pf")
    assert len(parquet) == len(folders) == 11
    for i in range(11):
        assert torch.equal(parquet[i][0], folders[i][0]) and parquet[i][1] == folders[i][1]
        for augmentation in ("none", "fb", "crop"):
            one, other = (d.training_item(i, 3, 2, augmentation)[0] for d in (parquet, folders))
            assert torch.equal(one, other)


def test_groups_are_read_when_needed_and_few_are_kept(root, monkeypatch):
    train = load_dataset("imagenet", root, "train")
    read = []
    original = type(train._shards[0]).images
    monkeypatch.setattr(
        type(train._shards[0]), "images", lambda shard, group: read.append(group) or original(shard, group)
    )
    for i in range(len(train)):
        train[i]
    assert read == [0, 1, 2, 3, 4, 0, 1, 2, 3] and len(train._kept) == 4  # in order, each group once
    again = pickle.loads(pickle.dumps(train))
    assert not again._kept and torch.equal(again[3][0], train[3][0])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: again[i][0], range(22)))
    assert all(torch.equal(x, train[i][0]) for i, x in enumerate(found))


def test_a_missing_shard_is_named(root):
    (root / name("train", 0, 2)).rename(root / name("train", 0, 294))
    (root / name("train", 1, 2)).unlink()
    with pytest.raises(MissingData, match=r"lacks 293 of 294 shards, first train-00001-of-00294.parquet"):
        load_dataset("imagenet", root, "train")
    (root / name("validation")).unlink()
    with pytest.raises(MissingData, match=r"has no validation-\*.parquet"):
        load_dataset("imagenet", root)


def test_validation_images_serve_for_training_where_there_are_no_others(tmp_path):
    write(tmp_path / name("validation"), [jpeg(i) for i in range(20)], list(range(20)))
    train, holdout = (load_dataset("imagenet", tmp_path, split) for split in ("train", "holdout"))
    assert (len(train), len(holdout)) == (18, 2)
    assert not train.complete and "no training images; its 20 validation images serve" in train.shortfall
    with pytest.raises(DataError, match="looks like the validation split, but the train split is wanted"):
        load_dataset("imagenet", tmp_path / name("validation"), "train")


def test_bad_files_and_images_are_named(root):
    file = root / name("validation")
    for images, message in (
        ([jpeg(0), jpeg(1)[:200]], r"image 1, .*of-00001.parquet, row 1: no readable image"),
        ([jpeg(0), None], r"image 1, .*, row 1: the row has no image bytes"),
    ):
        write(file, images, [0, 1])
        with pytest.raises(DataError, match=message):
            load_dataset("imagenet", root)[1]
    write(file, [jpeg(0)], [1000])
    with pytest.raises(DataError, match=r"row 0: label 1000, expected 0 to 999"):
        load_dataset("imagenet", root)
    for content in (b"", b"<!doctype html>"):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"of-00001.parquet is no readable parquet file .*fetch it again"):
            load_dataset("imagenet", root)
    write(file, [], [])
    with pytest.raises(DataError, match=r"no image column|holds no rows"):
        load_dataset("imagenet", root)


def test_the_real_photographs_as_parquet(shared, tmp_path):
    folder = shared / "data" / "imagenet_sample"
    with (folder / "class_index.tsv").open() as file:
        labels = {wnid: int(label) for wnid, label, _ in csv.reader(file, delimiter="\t")}
    files = sorted((folder / "val").glob("*/*.JPEG"))
    write(
        tmp_path / name("validation"), [f.read_bytes() for f in files], [labels[f.parent.name] for f in files]
    )
    parquet, folders = (load_dataset("imagenet", where) for where in (tmp_path, folder))
    assert len(parquet) == 63 and parquet.labels.tolist() == folders.labels.tolist()
    for i in range(0, 63, 9):
        assert torch.equal(parquet[i][0], folders[i][0])
