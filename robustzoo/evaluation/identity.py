"""Which model was evaluated: the hash of its weights, and a name that claims no more than is true."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from robustzoo.cards.model_names import unpublished_name
from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.entries import find_entry


@dataclass(frozen=True)
class Identity:
    """Name and hash as Evidence states them; `warning`: what the evaluator's user should know, or None."""

    name: str
    sha256: str | None
    warning: str | None = None


def identify(model: nn.Module, name: str | None = None) -> Identity:
    """Who `model` is. `name` is what its owner calls it; default: its own name, else that of its class.

    A registry name stands for the published weights alone. Others trained by the same recipe, or the
    published ones with a byte changed, get the hash behind the name and a warning.
    """
    sha256 = weights_hash(model)
    own = getattr(model, "name", None)
    if name is not None or own is None:
        return Identity(name or type(model).__name__, sha256)
    if sha256 is None:
        changed = getattr(model, "folder", None) is not None
        return Identity(f"{own} (changed since loading)" if changed else own, None)
    item = find_entry(own)
    if item is None or item.weights is None or item.weights.sha256 == sha256:
        return Identity(own, sha256)
    other = unpublished_name(own, sha256)
    return Identity(
        other,
        sha256,
        f"{model.folder} does not hold the published weights of {own}: its model.safetensors has sha256 "
        f"{sha256}, the published file {item.weights.sha256}. The result is named {other!r}. If you did not "
        f"train these weights, the file is damaged: robustzoo.load({own!r}) has the published ones",
    )


def weights_hash(model: nn.Module) -> str | None:
    """SHA-256 of the file that the model was loaded from; None without one or if changed since."""
    if not isinstance(model, PixelModel) or model.folder is None:
        return None
    path = Path(model.folder) / "model.safetensors"
    if not path.is_file():
        return None
    stored, state = load_file(path), model.network.state_dict()
    same = stored.keys() == state.keys() and all(torch.equal(stored[key], state[key].cpu()) for key in stored)
    return sha256_file(path) if same else None


def state_digest(model: nn.Module) -> str:
    """SHA-256 (hex) over the class of the model and its parameters and buffers in memory, names included, and
    over the constants of scripted code.

    What else a forward may use (attributes that are no tensors, code) it cannot see.
    """
    digest = hashlib.sha256(f"{type(model).__module__}.{type(model).__qualname__}".encode())
    for name, tensor in sorted((*model.named_parameters(), *model.named_buffers()), key=lambda pair: pair[0]):
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(_bytes(tensor))
    for module in model.modules():
        graph = getattr(module, "inlined_graph", None) if isinstance(module, torch.jit.ScriptModule) else None
        for node in [] if graph is None else graph.findAllNodes("prim::Constant"):
            if node.hasAttribute("value") and node.kindOf("value") == "t":
                digest.update(_bytes(node.t("value")))  # jit.freeze writes the weights into the code
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
