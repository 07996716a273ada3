"""Witnesses: for each broken image a point that fools the model, so that one forward proves it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robustzoo import atomic_files

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


class WitnessError(ValueError):
    """Witnesses that cannot be written, or a witness file that must not be used."""


def round_to_uint8(pixels: np.ndarray) -> np.ndarray:
    """The nearest points with 8-bit pixels, as float32 k/255: the value that a uint8 witness replays with.

    Args:
        pixels: float32, any shape, in [0, 1].
    """
    import numpy as np

    return np.rint(np.asarray(pixels, np.float32) * np.float32(255)).astype(np.float32) / np.float32(255)


@dataclass(frozen=True, eq=False)
class Witnesses:
    """Points that fool the model, each within the threat model's ball and [0, 1].

    ids: int64 (n,), ascending and unique; pixels: float32 (n, C, H, W) in [0, 1]; margins: float32 (n,), by
    how much the wrong class leads in logits. Saving is lossless: a point whose pixels are all k/255 is
    stored as uint8, any other as float32. So round a point to 1/255 before checking that it still fools the
    model inside the ball, not after.
    """

    ids: np.ndarray
    pixels: np.ndarray
    margins: np.ndarray

    def __post_init__(self) -> None:
        """Raises: WitnessError for wrong dtypes or shapes, repeated ids, or pixels outside [0, 1]."""
        import numpy as np

        n = len(self.ids)
        for name, dtype, ndim in (
            ("ids", np.int64, 1),
            ("pixels", np.float32, 4),
            ("margins", np.float32, 1),
        ):
            array = getattr(self, name)
            if (
                not isinstance(array, np.ndarray)
                or array.dtype != dtype
                or array.ndim != ndim
                or len(array) != n
            ):
                found = (
                    f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
                )
                raise WitnessError(
                    f"{name}: expected {np.dtype(dtype)} with {ndim} axes and {n} rows, got {found}"
                )
        if n and (self.ids.min() < 0 or (np.diff(self.ids) <= 0).any()):
            raise WitnessError("ids: expected non-negative ids, ascending without repeats")
        if not ((self.pixels >= 0) & (self.pixels <= 1)).all():
            raise WitnessError("pixels: expected finite values in [0, 1]")
        if not np.isfinite(self.margins).all():
            raise WitnessError("margins: expected finite values")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def quantised(self) -> np.ndarray:
        """bool (n,): which points have 8-bit pixels, and so fit uint8 without loss."""
        exact: np.ndarray = (self.pixels == round_to_uint8(self.pixels)).all(axis=(1, 2, 3))
        return exact

    def save(self, path: str | Path) -> str:
        """Write the file atomically and return its sha256. Equal witnesses give equal bytes."""
        import numpy as np
        from safetensors.numpy import save

        mask = self.quantised
        eight_bit = np.rint(self.pixels[mask] * np.float32(255)).astype(np.uint8)
        tensors = {
            "ids_uint8": self.ids[mask],
            "pixels_uint8": eight_bit,
            "margins_uint8": self.margins[mask],
            "ids_float32": self.ids[~mask],
            "pixels_float32": self.pixels[~mask],
            "margins_float32": self.margins[~mask],
        }
        # One metadata key only: with several, safetensors writes them in an order that varies.
        content = save({k: np.ascontiguousarray(v) for k, v in tensors.items()}, metadata={"format": "pt"})
        atomic_files.write_bytes(path, content)
        return hashlib.sha256(content).hexdigest()

    @classmethod
    def load(cls, path: str | Path, sha256: str | None = None) -> Witnesses:
        """Read a witness file strictly.

        Args:
            sha256: expected hash of the file, from the evidence; None does not check it.

        Raises:
            FileNotFoundError: no such file.
            WitnessError: unreadable, another hash, truncated or corrupt, or not the layout of a witness file.
        """
        import numpy as np

        try:
            content = Path(path).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise WitnessError(f"{path} cannot be read ({error.strerror or error}); {_NEXT_STEP}") from error
        found = hashlib.sha256(content).hexdigest()
        if sha256 is not None and found != sha256:
            raise WitnessError(
                f"{path} ({len(content)} bytes) has sha256 {found}, the evidence names {sha256}; {_NEXT_STEP}"
            )
        tensors = _read(path, content)
        try:
            # Each part is checked by itself first: joining would hide a count that is off.
            parts = []
            for kind in ("uint8", "float32"):
                pixels = tensors[f"pixels_{kind}"]
                if kind == "uint8":
                    pixels = pixels.astype(np.float32) / np.float32(255)
                parts.append(cls(tensors[f"ids_{kind}"], pixels, tensors[f"margins_{kind}"]))
            ids, pixels, margins = (
                np.concatenate([getattr(part, name) for part in parts])
                for name in ("ids", "pixels", "margins")
            )
            order = np.argsort(ids, kind="stable")
            return cls(ids[order], pixels[order], margins[order])
        except ValueError as error:
            raise WitnessError(f"{path} is not a witness file ({error}); {_NEXT_STEP}") from error


_NEXT_STEP = "restore the file, or make it again with `robustzoo evaluate`"


def _read(path: str | Path, content: bytes) -> dict[str, np.ndarray]:
    """The six arrays, after their names, dtypes and axes have been checked against the layout."""
    import numpy as np
    from safetensors import SafetensorError, deserialize

    try:
        views: dict[str, dict[str, Any]] = dict(deserialize(content))
    except SafetensorError as error:
        raise WitnessError(f"{path} is truncated or corrupt ({error}); {_NEXT_STEP}") from error
    found = {name: (view["dtype"], len(view["shape"])) for name, view in views.items()}
    if found != _LAYOUT:
        raise WitnessError(f"{path} is not a witness file: expected {_LAYOUT}, got {found}; {_NEXT_STEP}")
    dtypes = {"I64": "<i8", "U8": "u1", "F32": "<f4"}
    return {
        name: np.frombuffer(view["data"], dtypes[view["dtype"]]).reshape(view["shape"]).copy()
        for name, view in views.items()
    }
