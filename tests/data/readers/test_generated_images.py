from __future__ import annotations

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch

from robustzoo.data import (
    DataError,
    GeneratedImages,
    MissingData,
    MixedImages,
    MixedOrder,
    TensorSource,
    load_dataset,
    training_batches,
)

SHAPE = (3, 32, 32)
PIXELS = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(20) % 10


def saved(tmp_path, save=np.savez, **arrays):
    save(tmp_path / "ddpm.npz", **arrays)
    return tmp_path / "ddpm.npz"


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, ">i4"])
def test_images_and_labels(tmp_path, save, dtype):
    file = saved(tmp_path, save, image=PIXELS, label=LABELS.astype(dtype), more=np.zeros(3))
    generated = GeneratedImages(file, SHAPE, 10)
    assert len(generated) == 20 and generated.image_shape == SHAPE and generated.num_classes == 10
    assert isinstance(generated._pixels, np.memmap) == (save is np.savez)
    for i in (0, 19):
        x, label = generated[i]
        assert x.dtype == torch.float32 and label == LABELS[i] and type(label) is int
        assert torch.equal(x, torch.from_numpy(PIXELS[i]).permute(2, 0, 1) / 255)
    stored = pickle.dumps(generated)
    assert len(stored) < 3000 and torch.equal(pickle.loads(stored)[7][0], generated[7][0])


def test_fortran_order_and_versions_of_the_format(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        for name, array in (("image", np.asfortranarray(PIXELS)), ("label", LABELS)):
            member = io.BytesIO()
            np.lib.format.write_array(member, array, version=(2, 0))
            file.writestr(f"{name}.npy", member.getvalue())
    generated = GeneratedImages(tmp_path / "a.npz", SHAPE, 10)
    assert torch.equal(generated[4][0], torch.from_numpy(PIXELS[4]).permute(2, 0, 1) / 255)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"images": PIXELS, "labels": LABELS}, r"has no array image and label: found images, labels"),
        ({"image": PIXELS}, r"has no array label: found image; expected image and label"),
        ({}, r"has no array image and label: found nothing"),
        ({"image": PIXELS / 255, "label": LABELS}, r"image is float64 \(20, 32, 32, 3\), expected uint8"),
        (
            {"image": PIXELS.transpose(0, 3, 1, 2), "label": LABELS},
            r"\(20, 3, 32, 32\), expected uint8 \(N, 32",
        ),
        ({"image": PIXELS[:, :28, :28], "label": LABELS}, r"\(20, 28, 28, 3\), expected uint8"),
        ({"image": PIXELS[0], "label": LABELS}, r"\(32, 32, 3\), expected uint8"),
        ({"image": PIXELS[:0], "label": LABELS[:0]}, r"\(0, 32, 32, 3\), expected uint8 .*N >= 1"),
        ({"image": np.uint8(0), "label": LABELS}, r"image is uint8 \(\), expected"),
        ({"image": PIXELS, "label": LABELS[:19]}, r"label is int64 \(19,\), expected integers \(20,\)"),
        ({"image": PIXELS, "label": LABELS[:, None]}, r"label is int64 \(20, 1\)"),
        ({"image": PIXELS, "label": LABELS / 1}, r"label is float64 \(20,\), expected integers"),
        ({"image": PIXELS, "label": LABELS + 1}, r"label 10 of image 9 is not in 0 to 9"),
        ({"image": PIXELS, "label": LABELS - 1}, r"label -1 of image 0 is not in 0 to 9"),
        (
            {"image": PIXELS, "label": LABELS.astype(np.uint64) + 2**63},
            r"label 9223372036854775808 of image 0",
        ),
    ],
)
def test_wrong_arrays_say_what_was_found(tmp_path, save, arrays, message):
    with pytest.raises(DataError, match=message):
        GeneratedImages(saved(tmp_path, save, **arrays), SHAPE, 10)


class Trap:
    """An object whose pickle, when loaded, raises."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('a pickle was opened')",))


@pytest.mark.parametrize("name", ["image", "label"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_objects_are_never_opened(tmp_path, name, save):
    arrays = {"image": PIXELS, "label": LABELS} | {name: np.array([Trap()] * 20, dtype=object)}
    with pytest.raises(DataError, match=r"image is object|label holds Python objects, which are pickles"):
        GeneratedImages(saved(tmp_path, save, **arrays), SHAPE, 10)


def test_files_that_are_no_npz_files(tmp_path):
    file = saved(tmp_path, image=PIXELS, label=LABELS)
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(b"\x93NUMPY")] ^= 1  # the first array no longer begins as one
    for content in (b"", b"<!doctype html>", whole[:-30], whole[: len(whole) // 2], bytes(flipped)):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"ddpm.npz is no whole .npz file .*fetch it again"):
            GeneratedImages(file, SHAPE, 10)
    np.save(tmp_path / "a.npy", PIXELS)
    with pytest.raises(DataError, match=r"no whole .npz file"):
        GeneratedImages(tmp_path / "a.npy", SHAPE, 10)
    for place, found in ((tmp_path, "is a folder"), (tmp_path / "none.npz", "is absent")):
        with pytest.raises(MissingData, match=rf"{found}; expected an .npz file"):
            GeneratedImages(place, SHAPE, 10)


def test_a_header_that_promises_more_than_there_is(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (10**6, 32, 32, 3)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("image.npy", header.getvalue() + bytes(3072))
        file.writestr("label.npy", b"")
    with pytest.raises(DataError, match=r"no whole .npz file"):
        GeneratedImages(tmp_path / "a.npz", SHAPE, 10)


def test_originals_then_generated(tmp_path):
    original = TensorSource(torch.rand(6, *SHAPE), torch.arange(6), num_classes=10)
    generated = GeneratedImages(saved(tmp_path, image=PIXELS, label=LABELS), SHAPE, 10)
    mixed = MixedImages(original, generated)
    assert len(mixed) == 26 and mixed.key == "data:tensors" and mixed.complete
    assert torch.equal(mixed[5][0], original[5][0]) and mixed[5][1] == 5
    assert torch.equal(mixed[6][0], generated[0][0]) and mixed[25][1] == generated[19][1]
    with pytest.raises(IndexError, match="0 to 25"):
        mixed[26]
    other = TensorSource(torch.rand(2, 3, 8, 8), torch.arange(2), num_classes=10)
    with pytest.raises(DataError, match=r"image_shape \(3, 8, 8\), the generated images \(3, 32, 32\)"):
        MixedImages(other, generated)
    with pytest.raises(DataError, match="num_classes 6, the generated images 10"):
        MixedImages(TensorSource(torch.rand(6, *SHAPE), torch.arange(6)), generated)


def test_crops_of_generated_images_have_keys_of_their_own(tmp_path):
    """An original and a generated image of the same number are cropped differently."""
    pixels = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0)).mul(255).byte()
    file = saved(tmp_path, image=pixels.permute(0, 2, 3, 1).numpy(), label=LABELS[:2])
    original = TensorSource(pixels / 255, torch.arange(2), num_classes=10)
    mixed = MixedImages(original, GeneratedImages(file, SHAPE, 10))
    assert torch.equal(mixed[0][0], mixed[2][0])
    one, other = (mixed.training_item(i, 0, 0, "crop")[0] for i in (0, 2))
    assert torch.equal(one, original.training_item(0, 0, 0, "crop")[0]) and not torch.equal(one, other)


def test_real_images_mixed_with_generated_ones(shared, tmp_path):
    train = load_dataset("cifar10jpg", shared / "data" / "cifar10jpg", "train")
    mixed = MixedImages(train, GeneratedImages(saved(tmp_path, image=PIXELS, label=LABELS), SHAPE, 10))
    order = MixedOrder(len(train), 20, batch_size=40, fraction=0.7, seed=0)
    options = {"augmentation": "crop", "micro_batch": 5}
    whole = list(training_batches(mixed, order, 0, 3, **options))
    for batch in whole:
        for i, x, y in zip(batch.ids.tolist(), batch.x, batch.y.tolist(), strict=True):
            assert y == (train.labels[i] if i < len(train) else LABELS[i - len(train)])
            assert 0 <= x.min() <= x.max() <= 1
    ranks = [list(training_batches(mixed, order, 2, 3, rank=r, world_size=2, **options)) for r in range(2)]
    for one, other in zip(whole[16:], ranks[0] + ranks[1], strict=True):
        assert all(map(torch.equal, one[1:], other[1:]))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_file_is_refused_or_reads_the_same(tmp_path, save):
    """Whatever a flipped byte does to the readers of zip, deflate and npy: DataError, and no other pixels."""
    file = saved(tmp_path, save, image=PIXELS[:3], label=LABELS[:3])
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    refused = 0
    for position in [
        *range(0, 150, 2),
        *rng.integers(0, len(whole), 60),
        *range(len(whole) - 240, len(whole), 2),
    ]:
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged)
        try:
            generated = GeneratedImages(file, SHAPE, 10)
        except DataError:
            refused += 1
        else:
            assert np.array_equal(generated._pixels, PIXELS[:3]) and generated.labels.tolist() == [0, 1, 2]
    assert refused > 100
