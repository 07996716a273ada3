"""Imported: what a folder says of weights that others trained, in place of a recipe."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.digests import json_digest
from robustzoo.registry.extensions import REFUSED, TIMM, is_plain
from robustzoo.registry.recipes import Recipe
from robustzoo.registry.threat_model import ThreatModel
from robustzoo.streams import is_one_line

PREFIX = "import:"  # of the name: no name of the registry has a colon without being a package's
PYTHON = "python:"
_NAME = re.compile(r"import:[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_FILE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\.py", re.ASCII)
_SHA256 = re.compile("[0-9a-f]{64}")
_SPDX = re.compile("[a-z0-9][a-z0-9.+-]*")
_LONGEST = 1000  # characters


def spdx(text: str) -> str:
    """The identifier of a licence as the Hub and our files have it, in lower case: SPDX's have no case.

    Raises:
        RobustzooError: no single identifier.
    """
    found = text.strip().lower()
    if not _SPDX.fullmatch(found):
        raise RobustzooError(
            f"the licence {text[:80]!r} is no SPDX identifier; expected one of spdx.org/licenses, for "
            "example apache-2.0, mit or cc-by-4.0 (the Hub also takes `other`)"
        )
    return found


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Weights of others, and how to use them.

    Attributes:
        name: "import:" and what the importer calls it.
        architecture: "timm:NAME", or "python:FUNCTION" of `code_file`.
        model_args: keyword arguments of timm's create_model beside the number of classes; JSON-able.
        code_file, code_sha256: a file of Python in the folder that builds the network; None with timm.
        dataset: key of the catalog that it classifies; None for other images.
        image_size, channels, num_classes: of its input and output.
        mean, std: of the pixels in [0, 1] that its network expects normalised, one per channel.
        normalisation: where mean and std come from, in words.
        file, file_sha256: the checkpoint that was read. part: which weights of it, in words.
        license: of the weights, SPDX identifier in lower case, or "unknown".

    Raises:
        RobustzooError: a value outside its range.
    """

    name: str
    architecture: str
    model_args: dict[str, Any]
    code_file: str | None
    code_sha256: str | None
    dataset: str | None
    threat_model: ThreatModel
    image_size: int
    channels: int
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    normalisation: str
    file: str
    file_sha256: str
    part: str
    license: str

    base_name = ""  # it is no recipe of the registry, changed or not

    def __post_init__(self) -> None:
        for label in ("mean", "std"):
            values = getattr(self, label)
            object.__setattr__(self, label, tuple(values) if isinstance(values, list | tuple) else ())
        object.__setattr__(self, "threat_model", ThreatModel.parse(self.threat_model))
        for label, good, expected in self._checks():
            if not good:
                shown = f"{getattr(self, label)!r}"[:80]
                raise RobustzooError(f"imported: {label} is {shown}; expected {expected}")

    def _checks(self) -> list[tuple[str, bool, str]]:
        code = self.code_file is not None
        texts = ("normalisation", "file", "part")
        return [
            ("name", _matches(_NAME, self.name), "import: and up to 100 letters, digits or ._+-"),
            (
                "architecture",
                _matches(
                    re.compile(f"{PYTHON if code else TIMM}[A-Za-z0-9_][A-Za-z0-9_.]{{0,99}}"),
                    self.architecture,
                ),
                f"{'python:FUNCTION' if code else 'timm:NAME'}",
            ),
            (
                "model_args",
                is_plain(self.model_args)
                and not {*REFUSED} & self.model_args.keys()
                and not (code and self.model_args),
                f"an object of timm's keyword arguments without {', '.join(REFUSED)}",
            ),
            ("code_file", not code or _matches(_FILE, self.code_file), "the name of a file of Python"),
            (
                "code_sha256",
                _matches(_SHA256, self.code_sha256) if code else self.code_sha256 is None,
                "64 hex digits",
            ),
            ("dataset", self.dataset is None or self.dataset in DATASETS, "a key of the catalog, or null"),
            ("image_size", _whole(self.image_size, 1, 4096), "a whole number of pixels"),
            ("channels", _whole(self.channels, 1, 1024), "a whole number of channels"),
            ("num_classes", _whole(self.num_classes, 2, 10**6), "at least 2 classes"),
            ("mean", self._per_channel(self.mean), "one finite number per channel"),
            ("std", self._per_channel(self.std) and min(self.std) > 0, "one number above 0 per channel"),
            *((key, _line(getattr(self, key)), "one line of printable text") for key in texts),
            ("file_sha256", _matches(_SHA256, self.file_sha256), "64 hex digits"),
            ("license", _matches(_SPDX, self.license), "an SPDX identifier in lower case, or unknown"),
        ]

    def _per_channel(self, values: tuple[Any, ...]) -> bool:
        return len(values) == self.channels and all(type(v) is float and math.isfinite(v) for v in values)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.image_size, self.image_size

    @property
    def digest(self) -> str:
        """sha256 hex of the document: of all that is said."""
        return json_digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """A document for `json.dumps`; `from_json` gives the same."""
        document = asdict(self) | {"threat_model": str(self.threat_model)}
        return json.loads(json.dumps(document, allow_nan=False))

    @classmethod
    def from_json(cls, document: Any) -> Imported:
        """Raises: RobustzooError for an unknown or missing key, or a value outside its range."""
        names = [field.name for field in fields(cls)]
        if not isinstance(document, Mapping) or sorted(map(str, document)) != sorted(names):
            found = sorted(map(str, document)) if isinstance(document, Mapping) else type(document).__name__
            raise RobustzooError(f"imported has {str(found)[:200]}; expected the keys {', '.join(names)}")
        return cls(**document)


def is_imported(name: str) -> bool:
    """Whether it is the name of an imported model."""
    return _matches(_NAME, name)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _line(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST and is_one_line(value)


def method_tags(described: Recipe | Imported) -> list[str]:
    """What a card's tags say of the training: the loss and its defences, or that others did it."""
    return ["imported"] if isinstance(described, Imported) else [described.loss, *described.defences]
