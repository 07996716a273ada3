"""Initial weights of training: random, a pinned timm checkpoint, or a local safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors
import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

HEAD_STD = 0.02  # truncated normal of a new class head, its bias zero; source: ours
UNPINNED = "unpinned"


class InitialWeightsError(ValueError):
    """Initial weights that cannot be had, or do not fit the network."""


def load_initial(network: nn.Module, init: str | Path) -> str:
    """Fill `network` with its initial weights; what was done, in words.

    Args:
        network: a timm network of `build_network`, already randomly initialised.
        init: "random" (leave it so), "timm:TAG@REVISION" (a recipe's; a 40-hex commit, or "unpinned" for what
            the Hub has now), or the path of a .safetensors file or of a model folder.

    Every tensor must have the name and shape of the network's, the class head excepted: for another number of
    classes, or in a checkpoint without one, the head is made new.

    Raises:
        InitialWeightsError: the checkpoint cannot be fetched or read, or a tensor is missing, unknown, of
            another shape or not finite. The network is then unchanged.
    """
    if isinstance(init, Path):
        return _fill(network, _read_file(init), str(init))
    if init == "random":
        return "random weights"
    if init.startswith("file:"):
        raise InitialWeightsError(f"this recipe starts from a local {init}: give that file with --init PATH")
    tag, at, revision = init.removeprefix("timm:").partition("@")
    if not (init.startswith("timm:") and tag and at and revision):
        raise InitialWeightsError(f"init {init!r} is neither random, timm:TAG@REVISION nor a Path")
    return _fill(network, _fetch(tag, revision), init)


def _fetch(tag: str, revision: str) -> dict[str, Tensor]:
    repo = f"timm/{tag}" if revision == UNPINNED else f"timm/{tag}@{revision}"
    try:
        source = timm.create_model(tag, pretrained=True, pretrained_cfg_overlay={"hf_hub_id": repo})
    except (
        Exception
    ) as error:  # timm and huggingface_hub raise many kinds: unknown tag, no network, offline miss
        pinned = "" if revision == UNPINNED else f" --revision {revision}"
        raise InitialWeightsError(
            f"the initial checkpoint {tag} (revision {revision}) could not be had: {error}. Fetch it where "
            f"there is a network with `hf download timm/{tag}{pinned}` into the cache that HF_HOME names, or "
            "give a local file with --init PATH, or start from random weights with --init random (a changed "
            "recipe, with a name of its own)"
        ) from error
    return source.state_dict()


def _read_file(path: Path) -> dict[str, Tensor]:
    file = path / "model.safetensors" if path.is_dir() else path
    if not file.is_file():
        raise InitialWeightsError(
            f"--init {path}: no such file; expected a .safetensors file or a model folder"
        )
    try:
        return load_file(file)
    except (safetensors.SafetensorError, OSError) as error:
        raise InitialWeightsError(
            f"--init {file} is not a readable safetensors file: {error}; give another, or --init random"
        ) from error


def _fill(network: nn.Module, weights: Mapping[str, Tensor], origin: str) -> str:
    expected = network.state_dict()
    head = {name: tensor for name, tensor in expected.items() if name in ("head.weight", "head.bias")}
    fits = all(name in weights and weights[name].shape == tensor.shape for name, tensor in head.items())
    body = {name: tensor for name, tensor in weights.items() if name not in head}
    wanted = {name: tensor for name, tensor in expected.items() if name not in head}
    problems = [f"{name} is missing" for name in wanted if name not in body]
    problems += [f"{name} is unknown" for name in body if name not in wanted]
    for name in wanted.keys() & body.keys():
        if body[name].shape != wanted[name].shape:
            problems.append(f"{name} has shape {tuple(body[name].shape)}, not {tuple(wanted[name].shape)}")
    problems += [
        f"{name} has values that are not finite" for name, t in weights.items() if not t.isfinite().all()
    ]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise InitialWeightsError(
            f"{origin} does not fit the network: {'; '.join(sorted(problems)[:4])}{more}. "
            "Give weights of the same architecture and image size, or --init random"
        )
    if fits:
        network.load_state_dict({**body, **{name: weights[name] for name in head}}, strict=True)
        return f"{origin}, class head included"
    network.load_state_dict({**body, **head}, strict=True)
    with torch.no_grad():
        nn.init.trunc_normal_(network.head.weight, std=HEAD_STD)
        nn.init.zeros_(network.head.bias)
    return f"{origin}, with a new class head for {network.num_classes} classes"
