"""What a folder of anyone's images holds, measured: the dataset.json that others read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from robustzoo.data.class_order import order_of
from robustzoo.data.image_dataset import DataError, MissingData, listing
from robustzoo.data.items import read_item
from robustzoo.data.order import permutation
from robustzoo.data.readers.described_images import dataset_of, described_split, open_place
from robustzoo.data.readers.image_folder import class_folders
from robustzoo.data.readers.parquet_shards import Shard, find_shards, has_shards
from robustzoo.registry.dataset_files import FOLDERS, PARQUET, RESERVED, DatasetFile

MEASURED = 2000  # training images, drawn, that sizes, mean and deviation rest on
_TEST_SHARE = 5  # one of so many images is for testing, where no folder says which
# Names of folders and parquet files -> the split that they are, the first that is there.
_PLACES = {"train": ("train", "training"), "test": ("test", "testing", "validation", "valid", "val")}
_MOST_CLASSES = 10**6


def describe_images(
    folder: Path,
    code: tuple[Path, str] | None = None,
    *,
    name: str | None = None,
    image_size: int | None = None,
    licence: str = "unknown",
    source: str = "unknown",
) -> tuple[DatasetFile, list[str]]:
    """What dataset.json should say of a folder's images, or of a function's beside it, and notes for people.

    Args:
        code: (FILE.py, function), which is run: function(split) gives a torch Dataset for "train" and "test".
        name: default: made of the folder's name. image_size: default: the images' own where they are squares
            of one size, else 32 for small ones and 224.

    Raises: MissingData, DataError: no such images. RobustzooError: the function fails.
    """
    made_of = re.sub("[^a-z0-9_-]+", "-", folder.resolve().name.lower())[:50].strip("-_")
    if name is None and made_of in RESERVED:
        raise DataError(
            f"the folder is called {made_of}, and so are other data: say what its images are called with "
            "--name NAME"
        )
    name = name or made_of or "images"
    with listing("the data folder"):
        reader, classes, splits, notes = _layout(folder, code, name)
    draft: dict[str, Any] = {
        "name": name,
        "reader": reader,
        "classes": classes,
        "licence": licence,
        "source": source,
        "splits": splits,
    }
    sizes, grey = _sizes(folder, code, draft)
    size = image_size or _usual(sizes)
    channels = 1 if grey else 3
    draft |= {"image_size": size, "channels": channels, "mean": [0.0] * channels, "std": [1.0] * channels}
    place = folder if code is None else f"{code[0]}:{code[1]}"
    trained = described_split(DatasetFile(**draft), folder, place, "train")
    mean, std, looked_at = _moments(trained[i][0] for i in _drawn(len(trained)))
    made = DatasetFile(**(draft | {"mean": mean, "std": std}))
    smallest, largest = min(sizes), max(sizes)
    said = [
        f"{made.id}: {len(classes)} classes in this order: "
        f"{', '.join(classes[:20])}{', ...' * (len(classes) > 20)}",
        "; ".join(f"{split}: {number:,} images in {place}" for split, (place, number) in made.splits.items()),
        *notes,
        *_without_images(made, folder, place),
        f"sizes (height x width) of {len(sizes):,} training images: {_by(smallest)} to {_by(largest)}; "
        f"brought to {size} x {size}, {'grey' if grey else 'RGB'}",
        f"mean {', '.join(map(str, mean))} and std {', '.join(map(str, std))} of the pixels in [0, 1] of "
        f"{looked_at:,} training images",
    ]
    return made, said


def _without_images(made: DatasetFile, folder: Path, place: Path | str) -> list[str]:
    """Which classes have no image in a split, or in none."""
    absent = {}
    for split in made.splits:
        labels = np.asarray(described_split(made, folder, place, split).labels)
        absent[split] = [name for label, name in enumerate(made.classes) if label not in labels]
    nowhere = [name for name in made.classes if all(name in names for names in absent.values())]
    said = [f"no images at all of {_named(nowhere)}: take it out of the classes"] if nowhere else []
    for split, names in absent.items():
        if some := [name for name in names if name not in nowhere]:
            said.append(f"the split {split} has no images of {_named(some)}")
    return said


def _named(names: list[str]) -> str:
    return ", ".join(map(repr, names[:10])) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _layout(
    folder: Path, code: tuple[Path, str] | None, name: str
) -> tuple[str, list[str], dict[str, Any], list[str]]:
    """(reader, classes, splits with their numbers of images, notes)."""
    if code is not None:
        parts = {split: dataset_of(code, split) for split in ("train", "test")}
        names = getattr(parts["train"], "classes", None)
        if names is None:
            most = max(read_item(part[i], i)[1] for part in parts.values() for i in range(len(part)))
            names = range(most + 1)
        splits = {split: (split, len(part)) for split, part in parts.items()}
        return f"{code[0].name}:{code[1]}", list(map(str, names)), splits, []
    if not folder.is_dir():
        raise MissingData(f"no folder {folder}; expected one with class folders of images, or parquet files")
    if has_shards(folder, _PLACES["train"]):
        return _parquet(folder)
    inside = {n.lower(): n for n in reversed(class_folders(folder))}  # Train and TEST are splits too
    inside |= {n: n for n in inside.values()}
    found = {split: next((inside[n] for n in names if n in inside), None) for split, names in _PLACES.items()}
    if found["train"] is None and found["test"] is not None and class_folders(folder / found["test"]):
        raise DataError(
            f"{folder} has {found['test']}/ and none of {', '.join(_PLACES['train'])}; give the training "
            "images such a folder, or put all images into one folder per class"
        )
    notes = []
    if found["train"] is None:
        found = {"train": ".", "test": "."}
        notes = [f"no train and test folders: one of {_TEST_SHARE} images is drawn for testing"]
    elif found["test"] is None:
        raise DataError(
            f"{folder} has {found['train']}/ and none of {', '.join(_PLACES['test'])}; give the test images "
            "such a folder, or put all images into one folder per class"
        )
    else:
        held_out = next(
            (inside[n] for n in ("validation", "valid", "val") if n in inside and inside[n] != found["test"]),
            None,
        )
        found |= {"holdout": held_out} if held_out else {}
    order = order_of(class_folders(folder / str(found["train"])))
    if len(order.index) < 2:
        raise DataError(
            f"{folder / str(found['train'])} has {len(order.index)} class folders; expected at least 2"
        )
    classes = sorted(order.index, key=lambda name: order.index[name])
    draft = {"name": name, "reader": FOLDERS, "classes": classes}
    splits = {split: (place, _count(folder, draft, str(place))) for split, place in found.items()}
    if found["train"] == found["test"]:
        images = splits["train"][1]
        splits = {"train": (".", images - images // _TEST_SHARE), "test": (".", images // _TEST_SHARE)}
    return FOLDERS, classes, splits, notes + ([order.warning] if order.warning else [])


def _parquet(folder: Path) -> tuple[str, list[str], dict[str, Any], list[str]]:
    splits, classes, largest = {}, None, 0
    for split, names in _PLACES.items():
        place = next((n for n in names if has_shards(folder, (n,))), None)
        if place is None:
            raise MissingData(
                f"{folder} has none of {', '.join(f'{n}-*.parquet' for n in names)}; fetch them too"
            )
        shards = [Shard(file) for file in find_shards(str(folder), folder, [place])]
        labels = np.concatenate([shard.labels(_MOST_CLASSES) for shard in shards])
        classes = classes or shards[0].class_names
        largest = max(largest, int(labels.max()) + 1)
        splits[split] = (place, len(labels))
    return PARQUET, list(classes or map(str, range(largest))), splits, []


def _count(folder: Path, draft: dict[str, Any], place: str) -> int:
    return len(open_place(_drafted(draft), folder, place, "train"))


def _drafted(draft: dict[str, Any]) -> DatasetFile:
    """With values of no meaning for what is not known yet."""
    unknown: dict[str, Any] = {
        "name": "x",
        "image_size": 1,
        "channels": 3,
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
        "licence": "unknown",
        "source": "unknown",
        "splits": {"train": (".", 1), "test": (".", 1)},
    }
    return DatasetFile(**(unknown | draft))


def _sizes(folder: Path, code: Any, draft: dict[str, Any]) -> tuple[list[tuple[int, int]], bool]:
    """(height, width) of training images, and whether all are grey."""
    sizes, grey = [], True
    if code is not None:
        dataset = dataset_of(code, "train")
        for i in _drawn(len(dataset)):
            shape = tuple(read_item(dataset[i], i)[0].shape)
            sizes.append(shape[1:])
            grey = grey and shape[0] == 1
        return sizes, grey
    images = open_place(_drafted(draft), folder, draft["splits"]["train"][0], "train")
    for i in _drawn(len(images)):
        image, _ = images._photograph(i)
        pixels = np.asarray(image)
        sizes.append((image.height, image.width))
        grey = grey and bool((pixels == pixels[..., :1]).all())
    return sizes, grey


def _moments(images: Iterator[Tensor]) -> tuple[list[float], list[float], int]:
    """Mean and standard deviation per channel, to 4 digits, and of how many images."""
    number, mean, square = 0, 0.0, 0.0
    for x in images:
        x = x.double().flatten(1)
        number, mean, square = number + 1, mean + x.mean(1), square + (x * x).mean(1)
    mean, square = mean / number, square / number
    std = (square - mean * mean).clamp(min=1e-4).sqrt()
    return [round(v, 4) for v in mean.tolist()], [round(v, 4) for v in std.tolist()], number


def _drawn(n: int) -> list[int]:
    return sorted(permutation(n, 0)[:MEASURED].tolist())


def _usual(sizes: list[tuple[int, int]]) -> int:
    first = sizes[0]
    if first[0] == first[1] <= 224 and set(sizes) == {first}:
        return first[0]
    return 32 if sorted(map(min, sizes))[len(sizes) // 2] < 64 else 224


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
