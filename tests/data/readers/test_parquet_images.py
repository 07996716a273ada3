from __future__ import annotations

import io
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from robustzoo.data import DataError, MissingData, load_dataset


def png(seed: int, size: int = 32, mode: str = "RGB") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, "PNG")
    return file.getvalue()


def pixels_of(encoded: bytes) -> torch.Tensor:
    image = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    return torch.from_numpy(image.copy()).permute(2, 0, 1).float() / 255


def write(path, images: list[bytes | None], labels, image="img", label="label", row_group_size=4):
    path.parent.mkdir(parents=True, exist_ok=True)
    structs = pa.array([{"bytes": b, "path": f"{i}.png"} for i, b in enumerate(images)])
    table = pa.table({image: structs, label: pa.array(labels)})
    pq.write_table(table, path, row_group_size=row_group_size)


def test_images_and_labels_come_in_file_order_across_shards(tmp_path):
    images = [png(i) for i in range(9)]
    labels = [i % 10 for i in range(9)]
    write(tmp_path / "data/test-00000-of-00002.parquet", images[:5], labels[:5], row_group_size=2)
    write(tmp_path / "data/test-00001-of-00002.parquet", images[5:], labels[5:])
    dataset = load_dataset("cifar10", tmp_path)
    assert len(dataset) == 9 and dataset.image_shape == (3, 32, 32) and dataset.classes[3] == "cat"
    for i in (8, 0, 4, 5, 8):
        x, label = dataset[i]
        assert x.dtype == torch.float32 and torch.equal(x, pixels_of(images[i])) and label == labels[i]
    again = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(again[5][0], dataset[5][0])


@pytest.mark.parametrize("image, label", [("image", "label"), ("picture", "fine_label"), ("img", "target")])
def test_columns_are_found_by_type(tmp_path, image, label):
    write(tmp_path / "test-0.parquet", [png(0, mode="L"), png(1)], [7, 3], image, label)
    dataset = load_dataset("cifar100", tmp_path / "test-0.parquet")
    assert dataset[0][1] == 7 and torch.equal(dataset[0][0][0], dataset[0][0][2])  # grey becomes RGB


def test_fine_labels_are_preferred(tmp_path):
    structs = pa.array([{"bytes": png(0), "path": None}])
    columns = {"img": structs, "coarse_label": pa.array([1]), "fine_label": pa.array([42])}
    pq.write_table(pa.table(columns), tmp_path / "test-0.parquet")
    dataset = load_dataset("cifar100", tmp_path)
    assert dataset[0][1] == 42 and dataset.classes[42] == "leopard"


def test_holdout_and_train_share_the_training_images(tmp_path):
    images = [png(i) for i in range(40)]
    write(tmp_path / "train-0.parquet", images, [i % 10 for i in range(40)])
    train, holdout = (load_dataset("cifar10", tmp_path, split) for split in ("train", "holdout"))
    assert (len(train), len(holdout)) == (36, 4)
    found = {x.numpy().tobytes() for x, _ in (*train, *holdout)}
    assert found == {pixels_of(image).numpy().tobytes() for image in images}


def test_too_few_images_for_a_holdout(tmp_path):
    write(tmp_path / "train-0.parquet", [png(0)], [0])
    with pytest.raises(DataError, match="too few for a holdout"):
        load_dataset("cifar10", tmp_path, "holdout")


def test_labels_outside_the_classes_name_file_and_row(tmp_path):
    for wrong in (10, -1, None):
        write(tmp_path / "test-0.parquet", [png(i) for i in range(3)], [1, 2, wrong])
        with pytest.raises(DataError, match=rf"test-0.parquet, row 2: label {wrong}, expected 0 to 9"):
            load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize(
    "bad, message",
    [
        (png(0)[:100], r"test-0.parquet, row 5: no readable image"),
        (b"<html>", r"row 5: no readable image"),
        (None, "row 5: the row has no image bytes"),
        (png(0, size=28), r"row 5: an image of shape \(3, 28, 28\), but cifar10 has \(3, 32, 32\)"),
    ],
)
def test_bad_images_name_file_and_row(tmp_path, bad, message):
    write(tmp_path / "test-0.parquet", [*(png(i) for i in range(5)), bad], [0] * 6)
    dataset = load_dataset("cifar10", tmp_path)
    assert dataset[4][1] == 0
    for _ in range(2):  # a failed read must not be remembered as a black image
        with pytest.raises(DataError, match=message):
            dataset[5]


def test_missing_shards_are_named(tmp_path):
    write(tmp_path / "train-00001-of-00003.parquet", [png(0)], [0])
    with pytest.raises(MissingData, match=r"lacks 2 of 3 shards, first train-00000-of-00003.parquet"):
        load_dataset("cifar10", tmp_path, "train")
    with pytest.raises(MissingData, match=r"no test-\*.parquet"):
        load_dataset("cifar10", tmp_path, "test")


def test_ambiguous_folders_are_refused(tmp_path):
    for folder in ("one", "two"):
        write(tmp_path / folder / "test-0.parquet", [png(0)], [0])
    with pytest.raises(DataError, match=r"several sets .*\(one, two\)"):
        load_dataset("cifar10", tmp_path)
    for name in ("test-00000-of-00001.parquet", "test-00000-of-00002.parquet"):
        write(tmp_path / "mixed" / name, [png(0)], [0])
    with pytest.raises(DataError, match="mixes shards"):
        load_dataset("cifar10", tmp_path / "mixed")


def test_a_file_of_the_other_split_is_refused(tmp_path):
    write(tmp_path / "train-0.parquet", [png(0)], [0])
    with pytest.raises(DataError, match="looks like the train split"):
        load_dataset("cifar10", tmp_path / "train-0.parquet", "test")


@pytest.mark.parametrize(
    "columns, message",
    [
        ({"img": [b"x"], "label": [0]}, "no image column.*found img: binary, label: int64"),
        ({"img": [{"bytes": b"x"}], "label": ["cat"]}, "no integer column.*label: string"),
        ({"img": [{"bytes": b"x"}], "a": [1], "b": [2]}, "no integer column"),
    ],
)
def test_wrong_columns_are_listed(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "test-0.parquet")
    with pytest.raises(DataError, match=message):
        load_dataset("cifar10", tmp_path)


def test_a_file_that_is_no_parquet_file(tmp_path):
    write(tmp_path / "test-0.parquet", [png(i) for i in range(20)], [0] * 20)
    whole = (tmp_path / "test-0.parquet").read_bytes()
    for content in (b"", b"<!doctype html>", whole[: len(whole) // 2]):
        (tmp_path / "test-0.parquet").write_bytes(content)
        with pytest.raises(DataError, match=r"test-0.parquet is no readable parquet file"):
            load_dataset("cifar10", tmp_path)


def test_a_file_without_rows(tmp_path):
    schema = pa.schema({"img": pa.struct({"bytes": pa.binary(), "path": pa.string()}), "label": pa.int64()})
    pq.write_table(schema.empty_table(), tmp_path / "test-0.parquet")
    with pytest.raises(DataError, match="holds no rows"):
        load_dataset("cifar10", tmp_path)


def test_the_real_images(shared):
    root = shared / "data" / "cifar10jpg"
    train, holdout, test = (load_dataset("cifar10jpg", root, split) for split in ("train", "holdout", "test"))
    assert (len(train), len(holdout), len(test)) == (49_000, 1_000, 10_000)
    assert np.bincount(test.labels).tolist() == [1000] * 10
    assert (np.bincount(train.labels) + np.bincount(holdout.labels)).tolist() == [5000] * 10
    assert not set(train._rows) & set(holdout._rows)
    column = pq.read_table(root / "test-00000-of-00001.parquet")["img"]
    for i in (0, 999, 1000, 9_999):  # the file has a row group per thousand images
        x, label = test[i]
        assert torch.equal(x, pixels_of(column[i].as_py()["bytes"])) and 0 <= label < 10


@pytest.mark.parametrize("key", ["cifar10", "imagenet"])
def test_a_damaged_file_is_refused_and_never_pairs_images_with_other_labels(tmp_path, key):
    """Whatever flipped bytes in the footer and in the pages do to the reader of parquet: DataError."""
    file = tmp_path / "validation-0.parquet" if key == "imagenet" else tmp_path / "test-0.parquet"
    write(file, [png(i) for i in range(8)], list(range(8)))
    whole, rng = file.read_bytes(), np.random.default_rng(2)
    refused = 0
    for _ in range(250):
        damaged = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            where = rng.integers(len(whole)) if rng.random() < 0.4 else len(whole) - 1 - rng.integers(1200)
            damaged[where] = rng.integers(256)
        file.write_bytes(damaged)
        try:
            dataset = load_dataset(key, tmp_path)
            items = [dataset[i] for i in range(len(dataset))]
        except DataError:
            refused += 1
        else:
            assert len(items) == len(dataset) == len(dataset.labels)
    assert refused > 100


def test_a_column_that_lost_its_rows_is_refused(tmp_path):
    """With a wrong count in the footer pyarrow returns fewer labels than there are rows, without an error."""
    file = tmp_path / "test-0.parquet"
    write(file, [png(i) for i in range(8)], list(range(8)), row_group_size=8)
    whole, messages = file.read_bytes(), []
    for position in range(len(whole) - int.from_bytes(whole[-8:-4], "little"), len(whole)):
        if whole[position] == 16:  # 8 as the footer's variable-length integers have it; among them all counts
            file.write_bytes(whole[:position] + b"\0" + whole[position + 1 :])
            try:
                load_dataset("cifar10", tmp_path)
            except DataError as error:
                messages.append(str(error))
    assert any("has 8 rows where its row groups state 0" in message for message in messages)
    assert any("has 0 rows where its row groups state 8" in message for message in messages)
