from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from robustzoo.data import DataError, MissingData, load_dataset
from robustzoo.data.readers.cifar import CLASSES
from robustzoo.registry.catalog import DATASETS


def save(path, seed: int = 0, size: tuple[int, int] = (32, 32)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return torch.from_numpy(pixels).permute(2, 0, 1) / 255


def test_class_names_are_those_of_the_catalog_in_alphabetical_order():
    for key, names in CLASSES.items():
        assert len(set(names)) == DATASETS[key].num_classes and sorted(names) == list(names)


@pytest.mark.parametrize(
    "key, folder, label",
    [
        ("cifar10", "horse", 7),
        ("cifar10jpg", "truck", 9),
        ("cifar10", "07", 7),
        ("cifar100", "keyboard", 39),
        ("cifar100", "computer_keyboard", 39),
        ("cifar100", "cra", 26),
        ("cifar100", "99", 99),
    ],
)
def test_class_folders_are_named_by_class_or_number(tmp_path, key, folder, label):
    pixels = save(tmp_path / "test" / folder / "b.png")
    save(tmp_path / "test" / folder / "c.png", 1)
    dataset = load_dataset(key, tmp_path)
    assert dataset.labels.tolist() == [label, label] and dataset.image_shape == (3, 32, 32)
    assert torch.equal(dataset[0][0], pixels)
    assert not dataset.complete and dataset.shortfall.startswith(
        f"2 of the 10,000 test images of {key} are at"
    )


def test_train_and_holdout_of_folders(tmp_path):
    for i in range(20):
        save(tmp_path / "train" / CLASSES["cifar10"][i % 10] / f"{i}.png", i)
    train, holdout = (load_dataset("cifar10", tmp_path, split) for split in ("train", "holdout"))
    assert (len(train), len(holdout)) == (18, 2) and not train.complete
    assert len({*train._names, *holdout._names}) == 20
    assert torch.equal(train.training_item(0, 0, 0, "fb")[0], train[0][0])
    crops = [train.training_item(0, 0, epoch, "crop")[0] for epoch in (0, 0, 1)]
    assert torch.equal(crops[0], crops[1]) and not torch.equal(crops[0], crops[2])
    assert crops[0].shape == (3, 32, 32) and not torch.equal(crops[0], train[0][0])
    with pytest.raises(MissingData, match=r"test has no class folders; expected for cifar10"):
        load_dataset("cifar10", tmp_path)


def test_bad_folders(tmp_path):
    save(tmp_path / "test" / "cat" / "a.png", size=(32, 28))
    with pytest.raises(
        DataError, match=r"image 0, .*cat/a.png: an image of 32 x 28 pixels .*expected 32 x 32; check"
    ):
        load_dataset("cifar10", tmp_path)[0]
    (tmp_path / "test" / "cat" / "a.png").write_bytes(b"\x89PNG no more")
    with pytest.raises(DataError, match=r"image 0, .*cat/a.png: no readable image"):
        load_dataset("cifar10", tmp_path)[0]
    save(tmp_path / "test" / "3" / "a.png")
    with pytest.raises(DataError, match=r"two folders for one class: .*keep one of each"):
        load_dataset("cifar10", tmp_path)
    save(tmp_path / "other" / "test" / "10" / "a.png")
    with pytest.raises(
        DataError,
        match=r"test/10 is none of the 10 classes.*name its folders 0 to 9, or airplane, automobile",
    ):
        load_dataset("cifar10jpg", tmp_path / "other")


def test_more_images_than_the_data_set_has_are_refused(tmp_path, monkeypatch):
    for i in range(3):
        save(tmp_path / "test" / "cat" / f"{i}.png", i)
    monkeypatch.setitem(DATASETS, "cifar10", replace(DATASETS["cifar10"], test_size=3))
    assert load_dataset("cifar10", tmp_path).complete
    monkeypatch.setitem(DATASETS, "cifar10", replace(DATASETS["cifar10"], test_size=2))
    with pytest.raises(
        DataError, match=r"has 3 test images, but cifar10 has 2; give the folder of this data set"
    ):
        load_dataset("cifar10", tmp_path)


def test_places_without_a_known_layout(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    for key, binary in (("cifar10", "cifar-10-binary"), ("cifar100", "cifar-100-binary")):
        with pytest.raises(MissingData, match=rf"holds none of what {key} is read from; .*{binary}"):
            load_dataset(key, tmp_path)
    with pytest.raises(DataError, match=r"notes.txt is no whole archive"):
        load_dataset("cifar10", tmp_path / "notes.txt")
    with pytest.raises(DataError, match=r"notes.txt is no parquet file"):
        load_dataset("cifar10jpg", tmp_path / "notes.txt")


def test_the_real_images_as_folders(shared, tmp_path):
    """Images of the parquet file, unpacked into class folders, come out with the same pixels."""
    stored = load_dataset("cifar10jpg", shared / "data" / "cifar10jpg")
    for i in range(40):
        image = Image.fromarray((stored[i][0] * 255).round().byte().permute(1, 2, 0).numpy())
        path = tmp_path / "test" / stored.classes[stored.labels[i]] / f"{i:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    unpacked = load_dataset("cifar10jpg", tmp_path)
    order = sorted(range(40), key=lambda i: (stored.labels[i], i))
    for i, (x, label) in zip(order, unpacked, strict=True):
        assert torch.equal(x, stored[i][0]) and label == stored[i][1]


def test_jpeg_images_are_not_the_originals(shared):
    with pytest.raises(DataError, match=r"JPEG images, and cifar10 is published without loss.*cifar10jpg"):
        load_dataset("cifar10", shared / "data" / "cifar10jpg")
