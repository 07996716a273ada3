"""Folders of images as people have them: other formats, nested, with what systems leave, or too large."""

from __future__ import annotations

import io
import os
import zlib

import numpy as np
import pytest
from PIL import Image, features

from robustzoo.data import DataError, evaluation_subset, load_dataset, open_data
from robustzoo.data.decoder import decode
from robustzoo.data.readers.image_folder import open_folder

ENDS = ["png", "tif", "gif", "jfif", "ppm", "webp", "bmp", "jp2", "tga", "PNG"]


def save(path, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (200, 100, 50)).save(path)


def bomb(width: int, height: int, whole: bool = False) -> bytes:
    """A black grey PNG of this size, or only its first row: no more must be read to refuse it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + check

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    packer = zlib.compressobj(9)
    data = b"".join(
        [*(packer.compress(bytes(width + 1)) for _ in range(height if whole else 1)), packer.flush()]
    )
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_all_that_pillow_reads_is_read(tmp_path):
    ends = [*ENDS, *(["avif"] if features.check("avif") else [])]
    for i, end in enumerate(ends):
        save(tmp_path / "a" / f"{i}.{end}")
    save(tmp_path / "b" / "deeper" / "and deeper" / "x.png")
    dataset = open_folder(tmp_path)
    assert len(dataset) == len(ends) + 1 and dataset.labels.tolist() == [0] * len(ends) + [1]
    assert all(x.shape == (3, 8, 8) and abs(x[0].mean() - 200 / 255) < 0.05 for x, _ in dataset)
    assert not dataset.warnings and "8 x 8" in dataset.notes[0] and "1 = 'b'" in dataset.notes[1]


def test_what_is_left_out_is_said_and_what_systems_leave_is_not(tmp_path):
    for name in ("1.png", "._1.png", "Thumbs.db", "notes.txt", "x.heic", "y.HEIC"):
        save(tmp_path / "a" / "1.png")
        if name != "1.png":
            (tmp_path / "a" / name).write_bytes(b"no image")
    save(tmp_path / "__MACOSX" / "z.png")
    save(tmp_path / "outside.png")
    os.mkfifo(tmp_path / "a" / "pipe.png")
    dataset = open_folder(tmp_path)
    assert len(dataset) == 1 and dataset.classes == ("a",)
    (said,) = dataset.warnings
    assert "4 files" in said and "2 .heic" in said and "1 .txt" in said and "1 no regular file" in said
    assert "1 images lie outside the class folders" in said


def test_layouts_that_are_no_class_folders_say_what_to_give(tmp_path):
    save(tmp_path / "splits" / "train" / "cat" / "1.png")
    save(tmp_path / "splits" / "val" / "cat" / "1.png")
    with pytest.raises(DataError, match=r"holds splits \(train, val\) .*splits/val"):
        open_data(tmp_path / "splits")
    for name in ("cat", "dog"):
        save(tmp_path / "one" / "images" / name / "1.png")
    with pytest.raises(DataError, match=r"the one folder images.*one/images"):
        open_data(tmp_path / "one")
    (tmp_path / "parquet").mkdir()
    (tmp_path / "parquet" / "test-00000-of-00001.parquet").touch()
    for data in (tmp_path / "parquet", tmp_path / "parquet" / "test-00000-of-00001.parquet"):
        with pytest.raises(DataError, match=r"holds parquet files.*--data NAME:.*imagenet"):
            open_data(data)
    for name, read in {"x.npz": "numpy.load", "x.PT": "torch.load", "x.h5": "h5py"}.items():
        (tmp_path / name).touch()
        with pytest.raises(DataError, match=rf"is a file.*read them with {read}.*robustzoo.evaluate"):
            open_data(tmp_path / name)
    (tmp_path / "images.zip").touch()
    with pytest.raises(DataError, match=r"is a file; .*archives: unpack"):
        open_data(tmp_path / "images.zip")
    (tmp_path / "splits" / "val" / "dog").mkdir()
    (tmp_path / "splits" / "val" / "dog" / "x.heic").touch()
    with pytest.raises(DataError, match=r"dog holds no image .*but 1 .heic"):
        open_data(tmp_path / "splits" / "val")
    (tmp_path / "loop" / "a").mkdir(parents=True)
    (tmp_path / "loop" / "a" / "again").symlink_to(tmp_path / "loop" / "a")
    with pytest.raises(DataError, match="again is a link to a folder that it lies in"):
        open_data(tmp_path / "loop")


def test_an_image_of_144_megapixels_is_refused_by_a_limit_that_can_be_raised(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(bomb(12_000, 12_000))
    with (
        pytest.warns(Image.DecompressionBombWarning),
        pytest.raises(
            DataError, match=r"a/1.png: an image of 12000 x 12000 = 144,000,000 pixels.*ROBUSTZOO_MAX_PIXELS"
        ),
    ):
        open_folder(tmp_path)[0]
    with pytest.raises(DataError, match=r"row 3: .*ROBUSTZOO_MAX_PIXELS"):  # as parquet has its images
        decode(io.BytesIO(bomb(20_000, 10_000)), 3, "row 3")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)
    monkeypatch.setenv("ROBUSTZOO_MAX_PIXELS", "40000")
    assert decode(io.BytesIO(bomb(200, 200, whole=True)), 1, "x").size == (200, 200)
    monkeypatch.setenv("ROBUSTZOO_MAX_PIXELS", "-1")
    with pytest.raises(DataError, match="expected a whole number of pixels"):
        decode(io.BytesIO(bomb(200, 200)), 1, "x")


def test_a_long_thin_image_is_not_scaled_to_gigabytes(tmp_path):
    save(tmp_path / "a" / "1.png", (1, 20_000))
    with pytest.raises(DataError, match=r"a/1.png, 1 x 20000 and scaled .*over the limit"):
        open_folder(tmp_path)[0]


def test_files_that_only_look_like_images(tmp_path):
    (tmp_path / "a").mkdir()
    file = tmp_path / "a" / "1.png"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(DataError, match=r"a Git LFS pointer.*git lfs pull"):
        open_folder(tmp_path)[0]
    file.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    with pytest.raises(DataError, match="no readable image"):  # would run an interpreter of programs
        open_folder(tmp_path)[0]
    Image.fromarray(np.full((8, 8), 200, np.int32)).save(tmp_path / "a" / "2.tif")
    file.unlink()
    with pytest.raises(DataError, match="32 bits"):
        open_folder(tmp_path)[0]


def test_no_folder_of_ones_own_carries_a_name_of_the_catalog(tmp_path):
    save(tmp_path / "digits" / "0" / "1.png")
    assert open_data(tmp_path / "digits").key == "folder:digits"
    assert open_data(f"folder:{tmp_path / 'digits'}").key == "folder:digits"


def test_a_part_of_a_data_set_is_never_all_of_it(tmp_path):
    for i in range(6):
        save(tmp_path / "test" / "cat" / f"{i}.png", (32, 32))
    for dataset in (load_dataset("cifar10jpg", tmp_path), open_data(f"cifar10jpg:{tmp_path}")):
        assert evaluation_subset(dataset).id == "part6"
        assert evaluation_subset(dataset, 2).id == "n2-seed0-of-part6"
    assert evaluation_subset(load_dataset("digits")).id == "all"
