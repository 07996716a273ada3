from __future__ import annotations

import csv
import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms

from robustzoo.data import DataError, MissingData, load_dataset, open_data
from robustzoo.data.fit import Fit
from robustzoo.data.readers.image_folder import class_folders, open_folder


def save(path, width=40, height=30, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def imagenet(tmp_path):
    for wnid in ("n02099712", "n01440764"):  # classes 208 and 0 of ImageNet
        for i in range(12):
            save(tmp_path / "train" / wnid / f"{i:02d}.png", seed=i)
        save(tmp_path / "val" / wnid / "a.JPEG")
    return tmp_path


def test_a_part_of_the_classes_keeps_the_labels_of_imagenet(imagenet):
    dataset = load_dataset("imagenet", imagenet)
    assert dataset.labels.tolist() == [0, 208] and dataset.num_classes == 1000
    assert dataset.image_shape == dataset[1][0].shape == (3, 224, 224) and dataset[1][1] == 208
    assert dataset.classes[208] == "n02099712"
    assert load_dataset("imagenet", imagenet / "val").labels.tolist() == [0, 208]


def test_a_class_index_beside_the_images_decides(imagenet):
    (imagenet / "class_index.tsv").write_text("n02099712\t5\tdog\nn01440764\t7\tfish\n")
    assert load_dataset("imagenet", imagenet).labels.tolist() == [7, 5]
    (imagenet / "class_index.tsv").write_text("n02099712\t5\tdog\n")
    with pytest.raises(DataError, match="n01440764 is none of the"):
        load_dataset("imagenet", imagenet)
    (imagenet / "class_index.tsv").write_text("n02099712\t1000\tdog\n")
    with pytest.raises(DataError, match=r"class_index.tsv, line 1"):
        load_dataset("imagenet", imagenet)


@pytest.mark.parametrize(
    "content, message",
    [
        ("n02099712\t5\tdög\n".encode("latin-1"), r"class_index.tsv is no text in UTF-8 .*save it again"),
        ("n02099712\t5\tdog\n".encode("utf-16"), r"class_index.tsv is no text in UTF-8 .*save it again"),
        (
            b"n02099712\t5\tdog\nn01440764\t5\tfish\n",
            r"line 2: class 5 is given to n01440764 and to n02099712",
        ),
        (b"n02099712\t" + b"1" * 5000, r"line 1.*expected wnid, tab, class index 0 to 999"),
        ("n02099712\t\u0665\tdog\n".encode(), r"line 1.*expected wnid, tab, class index 0 to 999"),
    ],
    ids=["latin-1", "utf-16", "one class twice", "huge", "other digits"],
)
def test_a_class_index_that_cannot_be_meant_is_refused(imagenet, content, message):
    (imagenet / "class_index.tsv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        load_dataset("imagenet", imagenet)


def test_a_class_index_may_begin_with_a_byte_order_mark(imagenet):
    index = "n02099712\t5\tdog\nn01440764\t7\tfish\n"
    (imagenet / "class_index.tsv").write_text(index, encoding="utf-8-sig")
    assert load_dataset("imagenet", imagenet).labels.tolist() == [7, 5]


@pytest.mark.parametrize("own", [False, True])
def test_a_link_to_itself_among_the_folders(tmp_path, own):
    """As a data set of the catalog, and as anyone's folder."""
    save(tmp_path / "test" / "airplane" / "a.png", 32, 32)
    loop = tmp_path / "test" / "bird"
    loop.symlink_to("bird")
    with pytest.raises(DataError, match=r"test/bird cannot be read .*mend or remove the link"):
        open_data(tmp_path / "test") if own else load_dataset("cifar10", tmp_path)
    loop.rename(tmp_path / "test" / ".bird")  # hidden, as what is not looked at
    assert len(open_data(tmp_path / "test") if own else load_dataset("cifar10", tmp_path)) == 1


@pytest.mark.parametrize("own", [False, True])
def test_a_class_folder_without_permission(tmp_path, monkeypatch, own):
    save(tmp_path / "test" / "airplane" / "a.png", 32, 32)
    scandir = os.scandir

    def refusing(place):
        if Path(place).name == "airplane":  # as the system does for another user's folder, but also for root
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match=r"airplane cannot be read \(Permission denied\).*read permission"):
        open_data(tmp_path / "test") if own else load_dataset("cifar10", tmp_path)


def test_a_thousand_folders_are_numbered_in_order(tmp_path):
    for i in range(1000):
        (tmp_path / f"n{i:08d}").mkdir()
        (tmp_path / f"n{i:08d}" / "a.jpg").touch()
    assert load_dataset("imagenet", tmp_path).labels.tolist() == list(range(1000))


def test_holdout_and_train_are_disjoint(imagenet):
    train, holdout = (load_dataset("imagenet", imagenet, split) for split in ("train", "holdout"))
    assert (len(train), len(holdout)) == (22, 2)
    assert len({*train._names, *holdout._names}) == 24


def test_training_crops_are_keyed_and_vary(imagenet):
    train = load_dataset("imagenet", imagenet, "train")
    for augmentation in ("fb", "crop"):
        x, label = train.training_item(3, 1, 0, augmentation)
        assert x.shape == (3, 224, 224) and label == train[3][1] and 0 <= x.min() <= x.max() <= 1
        assert torch.equal(x, train.training_item(3, 1, 0, augmentation)[0])
        others = [train.training_item(3, seed, epoch, augmentation)[0] for seed, epoch in ((1, 1), (2, 0))]
        assert not any(torch.equal(x, other) for other in others)
    assert torch.equal(train.training_item(3, 1, 0, "none")[0], train[3][0])


def test_the_other_split_is_refused(imagenet):
    with pytest.raises(DataError, match="looks like the val images"):
        load_dataset("imagenet", imagenet / "val", "train")
    with pytest.raises(DataError, match="looks like the train images"):
        load_dataset("imagenet", imagenet / "train", "test")


def test_images_outside_class_folders(tmp_path):
    save(tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(DataError, match="move the images into folders by class"):
        load_dataset("imagenet", tmp_path)
    with pytest.raises(MissingData, match="neither val/"):
        load_dataset("imagenet", tmp_path / "val")
    with pytest.raises(MissingData, match="neither train/"):
        load_dataset("imagenet", tmp_path / "val", "train")
    with pytest.raises(DataError, match="is a file"):
        load_dataset("imagenet", tmp_path / "val" / "ILSVRC2012_val_00000001.JPEG")


def test_broken_images_and_empty_folders_are_named(imagenet):
    file = imagenet / "val" / "n01440764" / "a.JPEG"
    file.write_bytes(file.read_bytes()[:300])
    with pytest.raises(DataError, match=r"n01440764/a.JPEG: no readable image"):
        load_dataset("imagenet", imagenet)[0]
    file.unlink()
    with pytest.raises(DataError, match="n01440764 holds no image"):
        load_dataset("imagenet", imagenet)


def test_own_images_by_class_folder(tmp_path):
    save(tmp_path / "dog" / "1.png", 31, 57)
    save(tmp_path / "cat" / "1.png", 57, 31)
    dataset = open_folder(tmp_path, Fit.usual((32, 32)))
    assert dataset.classes == ("cat", "dog") and dataset.labels.tolist() == [0, 1]
    assert dataset[0][0].shape == (3, 32, 32)
    with pytest.raises(ValueError, match="cannot crop 32 x 32 pixels from 30 x 30"):
        Fit((32, 32), (30, 30), "cover")
    with pytest.raises(DataError, match="has no folders inside"):
        open_folder(tmp_path / "cat")


@pytest.mark.parametrize("width, height", [(40, 30), (30, 41), (300, 257), (256, 256), (255, 700)])
def test_evaluation_pixels_are_those_of_torchvision(tmp_path, width, height):
    save(tmp_path / "a" / "1.png", width, height)
    expected = transforms.Compose(
        [transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]  # bilinear by default
    )
    with Image.open(tmp_path / "a" / "1.png") as image:
        assert torch.equal(open_folder(tmp_path, Fit.usual((224, 224)))[0][0], expected(image))


@pytest.mark.parametrize("shape", [(56, 112), (112, 56), (56, 57)])
@pytest.mark.parametrize("width, height", [(40, 30), (30, 41), (300, 100), (128, 64), (64, 128), (7, 90)])
def test_a_crop_of_two_sides_is_the_centre_of_the_image_that_just_covers_it(tmp_path, shape, width, height):
    save(tmp_path / "a" / "1.png", width, height)
    h, w = (round(side * 256 / 224) for side in shape)
    scale = max(h / height, w / width)
    size = [int(scale * side + 1e-9) for side in (height, width)]
    assert size[0] == h or size[1] == w
    expected = transforms.Compose(
        [transforms.Resize(size), transforms.CenterCrop(shape), transforms.ToTensor()]
    )
    with Image.open(tmp_path / "a" / "1.png") as image:
        dataset = open_folder(tmp_path, replace(Fit.usual(shape), keeps_exact=False))
        assert dataset.image_shape == (3, *shape) and torch.equal(dataset[0][0], expected(image))
    for augmentation in ("fb", "crop"):
        assert dataset.training_item(0, 1, 0, augmentation)[0].shape == (3, *shape)


def test_the_real_photographs(shared):
    root = shared / "data" / "imagenet_sample"
    dataset = load_dataset("imagenet", root)
    with (root / "class_index.tsv").open() as file:
        expected = {wnid: int(label) for wnid, label, _ in csv.reader(file, delimiter="\t")}
    assert len(dataset) == 63 and class_folders(root / "val") == sorted(expected)
    for i, name in enumerate(dataset._names):
        assert dataset.labels[i] == expected[name.decode().split("/")[0]]
    x, label = dataset[62]
    assert x.shape == (3, 224, 224) and x.min() >= 0 and x.max() <= 1 and label == 992


def test_labels_of_the_real_photographs_without_their_index(shared, tmp_path):
    with (shared / "data" / "imagenet_sample" / "class_index.tsv").open() as file:
        expected = {wnid: int(label) for wnid, label, _ in csv.reader(file, delimiter="\t")}
    for wnid in expected:
        save(tmp_path / "val" / wnid / "a.png", 4, 4)
    assert load_dataset("imagenet", tmp_path).labels.tolist() == [expected[wnid] for wnid in sorted(expected)]


def test_the_real_photographs_serve_for_training(shared):
    root = shared / "data" / "imagenet_sample"
    train, holdout = (load_dataset("imagenet", root, split) for split in ("train", "holdout"))
    assert (len(train), len(holdout)) == (57, 6) and not {*train._names} & {*holdout._names}
    for dataset in (train, holdout):
        assert (
            not dataset.complete and "no training images; its 63 validation images serve" in dataset.shortfall
        )
    for augmentation in ("none", "fb", "crop"):
        x, label = train.training_item(0, 0, 0, augmentation)
        assert x.shape == (3, 224, 224) and x.min() >= 0 and x.max() <= 1 and label == train.labels[0]
    test = load_dataset("imagenet", root)
    assert not test.complete and test.shortfall.startswith("63 of the 50,000 test images of imagenet")


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_images_of_16_bits_keep_their_shades(tmp_path, channels):
    shades = np.linspace(0, 65535, 64).round().astype(np.uint16).reshape(8, 8)
    (tmp_path / "a").mkdir()
    Image.fromarray(shades).save(tmp_path / "a" / "1.png")
    x, _ = open_folder(tmp_path, Fit((8, 8)), channels)[0]
    assert x.shape == (channels, 8, 8)
    assert np.abs(x.numpy() - shades / 65535).max() <= 0.5 / 255 + 1e-6
