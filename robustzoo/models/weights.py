"""model.safetensors: written so that equal weights give equal bytes, read strictly, hashed before use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry.digests import verify_sha256
from robustzoo.untrusted_files import safetensors_header

__all__ = ["read_weights", "require_file", "verify_sha256", "weights_for_export", "write_weights"]
METADATA = {"format": "pt"}  # timm and transformers refuse a file whose metadata lacks it
_AGAIN = "take the original again"


def require_file(path: Path) -> None:
    """Raises RobustzooError unless `path` is a file (a pipe or a device would block the reader)."""
    if not path.is_file():
        raise RobustzooError(
            f"{path} does not exist or is no file; a model folder holds model.safetensors and config.json"
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
    require_file(path)
    header = safetensors_header(path)
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
        wanted = torch.float32 if expected[name].is_floating_point() else expected[name].dtype
        if dtype != str(wanted):
            problems.append(f"{name} has dtype {dtype}, expected {wanted}")
    if problems:
        raise RobustzooError(f"{what}: {'; '.join(problems[:6])}{' ...' if len(problems) > 6 else ''}")


def _require_finite(name: str, tensor: Tensor, what: str) -> None:
    if not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).sum())
        raise RobustzooError(f"{what}: {bad} of {tensor.numel()} values of {name} are NaN or infinite")


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
