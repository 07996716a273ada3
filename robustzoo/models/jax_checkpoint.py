"""An `.npz` checkpoint of the original JAX release (ViT and R50 hybrids) under timm's tensor names.

timm's own reader fills a network with what it finds: it overlooks surplus blocks, lets shapes broadcast and
resamples kernels by its own rule. Here a file becomes plain named tensors, so that the same strict comparison
and the recipe's resampling apply to it as to every other checkpoint.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from robustzoo.errors import RobustzooError

_LEAVES = {"kernel": "weight", "scale": "weight", "bias": "bias"}
_WHOLE = {"cls": "cls_token", "Transformer/posembed_input/pos_embedding": "pos_embed"}
_MODULES = {
    "embedding": "patch_embed.proj",
    "head": "head",
    "Transformer/encoder_norm": "norm",
    "conv_root": "patch_embed.backbone.stem.conv",
    "gn_root": "patch_embed.backbone.stem.norm",
}
_BLOCK = re.compile(r"Transformer/encoderblock_(\d+)/(.+)")
_BLOCK_PARTS = {
    "LayerNorm_0": "norm1",
    "LayerNorm_2": "norm2",
    "MultiHeadDotProductAttention_1/out": "attn.proj",
    "MlpBlock_3/Dense_0": "mlp.fc1",
    "MlpBlock_3/Dense_1": "mlp.fc2",
}
_QKV = re.compile(r"Transformer/encoderblock_(\d+)/MultiHeadDotProductAttention_1/(query|key|value)")
_UNIT = re.compile(r"block([1-9]\d*)/unit([1-9]\d*)/(conv|gn)([1-3]|_proj)")
_DAMAGED = (zipfile.BadZipFile, zlib.error)


def read_jax_checkpoint(path: Path) -> dict[str, Tensor]:
    """timm name -> float32 tensor, of every array in the file.

    A representation layer (`pre_logits`) is left out, as timm does, and the head above it with it.

    Raises:
        RobustzooError: no readable `.npz` of number arrays, or a key that the release does not have.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name.removeprefix("opt/target/"): archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, *_DAMAGED) as error:
        raise RobustzooError(f"{path} is not a readable .npz of number arrays: {error}") from error
    if any(name.startswith("pre_logits/") for name in arrays):
        arrays = {
            name: array for name, array in arrays.items() if not name.startswith(("pre_logits/", "head/"))
        }
    tensors: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    unknown = []
    for name, array in arrays.items():
        if array.dtype.kind != "f":
            raise RobustzooError(f"{path}: {name} holds {array.dtype}; expected floating-point numbers")
        module, _, leaf = name.rpartition("/")
        if array.ndim < (2 if leaf == "kernel" else 1) or not array.size:
            raise RobustzooError(
                f"{path}: {name} has shape {array.shape}, which no tensor of the release has"
            )
        attention = _QKV.fullmatch(module)
        if attention and leaf in ("kernel", "bias"):
            whole = f"blocks.{attention[1]}.attn.qkv.{_LEAVES[leaf]}"
            parts.setdefault(whole, {})[attention[2]] = _of_heads(array, leaf)
        elif name in _WHOLE:
            tensors[_WHOLE[name]] = _tensor(array)
        elif leaf in _LEAVES and (target := _module(module)):
            tensors[f"{target}.{_LEAVES[leaf]}"] = _of_module(array, leaf)
        else:
            unknown.append(name)
    if unknown:
        more = f" and {len(unknown) - 4} more" if len(unknown) > 4 else ""
        raise RobustzooError(
            f"{path} has keys that the original release does not have: "
            f"{', '.join(sorted(unknown)[:4])}{more}; expected names such as embedding/kernel and "
            "Transformer/encoderblock_0/LayerNorm_0/scale"
        )
    return tensors | {whole: _joined(path, whole, part) for whole, part in parts.items()}


def _module(name: str) -> str | None:
    if name in _MODULES:
        return _MODULES[name]
    if (block := _BLOCK.fullmatch(name)) and block[2] in _BLOCK_PARTS:
        return f"blocks.{block[1]}.{_BLOCK_PARTS[block[2]]}"
    if unit := _UNIT.fullmatch(name):
        kind = {"conv": "conv", "gn": "norm"}[unit[3]]
        part = f"downsample.{kind}" if unit[4] == "_proj" else f"{kind}{unit[4]}"
        return f"patch_embed.backbone.stages.{int(unit[1]) - 1}.blocks.{int(unit[2]) - 1}.{part}"
    return None


def _of_module(array: np.ndarray, leaf: str) -> Tensor:
    """Kernels have their output axis last in JAX, first in torch; group norms are stored as (1, 1, 1, C)."""
    if leaf != "kernel":
        return _tensor(array.reshape(-1))
    if array.ndim == 4:  # (h, w, in, out)
        return _tensor(array.transpose(3, 2, 0, 1))
    return _tensor(array.reshape(-1, array.shape[-1]).T)  # (in, out), or of attention (heads, width, out)


def _of_heads(array: np.ndarray, leaf: str) -> Tensor:
    """(in, heads, width) -> (out, in), or (heads, width) -> (out)."""
    return _tensor(array.reshape(array.shape[0], -1).T if leaf == "kernel" else array.reshape(-1))


def _joined(path: Path, whole: str, part: dict[str, Tensor]) -> Tensor:
    """Query, key and value under each other, as timm stores them."""
    if set(part) != {"query", "key", "value"} or len({tensor.shape for tensor in part.values()}) != 1:
        found = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in part.items())
        raise RobustzooError(f"{path}: {whole} needs query, key and value of one shape; found {found}")
    return torch.cat([part["query"], part["key"], part["value"]])


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
