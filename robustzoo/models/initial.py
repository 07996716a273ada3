"""Initial weights of training: random, pinned timm checkpoints, or a local file, adapted to the network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import timm
import torch
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed
from torch import Tensor, nn
from torch.nn.functional import interpolate

from robustzoo.errors import RobustzooError
from robustzoo.models.jax_checkpoint import read_jax_checkpoint
from robustzoo.registry.catalog import UNPINNED
from robustzoo.untrusted_files import refuse_pointer

NEW_STD = 0.02  # truncated normal of a new head or projection, its bias zero; source: ours
_STEM, _PROJECTION, _HEAD = "patch_embed.backbone.", "patch_embed.proj.", "head."  # the last: or as timm says
# What wrappers put before every name: DataParallel, torch.compile, Lightning and the like, PixelModel.
_WRAPPERS = ("module.", "_orig_mod.", "model.", "network.")

# Interpolation modes of torch. nearest-exact takes the middle of each source cell; torch's plain "nearest"
# takes its upper left corner and so would shift the kernel.
_INTERPOLATIONS = {
    "cubic": {"mode": "bicubic", "antialias": True},
    "bilinear": {"mode": "bilinear", "antialias": True},
    "nearest": {"mode": "nearest-exact"},
}
METHODS = (*_INTERPOLATIONS, "block_sum")

_ELSE = "Give weights of the same architecture and image size, or --init random"


def load_initial(network: nn.Module, init: str | Path, *, kernel_downsampling: str | None = None) -> str:
    """Fill `network` with its initial weights; what was done, in words.

    Args:
        network: a timm network of `build_network`, already randomly initialised.
        init: "random" (leave it so); "timm:TAG@REVISION" (a recipe's; a 40-hex commit, or "unpinned" for
            what the Hub has now); for a hybrid "timm:STEM+TRANSFORMER@REVISION+REVISION", the convolutional
            stem of the one and the rest of the other; or the path of a model folder, a .safetensors file, or
            an .npz file of the original JAX release.
        kernel_downsampling: how a first convolution larger than the network's becomes one of its size, see
            `resample_kernel`; needed only for such checkpoints.

    A prefix that wrappers put before all names (`module.`, `_orig_mod.`, `model.`, `network.`, or several) is
    taken off. The position embedding is resized to the network's grid. Every other tensor must have the name
    and shape of the network's, except what is made new: the class head for another number of classes or of a
    checkpoint without one, and the projection between a stem and a transformer of two checkpoints.

    Raises:
        RobustzooError: the checkpoint cannot be fetched or read; a tensor is missing, unknown, of
            another shape, no floating-point numbers or not finite; or `kernel_downsampling` is needed and
            absent, or does not fit. The network is then unchanged.
    """
    if isinstance(init, Path):
        return _fill(network, _read_file(init), str(init), kernel_downsampling)
    if init == "random":
        return "random weights"
    if init.startswith("file:"):
        raise RobustzooError(f"this recipe starts from a local {init}: give that file with --init PATH")
    sources = _parse(init)
    if len(sources) == 1:
        return _fill(network, _fetch(*sources[0]), init, kernel_downsampling)
    if not _has_stem(network.state_dict()):
        raise RobustzooError(
            f"init {init!r} names a stem and a transformer, but this network has no convolutional stem: "
            "expected timm:TAG@REVISION"
        )
    stem, transformer = (_fetch(tag, revision) for tag, revision in sources)
    if not _has_stem(stem):
        raise RobustzooError(f"{sources[0][0]} has no convolutional stem; expected a hybrid's checkpoint")
    weights = {name: tensor for name, tensor in transformer.items() if not name.startswith("patch_embed.")}
    weights |= {name: tensor for name, tensor in stem.items() if name.startswith(_STEM)}
    return _fill(network, weights, init, kernel_downsampling, new_projection=True)


def _parse(init: str) -> list[tuple[str, str]]:
    """The (tag, revision) of each checkpoint, one or two."""
    tags, _, revisions = init.removeprefix("timm:").partition("@")
    sources = list(zip(tags.split("+"), revisions.split("+"), strict=False))
    same = tags.count("+") == revisions.count("+") <= 1
    if not init.startswith("timm:") or not same or not all(tag and revision for tag, revision in sources):
        raise RobustzooError(
            f"init {init!r} is neither random, timm:TAG@REVISION nor a Path (a hybrid's: "
            "timm:STEM+TRANSFORMER@REVISION+REVISION)"
        )
    return sources


def _fetch(tag: str, revision: str) -> dict[str, Tensor]:
    repo = f"timm/{tag}" if revision == UNPINNED else f"timm/{tag}@{revision}"
    # The file by name: otherwise timm falls back to a pickled one, and without a network tries twice as long.
    place = {"hf_hub_id": repo, "hf_hub_filename": "model.safetensors"}
    try:
        # timm draws random weights first; what is made new here must not depend on where the rest came from.
        with torch.random.fork_rng(devices=[]):
            source = timm.create_model(tag, pretrained=True, pretrained_cfg_overlay=place)
    except Exception as error:  # timm and the Hub raise many kinds: unknown tag, no network, offline miss
        pinned = "" if revision == UNPINNED else f" --revision {revision}"
        raise RobustzooError(
            f"the initial checkpoint {tag} (revision {revision}) could not be had: {error}. Fetch it where "
            f"there is a network with `hf download timm/{tag}{pinned}` into the cache that HF_HOME names, or "
            "give a local file with --init PATH, or start from random weights with --init random (a changed "
            "recipe, with a name of its own)"
        ) from error
    return source.state_dict()


def _read_file(path: Path) -> dict[str, Tensor]:
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise RobustzooError(
            f"--init {path}: no such file; expected a .safetensors file, a model folder, or an .npz file of "
            "the original JAX release"
        )
    try:
        refuse_pointer(file)
        return read_jax_checkpoint(file) if file.suffix == ".npz" else load_file(file)
    except RobustzooError as error:
        raise RobustzooError(f"--init {error}") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise RobustzooError(
            f"--init {file} is not a readable safetensors file: {error}; give one, an .npz file of the "
            "original JAX release, or --init random"
        ) from error


def _fill(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    origin: str,
    kernel_downsampling: str | None,
    new_projection: bool = False,
) -> str:
    """Everything is computed and compared before the first tensor of the network changes."""
    expected = network.state_dict()
    weights, prefix = _unwrapped(weights)
    # float8 is a quantised weight, which means nothing without its scale.
    counters = {name for name, tensor in expected.items() if not tensor.is_floating_point()}  # of batch norm
    other = [
        name
        for name, tensor in sorted(weights.items())
        if name not in counters and (not tensor.is_floating_point() or tensor.itemsize < 2)
    ]
    _refuse(
        origin,
        [f"{n} holds {weights[n].dtype}, not floating-point numbers of 16 bits or more" for n in other],
    )
    bad = sorted(name for name, tensor in weights.items() if not tensor.isfinite().all())
    _refuse(origin, [f"{name} has values that are not finite" for name in bad])
    if _has_stem(expected) and not _has_stem(weights):
        raise RobustzooError(
            f"{origin} has no convolutional stem ({_STEM}*), which this hybrid needs: give a checkpoint of "
            "the whole hybrid, or timm:STEM+TRANSFORMER@REVISION+REVISION"
        )
    head = {name for name in expected if name.startswith(_head(network))}
    fits = all(name in weights and weights[name].shape == expected[name].shape for name in head)
    made = {name for name in expected if new_projection and name.startswith(_PROJECTION)}
    made |= set() if fits else head
    body = {name: tensor for name, tensor in weights.items() if name not in made}
    try:
        body, words = _adapt(body, expected, kernel_downsampling)
    except RobustzooError as error:
        raise RobustzooError(f"{origin} does not fit the network: {error}. {_ELSE}") from error
    wanted = {name: tensor for name, tensor in expected.items() if name not in made}
    problems = [f"{name} is missing" for name in wanted if name not in body]
    problems += [f"{name} is unknown" for name in body if name not in wanted]
    for name in wanted.keys() & body.keys():
        if body[name].shape != wanted[name].shape:
            problems.append(f"{name} has shape {tuple(body[name].shape)}, not {tuple(wanted[name].shape)}")
    _refuse(origin, problems)
    network.load_state_dict(body | {name: _new(expected[name]) for name in sorted(made)}, strict=True)
    words = [f"names without their prefix {prefix!r}", *words] if prefix else words
    words += ["with a new projection after the stem"] if new_projection else []
    words += ["class head included" if fits else f"with a new class head for {network.num_classes} classes"]
    return ", ".join([origin, *words])


def _head(network: nn.Module) -> tuple[str, ...]:
    """What the names of its class head begin with, as timm states it: of some networks there are two."""
    stated = (getattr(network, "pretrained_cfg", None) or {}).get("classifier") or _HEAD[:-1]
    return tuple(f"{name}." for name in ([stated] if isinstance(stated, str) else stated))


def _unwrapped(weights: Mapping[str, Tensor]) -> tuple[Mapping[str, Tensor], str]:
    """The weights under their own names, and the prefix that all of them had from wrappers."""
    prefix = ""
    while weights and (found := next((w for w in _WRAPPERS if all(n.startswith(w) for n in weights)), "")):
        weights, prefix = {name.removeprefix(found): t for name, t in weights.items()}, prefix + found
    return weights, prefix


def _adapt(
    weights: dict[str, Tensor], expected: Mapping[str, Tensor], method: str | None
) -> tuple[dict[str, Tensor], list[str]]:
    """Resample the first convolution and the position embedding where their sizes differ; and say so."""
    weights, words = dict(weights), []
    first = f"{_STEM}stem.conv.weight" if _has_stem(expected) else f"{_PROJECTION}weight"
    if first in weights and first in expected and weights[first].dim() == 4:
        (rows, side), size = weights[first].shape[2:], expected[first].shape[-1]
        if rows == side > size:
            if method is None:
                raise RobustzooError(
                    f"{first} has kernels of side {side} and the network's have side {size}: say how to make "
                    f"them smaller with kernel_downsampling ({', '.join(METHODS)})"
                )
            weights[first] = resample_kernel(weights[first], size, method)
            words.append(f"first kernel {side}x{side} to {size}x{size} ({method})")
    position, target = weights.get("pos_embed"), expected.get("pos_embed")
    known = position is not None and target is not None
    if known and position.shape != target.shape and position.shape[2:] == target.shape[2:]:
        grid = round((target.shape[1] - 1) ** 0.5)
        weights["pos_embed"] = resize_position_embedding(position, (grid, grid))
        words.append(f"position embedding of {position.shape[1]} tokens resized to {target.shape[1]}")
    return weights, words


def _new(like: Tensor) -> Tensor:
    """A weight from the truncated normal of torch's global generator, or a bias of zeros."""
    made = torch.zeros_like(like)
    return made if made.dim() == 1 else nn.init.trunc_normal_(made, std=NEW_STD)


def _has_stem(weights: Mapping[str, Tensor]) -> bool:
    return any(name.startswith(_STEM) for name in weights)


def _refuse(origin: str, problems: list[str]) -> None:
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise RobustzooError(
            f"{origin} does not fit the network: {'; '.join(sorted(problems)[:4])}{more}. {_ELSE}"
        )


# ---- Other geometries --------------------------------------------------------------------------------------


def resample_kernel(weight: Tensor, size: int, method: str) -> Tensor:
    """A convolution kernel (O, I, h, h) for a smaller receptive field: (O, I, size, size), float32.

    - "cubic", "bilinear", "nearest": the kernel as an image, resized with antialiasing (cubic: a = -0.5),
      times (h / size)^2, so that a constant kernel keeps its response to a constant patch. The factor is
      ours: the paper names only the interpolation, and without it activations shrink by as much.
    - "block_sum": the sum over blocks of side h / size, which is exactly the original kernel applied to a
      patch whose pixels are repeated: sum_ij W_ij x_(i/f, j/f) = sum_kl (sum of block kl of W) x_kl.

    Args:
        weight: square kernels.
        size: new side in pixels, 1..h.
        method: one of `METHODS`.

    Raises:
        RobustzooError: an unknown method, kernels that are not square, a size that is not in 1..h, or for
            block_sum does not divide h.
    """
    if method not in METHODS:
        raise RobustzooError(f"kernel_downsampling is {method!r}; expected one of {', '.join(METHODS)}")
    if weight.dim() != 4 or weight.shape[2] != weight.shape[3]:
        raise RobustzooError(
            f"a kernel has shape {tuple(weight.shape)}; expected (outputs, inputs, side, side)"
        )
    side = weight.shape[-1]
    if not 1 <= size <= side:
        raise RobustzooError(f"a kernel of side {side} cannot be downsampled to side {size}")
    weight = weight.float()
    if method == "block_sum":
        if side % size:
            fitting = ", ".join(_INTERPOLATIONS)
            raise RobustzooError(
                f"block_sum cannot turn a kernel of side {side} into side {size}, which does not divide it; "
                f"use another kernel_downsampling: {fitting}"
            )
        block = side // size
        return weight.unflatten(3, (size, block)).unflatten(2, (size, block)).sum((3, 5))
    if size == side:
        return weight.clone()
    return interpolate(weight, size=(size, size), **_INTERPOLATIONS[method]) * (side / size) ** 2


def resize_position_embedding(embedding: Tensor, grid: tuple[int, int], prefix: int = 1) -> Tensor:
    """Position embedding (1, prefix + g * g, d) for another grid: (1, prefix + rows * columns, d).

    The grid part is resized as an image (bicubic with antialiasing), the prefix (class token) kept.

    Raises:
        RobustzooError: the tokens after the prefix are no square grid.
    """
    tokens = embedding.shape[1] - prefix if embedding.dim() == 3 else -1
    side = round(max(tokens, 0) ** 0.5)
    if side < 1 or side * side != tokens or embedding.shape[0] != 1:
        raise RobustzooError(
            f"a position embedding has shape {tuple(embedding.shape)}; expected (1, {prefix} + g * g, width)"
        )
    if (side, side) == tuple(grid):
        return embedding
    return resample_abs_pos_embed(embedding, list(grid), [side, side], num_prefix_tokens=prefix)
