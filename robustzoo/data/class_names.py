"""The classes of images, found by their names among those of a model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import copy
from typing import Any

from robustzoo.data.class_order import mapping_text
from robustzoo.data.image_dataset import AS_STATED, BY_NAME, BY_PLACE, DataError, ImageDataset
from robustzoo.registry.catalog import OWN_DATA_MARK, is_catalog_key
from robustzoo.registry.dataset_files import OWN

_SHOWN = 6
_FOLDER = f"folder{OWN_DATA_MARK}"
_FOLDERS = "class folders, "  # how the note of a folder's order begins


def by_name(dataset: ImageDataset, names: Sequence[str]) -> ImageDataset:
    """The images with the labels that a model's classes of their names have, where both have names.

    Letter case, spaces, _ and - make no difference. Data of the catalog, and those whose labels somebody has
    stated, are returned as they are, and so are numbers, which are no names.

    Raises:
        DataError: a class of the data is none of the model's.
    """
    if dataset.numbered != BY_PLACE or is_catalog_key(dataset.key) or tuple(names) == dataset.classes:
        return dataset
    if not are_names(names):
        return dataset
    if not are_names(dataset.classes):
        return _with_numbers(dataset, names)
    places = places_among(dataset.classes, names)
    if places is None:
        strangers = [name for name in dataset.classes if places_among([name], names) is None]
        wrong = f"{_some(strangers)} not among these" if strangers else "two of them are one of these"
        raise DataError(
            f"the classes of {dataset.key} are {_some(dataset.classes)}, and the model's {_some(names)}: "
            f"{wrong}. Say which output each class is: give the folder of class folders as folder:DIR with "
            "--classes FILE, its class names in the order of the model's outputs, one a line (images from "
            "Python: labels that are the outputs, and no names)"
        )
    return found_by_name(dataset, places, names)


def _with_numbers(dataset: ImageDataset, names: Sequence[str]) -> ImageDataset:
    """The images whose classes are numbers, with a note of which outputs these are taken for."""
    if not dataset.key.startswith((_FOLDER, OWN)):
        return dataset  # labels from Python are the outputs
    made = copy(dataset)
    outputs = {name: place for place, name in enumerate(names)}
    said = f"classes of {dataset.key} are numbers, taken for the model's outputs: {mapping_text(outputs)}"
    made.notes = (*(note for note in dataset.notes if note != said), said)
    return made


def found_by_name(dataset: ImageDataset, places: Sequence[int], names: Sequence[str]) -> ImageDataset:
    """The images relabelled, which their notes say."""
    made = dataset.relabelled(places, names, BY_NAME)
    index = dict(zip(dataset.classes, places, strict=True))
    kept = [note for note in dataset.notes if not note.startswith(_FOLDERS)]
    made.warnings = tuple(warning for warning in dataset.warnings if "--classes FILE" not in warning)
    said = f"classes of {dataset.key}, by their names among the model's: {mapping_text(index)}"
    made.notes = (*kept, said)
    return made


def labelled_as_stated(dataset: ImageDataset, names: Sequence[str] | None) -> ImageDataset:
    """The images with labels as an Evidence has them. names: of its classes, where it states them.

    What a model calls its classes moves no label afterwards.
    """
    if names is not None and dataset.numbered == BY_PLACE and dataset.classes != tuple(names):
        places = places_among(dataset.classes, names)
        if places is not None:
            return found_by_name(dataset, places, names)
    made = copy(dataset)
    made.numbered = AS_STATED if dataset.numbered == BY_PLACE else dataset.numbered
    return made


def places_among(classes: Sequence[str], names: Sequence[str]) -> list[int] | None:
    """Where each of `classes` stands in `names`; None where one does not, or two stand at one place."""
    exact = {name: place for place, name in enumerate(names)}
    if all(name in exact for name in classes):
        return [exact[name] for name in classes]
    loose = {_plain(name): place for place, name in enumerate(names)}
    if len(loose) < len(names):
        return None
    places = [loose.get(_plain(name), -1) for name in classes]
    return None if -1 in places or len(set(places)) < len(places) else places


def are_names(classes: Sequence[str]) -> bool:
    """Whether these tell classes apart, and are not numbers."""
    return len(set(classes)) == len(classes) and not all(name.strip().isdecimal() for name in classes)


def names_of(model: Any, num_classes: int | None) -> tuple[str, ...]:
    """What a model calls its classes in its attribute `classes`; () where it does not, or not all."""
    names = getattr(model, "classes", None)
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) != (num_classes or len(names)):
        return ()
    return tuple(names) if all(isinstance(name, str) for name in names) else ()


def _plain(name: str) -> str:
    return re.sub("[ _-]+", " ", name.casefold()).strip()


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN]))
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown
