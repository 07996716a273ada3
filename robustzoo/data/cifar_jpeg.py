"""CIFAR-10 as the JPEG set `cifar10jpg`: made from the original, and two digests that tell whether it is.

A digest is order-independent: sha256 over the sorted sha256 of every image (its label as a byte, then its
content), since layouts keep images in different orders.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from robustzoo import atomic_files
from robustzoo.data.datasets import load_dataset
from robustzoo.data.image_dataset import DataError, MissingData
from robustzoo.data.readers.cifar import CLASSES
from robustzoo.data.readers.image_folder import ImageFolder
from robustzoo.data.readers.parquet_images import ParquetImages
from robustzoo.untrusted_files import read_bytes

QUALITY = 75
# Of the re-encode that the catalog's `cifar10jpg` is, measured with `digests`: split -> (encoded, pixels).
KNOWN = {
    "train": (
        "6713bdffc687c5e3489ebf568b0f2fb8f9d730e82ba22e77b550a932aa168428",
        "f06469416ef3a204c9f3bf3132b348352dd7b50853e8549aa3c99250bd50130b",
    ),
    "test": (
        "50c38556c507344ce977cec8c9e3ddb926ef893e59a79fba6bdddfe7dd3d18a0",
        "d9c76e7f5311d607383ea394c88083e21b67bca6ce719ecd26d01b390cbbe098",
    ),
}
_BATCHES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
_LARGEST_BATCH = 10**8  # bytes; the original's have 31 million
_PIXELS = 3 * 32 * 32
# What a batch of the original is made of; nothing else of a pickle is looked up, so that none can run code.
_ALLOWED = {
    (module, name)
    for module in ("numpy.core.multiarray", "numpy._core.multiarray", "numpy")
    for name in ("_reconstruct", "ndarray", "dtype")
}


def convert(place: str | Path, out: str | Path) -> dict[str, tuple[str, str]]:
    """Write the JPEG set, as two parquet files in the layout of the Hub, and return its `digests`.

    Args:
        place: CIFAR-10: the folder of its Python batches (or one that holds it), or any layout of
            `load_dataset("cifar10", place)`.
        out: a new or empty folder.

    Raises: DataError, MissingData: no CIFAR-10, or a part of it missing; `out` holds something.
    """
    out = Path(out).expanduser()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists and is not an empty folder; choose another place")
    files = {}
    for split in ("train", "test"):
        images = [(label, _encode(pixels)) for label, pixels in _originals(Path(place).expanduser(), split)]
        files[split] = sorted(images, key=lambda image: hashlib.sha256(image[1]).digest())
    out.mkdir(parents=True, exist_ok=True)
    for split, images in files.items():
        atomic_files.write_bytes(out / f"{split}-00000-of-00001.parquet", _parquet(images))
    return digests(out)


def digests(root: str | Path) -> dict[str, tuple[str, str]]:
    """Split -> (digest of the encoded bytes, digest of the decoded pixels), 64 hex digits each.

    root: the folder of cifar10jpg, in parquet files or class folders.
    """
    found = {}
    for split in ("train", "test"):
        encoded, pixels = [], []
        for label, content, decoded in _stored(root, split):
            encoded.append(_one(label, content))
            pixels.append(_one(label, decoded))
        found[split] = (_all(encoded), _all(pixels))
    return found


def told(found: dict[str, tuple[str, str]]) -> list[str]:
    """What the digests say, in words, a line each."""
    lines = []
    for split, (encoded, pixels) in found.items():
        known = KNOWN[split]
        if encoded == known[0]:
            verdict = "the same files as the catalog's cifar10jpg"
        elif pixels == known[1]:
            verdict = "the same pixels as the catalog's cifar10jpg, in other files"
        else:
            verdict = "NOT the catalog's cifar10jpg: results on them are not comparable with its"
        lines += [f"{split}: {verdict}", f"  encoded {encoded}", f"  pixels  {pixels}"]
    return lines


def _one(label: int, content: bytes) -> bytes:
    return hashlib.sha256(bytes([label]) + content).digest()


def _all(each: list[bytes]) -> str:
    return hashlib.sha256(b"".join(sorted(each))).hexdigest()


def _stored(root: str | Path, split: str) -> Iterator[tuple[int, bytes, bytes]]:
    """(label, encoded bytes, pixels) of every image of a split, with what is held out of training."""
    for part in ("train", "holdout") if split == "train" else ("test",):
        images = load_dataset("cifar10jpg", root, part)
        for i in range(len(images)):
            x, label = images[i]
            if isinstance(images, ParquetImages):
                content = images.encoded(i)
            else:
                assert isinstance(images, ImageFolder)
                content = images.file(i).read_bytes()
            yield label, content, (255 * x).round().byte().numpy().tobytes()


def _originals(place: Path, split: str) -> Iterator[tuple[int, np.ndarray]]:
    """(label, uint8 (32, 32, 3)) of every image of CIFAR-10."""
    folder = next((p for p in (place, place / "cifar-10-batches-py") if (p / "test_batch").is_file()), None)
    if folder is not None:
        yield from (item for name in _BATCHES[split] for item in _batch(folder / name))
        return
    for part in ("train", "holdout") if split == "train" else ("test",):
        images = load_dataset("cifar10", place, part)
        for i in range(len(images)):
            x, label = images[i]
            yield label, (255 * x).round().byte().permute(1, 2, 0).numpy()


class _Arrays(pickle.Unpickler):
    """A reader of pickles that knows arrays of NumPy and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch of CIFAR-10 does")
        return super().find_class(module, name)


def _batch(file: Path) -> Iterator[tuple[int, np.ndarray]]:
    try:
        content = _Arrays(io.BytesIO(read_bytes(file, _LARGEST_BATCH)), encoding="bytes").load()
        data, labels = np.asarray(content[b"data"]), [int(label) for label in content[b"labels"]]
        if (
            data.dtype != np.uint8
            or data.shape != (len(labels), _PIXELS)
            or not set(labels) <= set(range(10))
        ):
            raise ValueError(f"data of {data.dtype} {data.shape} and {len(labels)} labels")
    except FileNotFoundError as error:
        raise MissingData(f"{file} is missing; fetch the archive of CIFAR-10 again") from error
    except Exception as error:  # damaged pickles raise anything
        raise DataError(f"{file} is no batch of CIFAR-10 ({error}); fetch the archive again") from error
    yield from zip(labels, data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), strict=True)


def _encode(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def _parquet(images: list[tuple[int, bytes]]) -> bytes:
    features = {
        "img": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": list(CLASSES["cifar10jpg"])},
    }
    table = pa.table(
        {
            "img": pa.array(
                [{"bytes": content, "path": f"{i}.jpg"} for i, (_, content) in enumerate(images)]
            ),
            "label": pa.array([label for label, _ in images], pa.int64()),
        }
    )
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()
