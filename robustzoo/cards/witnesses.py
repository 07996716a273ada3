"""Witnesses: for each broken image a point that fools the model, so that one forward proves it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.untrusted_files import read_bytes

if TYPE_CHECKING:
    import numpy as np

# Tensor of the file -> (safetensors dtype, number of axes).
_LAYOUT = {
    "ids_uint8": ("I64", 1),
    "pixels_uint8": ("U8", 4),
    "margins_uint8": ("F32", 1),
    "ids_float32": ("I64", 1),
    "pixels_float32": ("F32", 4),
    "margins_float32": ("F32", 1),
}


def round_to_uint8(pixels: np.ndarray) -> np.ndarray:
    """The nearest points with 8-bit pixels, as float32 k/255: the value that a uint8 witness replays with.

    Args:
        pixels: float32, any shape, in [0, 1].
    """
    import numpy as np

    return np.rint(np.asarray(pixels, np.float32) * np.float32(255)).astype(np.float32) / np.float32(255)


def compact(pixels: np.ndarray) -> np.ndarray:
    """The point as it is kept and stored: uint8 where all its pixels are k/255, else the float32 it was.

    Args:
        pixels: float32, any shape, in [0, 1].
    """
    import numpy as np

    if (pixels == round_to_uint8(pixels)).all():
        return np.rint(pixels * np.float32(255)).astype(np.uint8)
    return pixels


class Witnesses:
    """Points that fool the model, each within the threat model's ball and [0, 1].

    ids: int64 (n,), ascending and unique; pixels: float32 (n, C, H, W) in [0, 1]; margins: float32 (n,), by
    how much the wrong class leads in logits. Keeping and saving are lossless: a point whose pixels are all
    k/255 is held as uint8, any other as float32. So round a point to 1/255 before checking that it still
    fools the model inside the ball, not after.

    Raises:
        RobustzooError: wrong dtypes or shapes, repeated ids, or pixels outside [0, 1].
    """

    def __init__(self, ids: np.ndarray, pixels: np.ndarray, margins: np.ndarray) -> None:
        _check(ids, pixels, margins)
        exact = (pixels == round_to_uint8(pixels)).all(axis=(1, 2, 3))
        self._keep(ids, margins, exact, compact(pixels[exact]), pixels[~exact])

    def _keep(
        self,
        ids: np.ndarray,
        margins: np.ndarray,
        quantised: np.ndarray,
        eight_bit: np.ndarray,
        exact: np.ndarray,
    ) -> None:
        import numpy as np

        self.ids, self.margins, self.quantised = ids, margins, quantised
        # An empty selection of float points is uint8 too by `compact`'s rule, and a point can be of one kind.
        self._eight_bit = eight_bit.astype(np.uint8, copy=False)
        self._exact = exact.astype(np.float32, copy=False)
        places = (np.cumsum(quantised) - 1, np.cumsum(~quantised) - 1)
        self._place = np.where(quantised, *places).astype(np.int64)

    @classmethod
    def of(
        cls,
        ids: Sequence[int],
        points: Sequence[np.ndarray],
        margins: Sequence[float],
        image_shape: Sequence[int],
    ) -> Witnesses:
        """Witnesses from `compact` points (C, H, W), whose float32 form is never made.

        Args:
            ids: in any order.
        """
        import numpy as np

        order = np.argsort(np.asarray(ids, np.int64), kind="stable")
        parts = []
        for dtype in (np.uint8, np.float32):
            chosen = [points[i] for i in order if points[i].dtype == dtype]
            parts.append(np.stack(chosen) if chosen else np.empty((0, *image_shape), dtype))
        made = cls.__new__(cls)
        kinds = np.array([points[i].dtype == np.uint8 for i in order], bool)
        ids_, margins_ = np.asarray(ids, np.int64)[order], np.asarray(margins, np.float32)[order]
        _check(ids_[~kinds], parts[1], margins_[~kinds])
        _check(ids_, np.zeros((len(ids_), 1, 1, 1), np.float32), margins_)
        made._keep(ids_, margins_, kinds, *parts)
        return made

    @property
    def pixels(self) -> np.ndarray:
        """All points as float32 (n, C, H, W), made anew at every use: four times their size; see `points`."""
        return self.points(range(len(self)))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W)"""
        shape: tuple[int, ...] = self._exact.shape[1:]
        return shape

    def points(self, rows: Sequence[int]) -> np.ndarray:
        """The points of some rows as float32 (len(rows), C, H, W)."""
        import numpy as np

        found = np.empty((len(rows), *self.image_shape), np.float32)
        for position, row in enumerate(rows):
            place = self._place[row]
            if self.quantised[row]:
                found[position] = self._eight_bit[place].astype(np.float32) / np.float32(255)
            else:
                found[position] = self._exact[place]
        return found

    def stored(self, row: int) -> np.ndarray:
        """The point of one row as it is kept, (C, H, W) uint8 or float32."""
        part = self._eight_bit if self.quantised[row] else self._exact
        point: np.ndarray = part[self._place[row]]
        return point

    def __len__(self) -> int:
        return len(self.ids)

    def save(self, path: str | Path) -> str:
        """Write the file atomically and return its sha256. Equal witnesses give equal bytes."""
        import numpy as np
        from safetensors.numpy import save_file

        mask = self.quantised
        tensors = {
            "ids_uint8": self.ids[mask],
            "pixels_uint8": self._eight_bit,
            "margins_uint8": self.margins[mask],
            "ids_float32": self.ids[~mask],
            "pixels_float32": self._exact,
            "margins_float32": self.margins[~mask],
        }
        # One metadata key only: with several, safetensors writes them in an order that varies.
        arrays = {key: np.ascontiguousarray(array) for key, array in tensors.items()}
        # Not `save`, which has the bytes in memory once more.
        atomic_files.write_by(path, lambda place: save_file(arrays, place, metadata={"format": "pt"}))
        digest = hashlib.sha256()
        with Path(path).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    @classmethod
    def load(
        cls,
        path: str | Path,
        sha256: str | None = None,
        count: int | None = None,
        image_shape: Sequence[int] | None = None,
    ) -> Witnesses:
        """Read a witness file strictly.

        Args:
            sha256, count: expected hash of the file and number of its witnesses, from the evidence; None
                does not check it.
            image_shape: (C, H, W) from the evidence, which with the number says how large a file is read.

        Raises:
            FileNotFoundError: no such file.
            RobustzooError: unreadable, another hash or number, truncated or corrupt, or not the layout of a
                witness file.
        """
        import numpy as np

        try:
            content = read_bytes(path, most_bytes(count, image_shape))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RobustzooError(
                f"{path} cannot be read ({error.strerror or error}); {_NEXT_STEP}"
            ) from error
        if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
            raise RobustzooError(
                f"{path} ({len(content)} bytes) has sha256 {found}, the evidence names {sha256}; {_NEXT_STEP}"
            )
        tensors = _read(path, content)
        del content
        try:
            for kind in ("uint8", "float32"):  # each part by itself: joining would hide a count that is off
                pixels = tensors[f"pixels_{kind}"]
                if kind == "uint8":
                    pixels = np.zeros((len(pixels), 1, 1, 1), np.float32)  # in [0, 1] whatever they are
                _check(tensors[f"ids_{kind}"], pixels, tensors[f"margins_{kind}"])
            if tensors["pixels_uint8"].shape[1:] != tensors["pixels_float32"].shape[1:]:
                raise ValueError("points of two shapes")
            witnesses = cls.of(
                np.concatenate([tensors["ids_uint8"], tensors["ids_float32"]]),  # type: ignore[arg-type]
                [*tensors["pixels_uint8"], *tensors["pixels_float32"]],
                np.concatenate([tensors["margins_uint8"], tensors["margins_float32"]]),  # type: ignore[arg-type]
                tensors["pixels_uint8"].shape[1:],
            )
        except ValueError as error:
            raise RobustzooError(f"{path} is not a witness file ({error}); {_NEXT_STEP}") from error
        if count is not None and len(witnesses) != count:
            raise RobustzooError(
                f"{path} holds {len(witnesses)} witnesses, the evidence names {count}; {_NEXT_STEP}"
            )
        return witnesses


_LARGEST_FILE = 2**36  # bytes, of 100,000 float32 images of 224 pixels: where nobody says how many there are
_HEADER = 2**20  # bytes, many times what names, shapes and offsets of six tensors take
_NEXT_STEP = "restore the file, or make it again with `robustzoo evaluate`"


def most_bytes(count: int | None, image_shape: Sequence[int] | None) -> int:
    """Bytes that a file of `count` witnesses of `image_shape` (C, H, W) has at most."""
    if count is None or image_shape is None:
        return _LARGEST_FILE
    return min(_LARGEST_FILE, _HEADER + count * (4 * math.prod(image_shape) + 8 + 4))


def _read(path: str | Path, content: bytes) -> dict[str, np.ndarray]:
    """The six arrays, after their names, dtypes and axes have been checked against the layout."""
    import numpy as np
    from safetensors import SafetensorError, deserialize

    try:
        views: dict[str, dict[str, Any]] = dict(deserialize(content))
    except SafetensorError as error:
        raise RobustzooError(f"{path} is truncated or corrupt ({error}); {_NEXT_STEP}") from error
    found = {name: (view["dtype"], len(view["shape"])) for name, view in views.items()}
    if found != _LAYOUT:
        raise RobustzooError(f"{path} is not a witness file: expected {_LAYOUT}, got {found}; {_NEXT_STEP}")
    dtypes = {"I64": "<i8", "U8": "u1", "F32": "<f4"}
    return {
        name: np.frombuffer(view["data"], dtypes[view["dtype"]]).reshape(view["shape"]).copy()
        for name, view in views.items()
    }


def _check(ids: np.ndarray, pixels: np.ndarray, margins: np.ndarray) -> None:
    """Raise RobustzooError for wrong dtypes or shapes, ids out of order, or numbers out of range."""
    import numpy as np

    n = len(ids)
    for name, array, dtype, ndim in (
        ("ids", ids, np.int64, 1),
        ("pixels", pixels, np.float32, 4),
        ("margins", margins, np.float32, 1),
    ):
        if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim or len(array) != n:
            found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            raise RobustzooError(
                f"{name}: expected {np.dtype(dtype)} with {ndim} axes and {n} rows, got {found}"
            )
    if n and (ids.min() < 0 or (np.diff(ids) <= 0).any()):
        raise RobustzooError("ids: expected non-negative ids, ascending without repeats")
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise RobustzooError("pixels: expected finite values in [0, 1]")
    if not np.isfinite(margins).all():
        raise RobustzooError("margins: expected finite values")
