"""dataset.json: what a folder of one's own images holds: their classes in order, their size, their splits.

`robustzoo data describe DIR` writes it from the images. Ids of such data are "own:NAME", no catalog's key.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.python_files import file_and_function
from robustzoo.registry.catalog import DATASETS, OWN_DATA_MARK
from robustzoo.untrusted_files import read_object

FILE = "dataset.json"
SCHEMA = "robustzoo.dataset/1"
OWN = f"own{OWN_DATA_MARK}"
SPLITS = ("train", "holdout", "test")
FOLDERS, PARQUET = "folders", "parquet"
HOLDOUT_SIZE = 1000  # training images kept out for choosing, a tenth where there are fewer than 10,000
RESERVED = (*DATASETS, "own", "folder")  # names that mean other data
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,49}", re.ASCII)
_LARGEST = 10**7  # bytes
_DESCRIBE = "write it anew with `robustzoo data describe`"


@dataclass(frozen=True, kw_only=True)
class DatasetFile:
    """What a dataset.json says.

    Attributes:
        name: of the data; their id is "own:" and this.
        reader: "folders" (a folder per class), "parquet" (the Hub's layout), or "FILE.py:FUNCTION", a
            function in a file beside dataset.json that gives a torch Dataset for "train" and for "test".
        classes: their names in the order of the labels; of folders, the names of these.
        image_size, channels: what the images are brought to, squares.
        mean, std: of the training pixels in [0, 1], one per channel.
        licence, source: of the images, in words.
        splits: "train", "test" and perhaps "holdout" -> [place, number of images]. The place is a folder, or
            the beginning of the parquet files' names; where train and test have one place, they are drawn.

    Raises:
        RobustzooError: a value outside its range.
    """

    name: str
    reader: str
    classes: tuple[str, ...]
    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    licence: str
    source: str
    splits: dict[str, tuple[str, int]]

    def __post_init__(self) -> None:
        for label in ("classes", "mean", "std"):
            value = getattr(self, label)
            object.__setattr__(self, label, tuple(value) if isinstance(value, list | tuple) else ())
        splits = self.splits if isinstance(self.splits, dict) else {}
        object.__setattr__(
            self, "splits", {k: tuple(v) if isinstance(v, list | tuple) else () for k, v in splits.items()}
        )
        for label, good, expected in self._checks():
            if not good:
                shown = f"{getattr(self, label)!r}"[:80]
                raise RobustzooError(f"{label} is {shown}; expected {expected}, or {_DESCRIBE}")

    def _checks(self) -> list[tuple[str, bool, str]]:
        named = isinstance(self.name, str) and _NAME.fullmatch(self.name) is not None
        return [
            (
                "name",
                named and self.name not in RESERVED,
                f"up to 50 lower-case letters, digits, _ and -, none of {', '.join(RESERVED)}, which mean "
                "other data (--name NAME)",
            ),
            (
                "reader",
                self.reader in (FOLDERS, PARQUET) or file_and_function(self.reader) is not None,
                f"{FOLDERS}, {PARQUET} or FILE.py:FUNCTION",
            ),
            (
                "classes",
                len(self.classes) >= 2
                and len(set(self.classes)) == len(self.classes)
                and all(
                    isinstance(name, str) and 0 < len(name) < 200 and name.isprintable()
                    for name in self.classes
                ),
                "the names of at least 2 classes, each once",
            ),
            ("image_size", _whole(self.image_size, 1, 4096), "a whole number of pixels"),
            ("channels", self.channels in (1, 3) and type(self.channels) is int, "1 or 3"),
            ("mean", self._per_channel(self.mean), "one number per channel"),
            ("std", self._per_channel(self.std) and min(self.std) > 0, "one number above 0 per channel"),
            *((key, _line(getattr(self, key)), "one line of text") for key in ("licence", "source")),
            (
                "splits",
                {"train", "test"} <= self.splits.keys() <= set(SPLITS)
                and all(
                    len(v) == 2 and _inside(v[0]) and _whole(v[1], 1, 10**9) for v in self.splits.values()
                ),
                'train, test and perhaps holdout, each ["PLACE", IMAGES] with a place in the folder',
            ),
        ]

    def _per_channel(self, values: tuple[Any, ...]) -> bool:
        numbers = all(type(v) in (int, float) and math.isfinite(v) for v in values)
        return numbers and len(values) == self.channels

    @property
    def id(self) -> str:
        """What Evidence calls the data."""
        return OWN + self.name

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.image_size, self.image_size

    @property
    def training_images(self) -> int:
        """Images of the split "train", without those held out."""
        images = self.splits["train"][1]
        return images if "holdout" in self.splits else images - min(HOLDOUT_SIZE, images // 10)

    def recipe_values(self) -> dict[str, Any]:
        """The fields of a recipe that trains on these images, those that they decide."""
        return {
            "dataset": self.id,
            "training_data": self.id,
            "training_images": self.training_images,
            "image_size": self.image_size,
            "channels": self.channels,
            "num_classes": len(self.classes),
            "classes": self.classes,
            "mean": self.mean,
            "std": self.std,
        }

    def sources(self) -> dict[str, str]:
        """Field -> where these values come from."""
        of = f"{FILE} of {self.name}"
        stated = f"{of}; licence of the images: {self.licence}; source: {self.source}"
        return dict.fromkeys(self.recipe_values(), of) | {"dataset": stated}

    def write(self, file: Path) -> None:
        """Write the file, all or nothing."""
        document = {"schema": SCHEMA, **asdict(self)}
        atomic_files.write_text(file, json.dumps(document, indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, file: Path) -> DatasetFile:
        """Raises: RobustzooError, naming the file and what is wrong."""
        try:
            document = read_object(file, _LARGEST)
        except OSError as error:
            raise RobustzooError(f"{file} cannot be read ({error.strerror or error}); {_DESCRIBE}") from error
        keys = ["schema", *(field.name for field in fields(cls))]
        if document.get("schema") != SCHEMA or sorted(document) != sorted(keys):
            raise RobustzooError(
                f"{file} has the keys {', '.join(map(str, document))[:200]}; expected {', '.join(keys)} with "
                f"the schema {SCHEMA!r}; {_DESCRIBE}"
            )
        try:
            return cls(**{key: document[key] for key in keys[1:]})
        except RobustzooError as error:
            raise RobustzooError(f"{file}: {error}") from error


def file_at(place: str | Path) -> Path | None:
    """The dataset.json of a folder, or of the folder of FILE.py:FUNCTION; None where there is none."""
    code = file_and_function(place)
    folder = Path(place).expanduser() if code is None else code[0].expanduser().parent
    file = folder if folder.name == FILE else folder / FILE
    return file if os.path.isfile(file) else None


def described(place: str | Path) -> DatasetFile | None:
    """What the dataset.json at a place says; None where there is none. Raises: RobustzooError."""
    file = file_at(place)
    return None if file is None else DatasetFile.read(file)


def is_own(dataset_id: str | None) -> bool:
    """Whether it is the id of images of one's own."""
    return dataset_id is not None and dataset_id.startswith(OWN)


def expand(changes: Mapping[str, object], notes: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Changes to a recipe, and their sources, with `dataset=DIR` written out as what dataset.json says.

    What is changed beside it stays. Raises: RobustzooError where there is no such folder.
    """
    place = changes.get("dataset")
    if not isinstance(place, str | Path) or str(place) in DATASETS or is_own(str(place)):
        return dict(changes), dict(notes)
    found = described(place)
    if found is None:
        raise RobustzooError(
            f"dataset: {str(place)[:80]!r} is none of {', '.join(DATASETS)}, and no folder with a {FILE}: "
            "give the folder of your images, after `robustzoo data describe DIR`"
        )
    given = {key: value for key, value in changes.items() if key != "dataset"}
    if "data_range" in given:  # sets mean and std in other words
        values = {k: v for k, v in found.recipe_values().items() if k not in ("mean", "std")}
    else:
        values = found.recipe_values()
    return values | given, found.sources() | dict(notes)


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _line(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 300 and value.isprintable()


def _inside(value: Any) -> bool:
    if not isinstance(value, str) or not value or "\\" in value or ":" in value:
        return False
    return not Path(value).is_absolute() and ".." not in Path(value).parts
