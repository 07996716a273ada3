"""CIFAR-10 becomes the JPEG set, whatever its layout and order; the digests tell it from others."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from robustzoo.cli import group
from robustzoo.data import DataError, MissingData, cifar_jpeg, load_dataset

N = 20  # images of each of the five training batches and of the test batch


def batches(seed: int = 0) -> dict[str, tuple[np.ndarray, list[int]]]:
    noise = np.random.default_rng(seed)
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {
        name: (noise.integers(0, 256, (N, 3072), dtype=np.uint8), noise.integers(0, 10, N).tolist())
        for name in names
    }


def write_pickles(folder, found) -> None:
    folder.mkdir(parents=True)
    for name, (data, labels) in found.items():
        with (folder / name).open("wb") as file:
            pickle.dump({b"data": data, b"labels": labels, b"batch_label": b"of a test"}, file, protocol=4)


@pytest.fixture
def pickled(tmp_path):
    write_pickles(tmp_path / "cifar/cifar-10-batches-py", batches())
    return tmp_path / "cifar"


def test_pickles_become_the_jpeg_set(pickled, tmp_path):
    done = CliRunner().invoke(group, ["data", "jpeg", str(pickled), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0 and done.output.count("NOT the catalog's") == 2, done.output
    images = load_dataset("cifar10jpg", tmp_path / "out")
    data, labels = batches()["test_batch"]
    originals = {int(label): [] for label in labels}
    for row, label in zip(data, labels, strict=True):
        originals[label].append(row.reshape(3, 32, 32))
    assert len(images) == N and sorted(images.labels.tolist()) == sorted(labels)
    for i in range(N):  # each is near one original of its class: JPEG of noise is far from exact
        x, label = images[i]
        assert min(np.abs(255 * x.numpy() - original).mean() for original in originals[label]) < 60
    again = CliRunner().invoke(group, ["data", "digest", str(tmp_path / "out")])
    assert again.output == done.output


def test_digests_do_not_depend_on_order_or_layout(pickled, tmp_path):
    found = cifar_jpeg.convert(pickled, tmp_path / "a")
    shuffled = {
        name: (data[::-1].copy(), labels[::-1]) for name, (data, labels) in reversed(batches().items())
    }
    shuffled["data_batch_1"], shuffled["data_batch_5"] = shuffled["data_batch_5"], shuffled["data_batch_1"]
    write_pickles(tmp_path / "other", shuffled)
    assert cifar_jpeg.convert(tmp_path / "other", tmp_path / "b") == found
    assert (tmp_path / "a/train-00000-of-00001.parquet").read_bytes() == (
        tmp_path / "b/train-00000-of-00001.parquet"
    ).read_bytes()
    png = tmp_path / "png"
    for name, (data, labels) in batches().items():
        for i, (row, label) in enumerate(zip(data, labels, strict=True)):
            folder = png / ("test" if name == "test_batch" else "train") / str(label)
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(row.reshape(3, 32, 32).transpose(1, 2, 0)).save(folder / f"{name}-{i}.png")
    assert cifar_jpeg.convert(png, tmp_path / "c") == found
    write_pickles(tmp_path / "changed", batches(seed=1))
    assert cifar_jpeg.convert(tmp_path / "changed", tmp_path / "d")["test"] != found["test"]


def test_pickles_that_are_no_batch_run_nothing(pickled, tmp_path):
    class Mark:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "mark"),)

    file = pickled / "cifar-10-batches-py/data_batch_2"
    for content, error, keyword in (
        (pickle.dumps({b"data": Mark(), b"labels": []}), DataError, "asks for posix"),
        (pickle.dumps({b"data": np.zeros((2, 5), np.uint8), b"labels": [1, 2]}), DataError, "no batch"),
        (b"nonsense", DataError, "no batch"),
        (None, MissingData, "missing"),
    ):
        file.unlink(missing_ok=True)
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(error, match=keyword):
            cifar_jpeg.convert(pickled, tmp_path / "out")
    assert not (tmp_path / "mark").exists() and not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="not an empty folder"):
        cifar_jpeg.convert(pickled, pickled)


def test_the_shared_data_are_the_catalogs(shared):
    if not (shared / "data/cifar10jpg").is_dir():
        pytest.skip("../shared/data/cifar10jpg is absent")
    encoded = [
        cifar_jpeg._one(*image[:2]) for image in cifar_jpeg._stored(shared / "data/cifar10jpg", "test")
    ]
    assert cifar_jpeg._all(encoded) == cifar_jpeg.KNOWN["test"][0]
