"""Which label a class folder means: by its number, by its place among the others, or as a file says."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from robustzoo.data.image_dataset import DataError
from robustzoo.registry.names import did_you_mean

_NUMBER = re.compile(r"[0-9]+")
_WNID = re.compile(r"n[0-9]{8}")
_IMAGENET_CLASSES = 1000
_MOST_LABEL = 10**6  # a folder of a larger number is no label
_MOST_BYTES = 10_000_000  # of a file of class names


@dataclass(frozen=True)
class ClassOrder:
    """index: folder -> label. names: one per label. how: in words. warning: what else may be meant. stated:
    the labels are a model's outputs, and not places among the folders."""

    index: dict[str, int]
    names: tuple[str, ...]
    how: str
    warning: str = ""
    stated: bool = False

    def text(self) -> str:
        """The mapping for people, shortened where it is long."""
        return f"class folders, {self.how}: {mapping_text(self.index)}"


def mapping_text(index: Mapping[str, int]) -> str:
    """Name -> label, in the order of the labels, shortened where it is long."""
    pairs = [f"{label} = {name!r}" for name, label in sorted(index.items(), key=lambda p: p[1])]
    return ", ".join([*pairs[:12], "...", *pairs[-3:]] if len(pairs) > 20 else pairs)


def order_of(folders: Sequence[str], num_classes: int | None = None) -> ClassOrder:
    """The labels that folders of these names mean where nobody states them.

    Names that are numbers are the labels themselves where they cannot be places: with a gap, or fewer than
    the model's `num_classes` and all below it. Names of ImageNet's synsets are its classes for a model with
    1,000 of them. All others count from 0, those that differ only in numbers by these, others as text.
    """
    by_text, by_number = sorted(folders), sorted(folders, key=_parts)
    if all(map(_WNID.fullmatch, folders)) and len(folders) < _IMAGENET_CLASSES:
        if num_classes == _IMAGENET_CLASSES and (index := _of_imagenet(folders)) is not None:
            return index
        return _by_place(
            by_text,
            "in their order",
            ""
            if num_classes == len(folders)
            else "their names are synsets of ImageNet, and they are counted "
            "from 0: for a model of all its 1,000 classes give --data imagenet:DIR, or --classes FILE",
        )
    if all(map(_NUMBER.fullmatch, folders)):
        numbers = [int(name) for name in by_number]
        places = numbers in ([*range(len(numbers))], [*range(1, len(numbers) + 1)])
        few = num_classes is not None and len(numbers) < num_classes and numbers[-1] < num_classes
        if len(set(numbers)) == len(numbers) and (not places or few) and numbers[-1] < _MOST_LABEL:
            index = dict(zip(by_number, numbers, strict=True))
            return ClassOrder(
                index,
                tuple(map(str, range(num_classes or numbers[-1] + 1))),
                "whose numbers are the labels",
                ""
                if numbers == [*range(len(numbers))]
                else f"the numbers of the class folders ({by_number[0]} to {by_number[-1]}, {len(numbers)} "
                "in all) are taken for labels that count from 0; if they are not, state the classes in order "
                "with --classes FILE",
            )
    alike = len({_NUMBER.sub("#", name) for name in folders}) == 1
    if by_text == by_number:
        numbered = all(map(_NUMBER.fullmatch, folders)) and int(by_number[-1]) >= _MOST_LABEL
        return _by_place(
            by_text,
            "in their order",
            "the numbers of the class folders are too large for labels, and they are counted from 0; if that "
            "is not meant, state the classes in order with --classes FILE"
            if numbered
            else "",
        )
    other = ", ".join((by_text if alike else by_number)[:4])
    warning = (
        f"ordered {'as text' if alike else 'by their numbers'} the class folders would be {other}, ... "
        f"{'(as torchvision has them)' if alike else ''}".strip()
        + "; if the model was trained with that order, state it with --classes FILE, one name a line"
    )
    if alike:
        return _by_place(by_number, "ordered by their numbers", warning)
    return _by_place(by_text, "ordered as text", warning)


def stated_order(folders: Sequence[str], stated: str | Path | Sequence[str]) -> ClassOrder:
    """The labels that a list of class names gives, or a file: the names in order, one a line, or lines of
    "name, tab, label", with more behind another tab.

    Raises DataError where the file is no such list, or has no class for one of the folders.
    """
    if isinstance(stated, str | Path):
        index, where = read_classes(Path(stated)), str(stated)
    else:
        index, where = {str(name): label for label, name in enumerate(stated)}, "classes"
        if len(index) < len(stated):
            raise DataError(
                "classes hold a name twice; expected the names of the classes in order, each once"
            )
    for name in folders:
        if name not in index:
            raise DataError(
                f"the class folder {name!r} is not among the {len(index)} names of {where}."
                f"{did_you_mean(name, list(index))} Add it there, in its place, or remove the folder"
            )
    names = {label: name for name, label in index.items()}
    return ClassOrder(
        {name: index[name] for name in folders},
        tuple(names.get(label, f"class {label}") for label in range(max(names) + 1)),
        f"as {where} says",
        stated=True,
    )


def read_classes(file: Path) -> dict[str, int]:
    """Class name -> label, as `stated_order` takes it. Raises DataError."""
    expected = "expected a text file with the class names in order, one a line (or name, tab, label)"
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            raise DataError(
                f"{file} is {'too large' if stat.S_ISREG(found.st_mode) else 'no file'}; {expected}"
            )
        lines = file.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read ({error}); {expected}") from error
    while lines and not lines[-1].strip():
        del lines[-1]
    index: dict[str, int] = {}
    for number, line in enumerate(lines):
        name, tab, rest = line.strip("\r\n").partition("\t")
        label = rest.partition("\t")[0].strip() if tab else str(number)
        if not name.strip() or not (label.isascii() and label.isdecimal() and len(label) < 7):
            raise DataError(f"{file}, line {number + 1}: {line[:80]!r}; {expected}")
        if name.strip() in index or int(label) in index.values():
            raise DataError(f"{file}, line {number + 1}: {line[:80]!r} is there already; {expected}")
        index[name.strip()] = int(label)
    if not index:
        raise DataError(f"{file} is empty; {expected}")
    return index


def imagenet_synsets() -> list[str] | None:
    """ImageNet's 1,000 synsets in the order of its labels; None where the installed timm has no list."""
    # A data file of the installed timm, found without importing it: timm's code belongs to robustzoo.models.
    spec = find_spec("timm")
    for place in (spec.submodule_search_locations or []) if spec else []:
        synsets = Path(place, "data", "_info", "imagenet_synsets.txt")
        if synsets.is_file():
            return synsets.read_text("utf-8").split()
    return None


def _of_imagenet(folders: Sequence[str]) -> ClassOrder | None:
    known = imagenet_synsets()
    if known is None or not set(folders) <= set(known):
        return None
    index = {name: label for label, name in enumerate(known)}
    return ClassOrder(
        {name: index[name] for name in folders}, tuple(known), "synsets of ImageNet-1k", stated=True
    )


def _by_place(folders: Sequence[str], how: str, warning: str = "") -> ClassOrder:
    return ClassOrder({name: i for i, name in enumerate(folders)}, tuple(folders), f"counted {how}", warning)


def _parts(name: str) -> list[tuple[int, int, str]]:
    """Sorts text as text and the numbers in it as numbers; equal numbers in another spelling as text."""
    cut = re.split(r"([0-9]+)", name)
    return [(1, int(part), part) if i % 2 else (0, 0, part) for i, part in enumerate(cut)]
