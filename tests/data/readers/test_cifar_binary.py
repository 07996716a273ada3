from __future__ import annotations

import gzip
import io
import tarfile

import numpy as np
import pytest
import torch

from robustzoo.data import DataError, MissingData, load_dataset
from robustzoo.data.readers.cifar_binary import ARCHIVES

PIXELS = 3 * 32 * 32


def record(key: str, seed: int, label: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, PIXELS, dtype=np.uint8)
    return bytes([7] * (len(ARCHIVES[key].labels) - 1) + [label]) + pixels.tobytes()


def pixels_of(stored: bytes) -> torch.Tensor:
    return torch.tensor(list(stored[-PIXELS:])).view(3, 32, 32) / 255


def write_sparse(path, key: str, records: int, filled: dict[int, bytes]) -> None:
    """A file of full length, zeros but for some records; the file system keeps no zeros."""
    length = PIXELS + len(ARCHIVES[key].labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(records * length)
        for row, stored in filled.items():
            file.seek(row * length)
            file.write(stored)


def write_folder(root, key: str):
    """The unpacked archive, with two known records in every file."""
    archive, known = ARCHIVES[key], {}
    for part, files in archive.files.items():
        for number, name in enumerate(files):
            rows = {0: record(key, number, number), archive.records[part] - 1: record(key, number + 50, 9)}
            write_sparse(root / archive.folder / name, key, archive.records[part], rows)
            known |= {(name, row): stored for row, stored in rows.items()}
    return known


def pack(path, root, names, level: int = 1) -> None:
    with gzip.open(path, "wb", compresslevel=level) as file, tarfile.open(fileobj=file, mode="w|") as packed:
        for name in names:
            packed.add(root / name, name)


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory):
    """A root with the unpacked folder, one with the archive (members in no order), and the known records."""
    root, packed = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("packed")
    known = write_folder(root, "cifar10")
    archive = ARCHIVES["cifar10"]
    (root / archive.folder / "readme.html").write_text("as in the original")
    pack(packed / archive.name, root, [archive.folder])
    return root, packed, known


@pytest.mark.parametrize("layout", ["folder", "inside", "archive", "beside"])
def test_test_images_from_every_place(cifar10, layout):
    root, packed, known = cifar10
    archive = ARCHIVES["cifar10"]
    place = {
        "folder": root / archive.folder,
        "inside": root,
        "archive": packed / archive.name,
        "beside": packed,
    }[layout]
    test = load_dataset("cifar10", place)
    assert len(test) == 10_000 and test.complete and test.classes[9] == "truck"
    for row in (0, 9_999):
        x, label = test[row]
        assert x.dtype == torch.float32 and torch.equal(x, pixels_of(known["test_batch.bin", row]))
        assert label == known["test_batch.bin", row][0] == test.labels[row]
    assert test[5][0].max() == 0 and test[5][1] == 0


def test_training_images_keep_the_order_of_the_batches(cifar10):
    root, packed, known = cifar10
    train, holdout = (load_dataset("cifar10", root, split) for split in ("train", "holdout"))
    assert (len(train), len(holdout)) == (49_000, 1_000) and train.complete and holdout.complete
    bright = [*lit(train), *lit(holdout)]
    wanted = [stored for (name, _), stored in sorted(known.items()) if name != "test_batch.bin"]
    assert len(bright) == len(wanted) == 10
    for stored in wanted:
        assert any(torch.equal(x, pixels_of(stored)) and label == stored[0] for x, label in bright)
    order = iter((0, 9, 1, 9, 2, 9, 3, 9, 4, 9))
    assert all(label in order for _, label in lit(train))  # a part of that sequence
    unpacked = load_dataset("cifar10", packed, "train")
    assert np.array_equal(unpacked._pixels, train._pixels) and np.array_equal(unpacked.labels, train.labels)


def lit(dataset):
    """Items that are not black; looking at the stored bytes is quicker than reading 49,000 items."""
    return [dataset[int(i)] for i in np.flatnonzero(dataset._pixels.reshape(len(dataset), -1).any(1))]


def test_fine_labels_of_cifar100(tmp_path):
    archive = ARCHIVES["cifar100"]
    write_sparse(tmp_path / archive.folder / "test.bin", "cifar100", 10_000, {3: record("cifar100", 1, 99)})
    pack(tmp_path / archive.name, tmp_path, [archive.folder])
    for place in (tmp_path, tmp_path / archive.name):
        test = load_dataset("cifar100", place)
        assert test.labels.sum() == 99 == test.labels[3] and test.classes[99] == "worm"
        assert torch.equal(test[3][0], pixels_of(record("cifar100", 1, 99)))
    with pytest.raises(MissingData, match=r"lacks train.bin; fetch cifar-100-binary.tar.gz again"):
        load_dataset("cifar100", tmp_path, "train")


@pytest.mark.parametrize("change", [-1, -(PIXELS + 1), PIXELS + 1])
def test_files_of_another_size_are_refused(tmp_path, change):
    folder = tmp_path / "cifar-10-batches-bin"
    write_sparse(folder / "test_batch.bin", "cifar10", 10_000, {})
    with (folder / "test_batch.bin").open("r+b") as file:
        file.truncate(10_000 * (PIXELS + 1) + change)
    with pytest.raises(
        DataError, match=r"test_batch.bin has 30,7\d\d,\d{3} bytes, expected 30,730,000 \(10,000"
    ):
        load_dataset("cifar10", tmp_path)


def test_a_missing_batch_is_named(cifar10, tmp_path):
    root, _, _ = cifar10
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for i in (1, 2, 4, 5):
        (folder / f"data_batch_{i}.bin").symlink_to(root / "cifar-10-batches-bin" / f"data_batch_{i}.bin")
    with pytest.raises(MissingData, match=r"lacks data_batch_3.bin; fetch"):
        load_dataset("cifar10", tmp_path, "train")


@pytest.mark.parametrize(
    "key, labels, message",
    [
        ("cifar10", [10], r"test_batch.bin, record 8: label 10, expected 0 to 9"),
        ("cifar100", [20, 5], r"test.bin, record 8: label 20, expected 0 to 19"),
        ("cifar100", [5, 100], r"test.bin, record 8: label 100, expected 0 to 99"),
    ],
)
def test_labels_outside_name_file_and_record(tmp_path, key, labels, message):
    archive = ARCHIVES[key]
    file = tmp_path / archive.folder / archive.files["test"][0]
    write_sparse(file, key, 10_000, {8: bytes(labels)})
    with pytest.raises(DataError, match=message):
        load_dataset(key, tmp_path)


def test_damaged_archives_are_refused(tmp_path):
    archive = ARCHIVES["cifar10"]
    write_sparse(
        tmp_path / "x" / archive.folder / "test_batch.bin", "cifar10", 10_000, {5: record("cifar10", 0, 3)}
    )
    pack(tmp_path / archive.name, tmp_path / "x", [archive.folder])
    whole = (tmp_path / archive.name).read_bytes()
    assert load_dataset("cifar10", tmp_path)[5][1] == 3
    checksum = whole[:-8] + bytes(8)
    for content in (whole[: len(whole) // 2], whole[:-3], checksum, b"", b"<!doctype html>", whole[:1]):
        (tmp_path / archive.name).write_bytes(content)
        with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz is no whole archive .*fetch it again"):
            load_dataset("cifar10", tmp_path)


def test_other_archives_are_told_apart(tmp_path):
    def archive_of(member: str):
        with tarfile.open(tmp_path / "cifar.tar", "w") as packed:
            packed.addfile(tarfile.TarInfo(member), io.BytesIO())
        return tmp_path / "cifar.tar"

    with pytest.raises(
        DataError, match=r"holds Python pickles.*take the binary version.*cifar-10-binary.tar.gz"
    ):
        load_dataset("cifar10", archive_of("cifar-10-batches-py/data_batch_1"))
    with pytest.raises(DataError, match=r"holds cifar-100-binary, expected cifar-10-batches-bin"):
        load_dataset("cifar10", archive_of("cifar-100-binary/test.bin"))
    with pytest.raises(MissingData, match=r"lacks test.bin"):
        load_dataset("cifar100", archive_of("."))


def test_folders_of_pickles_are_never_opened(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"cos\nabort\n(tR.")  # ends the process
    for place in (tmp_path, tmp_path / "cifar-10-batches-py"):
        with pytest.raises(DataError, match=r"never read here; take the binary version"):
            load_dataset("cifar10", place, "train")
