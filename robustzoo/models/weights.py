"""model.safetensors: written so that equal weights give equal bytes, read strictly, hashed before use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry.digests import sha256_file

METADATA = {"format": "pt"}  # timm and transformers refuse a file whose metadata lacks it
_AGAIN = "take the original again"
_POINTER = b"version https://git-lfs.github.com/spec/"
_LARGEST_HEADER = 8 * 2**20  # bytes; ViT-L/16 needs 30 kB


def require_file(path: Path) -> None:
    """Raises RobustzooError unless `path` is a file (a pipe or a device would block the reader)."""
    if not path.is_file():
        raise RobustzooError(
            f"{path} does not exist or is no file; a model folder holds model.safetensors and config.json"
        )


def refuse_pointer(path: Path) -> None:
    """Raises RobustzooError for what Git LFS leaves in the place of a file that it has not fetched."""
    with path.open("rb") as stream:
        start = stream.read(len(_POINTER))
    if start == _POINTER:
        raise RobustzooError(
            f"{path} is a pointer of Git LFS, not the weights: run `git lfs install` and `git lfs pull` in "
            "its repository, or download the file itself"
        )


def verify_sha256(
    path: str | Path,
    expected: str,
    *,
    found: str | None = None,
    expected_bytes: int | None = None,
    next_step: str = _AGAIN,
) -> str:
    """The hash of the file, which must be the expected one. found: the hash, where it is known already.

    Raises:
        RobustzooError: there is no such file; or with both hashes, the size found (and expected, where known)
            and the next step.
    """
    path = Path(path)
    if not path.is_file():
        raise RobustzooError(f"{path} does not exist; {next_step}")
    if found is None:
        refuse_pointer(path)
        found = sha256_file(path)
    size = path.stat().st_size
    if found == expected.lower():
        return found
    known = f" ({expected_bytes} bytes)" if expected_bytes is not None else ""
    raise RobustzooError(
        f"{path} is not the published file and was not used.\n"
        f"  expected sha256 {expected}{known}\n"
        f"  found    sha256 {found} ({size} bytes)\n"
        f"Next: {next_step}"
    )


def weights_for_export(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of `state` fit for a file: on the CPU, contiguous, storage of their own.

    Args:
        state: timm key -> tensor on any device.
        expected: the same keys of the architecture, on any device (meta is enough).

    Raises:
        RobustzooError: missing or surplus keys, another shape or dtype, NaN or infinite values.
    """
    found = {name: (str(tensor.dtype), tuple(tensor.shape)) for name, tensor in state.items()}
    _compare(found, expected, "cannot export these weights")
    copies = {}
    for name in sorted(state):
        # clone: safetensors refuses shared storage, and a view would drag its whole base along
        tensor = state[name].detach().to("cpu").contiguous().clone()
        _require_finite(name, tensor, "cannot export these weights")
        copies[name] = tensor
    return copies


def write_weights(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write the file, whole or not at all; no time stamps, so equal weights give equal bytes."""
    # save_file would make the file private to its user (mode 0600), so the bytes are written here.
    atomic_files.write_bytes(path, save(dict(sorted(weights.items())), metadata=METADATA))


def read_weights(path: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a file that holds exactly the keys, shapes and dtypes of `expected`.

    Everything is compared from the header, so nothing is allocated for a file that does not fit.

    Raises:
        RobustzooError: truncated or longer than its header says, not safetensors, keys, shapes or dtypes
            other than the architecture's, NaN or infinite values.
    """
    header = _read_header(path)
    _compare(header, expected, f"{path} does not fit its config.json")
    weights = {}
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as stream:
            for name in expected:
                weights[name] = stream.get_tensor(name).clone()  # a view of the mapped file otherwise
    except safetensors.SafetensorError as error:
        raise RobustzooError(f"{path} is not a valid safetensors file: {error}; {_AGAIN}") from error
    for name, tensor in weights.items():
        _require_finite(name, tensor, f"{path} is unusable")
    return weights


_DTYPES = {
    "F64": "torch.float64",
    "F32": "torch.float32",
    "F16": "torch.float16",
    "BF16": "torch.bfloat16",
    "I64": "torch.int64",  # batch norm's counter of batches
}


def _read_header(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensor name -> (dtype, shape), after checking the file size against the header."""
    require_file(path)
    refuse_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        text = stream.read(length) if length <= min(_LARGEST_HEADER, size - 8) else None
    if text is None:
        raise RobustzooError(
            f"{path} is no complete safetensors file: {size} bytes, but its first 8 bytes announce a "
            f"header of {length} bytes. It is truncated or of another format; {_AGAIN}"
        )
    try:
        entries = json.loads(text)
        entries.pop("__metadata__", None)
        header = {
            name: (_DTYPES.get(entry["dtype"], entry["dtype"]), tuple(entry["shape"]))
            for name, entry in entries.items()
        }
        end = max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        complete = 8 + length + end
        if size != complete:
            raise RobustzooError(
                f"{path} is {'truncated' if size < complete else 'too long'}: {size} bytes, but its header "
                f"describes {complete} bytes; {_AGAIN}"
            )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        if isinstance(error, RobustzooError):
            raise
        raise RobustzooError(f"{path} has an unreadable safetensors header ({error}); {_AGAIN}") from error
    return header


def _compare(found: Mapping[str, tuple], expected: Mapping[str, Tensor], what: str) -> None:
    missing, surplus = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    problems = []
    if missing:
        problems.append(f"missing tensors: {_some(missing)}")
    if surplus:
        problems.append(f"tensors the architecture does not have: {_some(surplus)}")
    for name in sorted(set(found) & set(expected)):
        dtype, shape = found[name]
        if shape != tuple(expected[name].shape):
            problems.append(f"{name} has shape {shape}, expected {tuple(expected[name].shape)}")
        if dtype != str(expected[name].dtype):
            problems.append(f"{name} has dtype {dtype}, expected {expected[name].dtype}")
    if problems:
        raise RobustzooError(f"{what}: {'; '.join(problems[:6])}{' ...' if len(problems) > 6 else ''}")


def _require_finite(name: str, tensor: Tensor, what: str) -> None:
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise RobustzooError(f"{what}: {bad} of {tensor.numel()} values of {name} are NaN or infinite")


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
