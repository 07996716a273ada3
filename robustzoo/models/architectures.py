"""Recipe -> timm network: that of a catalog's row, whose numbers this file hands on, or one of timm's own."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import timm
import timm.optim
import torch
from torch import Tensor, nn

import robustzoo.models.batch_norm_networks
import robustzoo.models.networks
import robustzoo.models.small_networks  # noqa: F401 (all three register our networks with timm)
from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe
from robustzoo.registry.catalog import ARCHITECTURES, Network
from robustzoo.registry.extensions import TIMM
from robustzoo.registry.names import did_you_mean


def timm_name(architecture: str, image_size: int, patch_stride: int | None = None) -> str:
    """Name of the timm entry point that builds `architecture` at `image_size`.

    Raises:
        RobustzooError: no such architecture, or not at this image size or stride.
    """
    return _network(architecture, image_size, patch_stride).timm_name


def timm_arguments(
    architecture: str, image_size: int, channels: int, patch_stride: int | None = None
) -> dict[str, object]:
    """Every keyword argument (JSON-able) that timm needs besides `num_classes`, defaults spelled out.

    Spelled out so that a stored folder keeps its meaning when a default of timm changes.

    Raises:
        RobustzooError: no such architecture, or not at this image size or stride.
    """
    return dict(_network(architecture, image_size, patch_stride).model_args) | {"in_chans": channels}


def build_network(
    architecture: str,
    image_size: int,
    channels: int,
    num_classes: int,
    *,
    patch_stride: int | None = None,
    device: str | None = None,
) -> nn.Module:
    """A timm network, randomly initialised from torch's global generator.

    The network expects *normalised* input (B, channels, image_size, image_size); PixelModel takes pixels.

    Args:
        architecture: key of `robustzoo.registry.catalog.ARCHITECTURES`.
        image_size: side of the square image in pixels.
        channels: 1 or 3.
        num_classes: K, at least 2.
        patch_stride: pixels from one patch to the next; None: the network's own.
        device: "meta" builds shapes only, without memory or initialisation; default: torch's default device.

    Raises:
        RobustzooError: no such architecture, or not at this image size or stride.
    """
    for label, value, least in (("channels", channels, 1), ("num_classes", num_classes, 2)):
        if not isinstance(value, int) or value < least:
            raise RobustzooError(f"{label} is {value!r}; expected a whole number of at least {least}")
    arguments = timm_arguments(architecture, image_size, channels, patch_stride)
    name = timm_name(architecture, image_size, patch_stride)
    with torch.device(device) if device else nullcontext():
        return timm.create_model(name, num_classes=num_classes, **arguments)


def network_of(recipe: Recipe) -> tuple[str, dict[str, object]]:
    """Name of the timm entry point that builds a recipe's network, and its arguments as `timm_arguments`.

    The rate of drop path is among them where the recipe has one; it is of no consequence after training.

    Raises:
        RobustzooError: timm or the catalog has no such network, or not at this image size or stride.
    """
    architecture, size = recipe.architecture, recipe.image_size
    more = {"drop_path_rate": recipe.drop_path} if recipe.drop_path else {}
    if not architecture.startswith(TIMM):
        stride = recipe.patch_stride
        arguments = timm_arguments(architecture, size, recipe.channels, stride)
        return timm_name(architecture, size, stride), arguments | more
    name = architecture.removeprefix(TIMM)
    if not timm.is_model(name):
        raise RobustzooError(
            f"timm {timm.__version__} has no network {name!r}: expected one of timm.list_models()."
            f"{did_you_mean(name, timm.list_models())}"
        )
    stated = timm.models.get_pretrained_cfg(name)
    # A network that is made for one size takes it as an argument.
    size_of_images = {"img_size": size} if stated is not None and stated.fixed_input_size else {}
    return name, {**size_of_images, **(recipe.model_args or {}), "in_chans": recipe.channels, **more}


def build_for(recipe: Recipe, *, device: str | None = None) -> nn.Module:
    """The network of a recipe; as `build_network`.

    Raises:
        RobustzooError: as `network_of`, or timm refuses the arguments.
    """
    name, arguments = network_of(recipe)
    try:
        with torch.device(device) if device else nullcontext():
            network = timm.create_model(name, num_classes=recipe.num_classes, **arguments)
    except Exception as error:  # of timm, whose networks refuse an argument in many ways
        raise RobustzooError(
            f"timm cannot make {name} with {arguments} for {recipe.num_classes} classes "
            f"({type(error).__name__}: {error}): change model_args or drop_path, or take another architecture"
        ) from error
    paths = (module for module in network.modules() if type(module).__name__ == "DropPath")
    if recipe.drop_path and not any(getattr(path, "drop_prob", None) for path in paths):
        raise RobustzooError(
            f"drop_path {recipe.drop_path} has no effect in {name}, which has no stochastic depth: "
            "set drop_path=0"
        )
    return network


def computed_buffers(recipe: Recipe, network: nn.Module) -> dict[str, Tensor]:
    """The buffers that a recipe's network computes as it is built (such as a Swin's relative positions),
    which no file holds: name -> tensor on the CPU.

    Args:
        network: of the recipe, on any device; most have no such buffers, and are not built again.

    Raises:
        RobustzooError: they differ from one build to the next: what is trained could not be read back.
    """
    if not unstored(network):
        return {}
    found, again = ({}, {})
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
        for seed, buffers in enumerate((found, again)):
            torch.manual_seed(seed)
            buffers |= unstored(build_for(recipe, device="cpu"))
    if differing := [name for name in found if not torch.equal(found[name], again[name])]:
        raise RobustzooError(
            f"{recipe.architecture} draws buffers that no file holds ({', '.join(differing[:3])}): what is "
            "trained could not be read back. Take another network"
        )
    return found


def unstored(network: nn.Module) -> dict[str, Tensor]:
    """The buffers that are not of a network's state dict."""
    stored = network.state_dict().keys()
    buffers = network.named_buffers(remove_duplicate=False)
    return {name: tensor for name, tensor in buffers if name not in stored}


def parameter_count(recipe: Recipe) -> int:
    """Parameters of a recipe's network, class head included. Raises: RobustzooError as `build_for`."""
    if recipe.architecture.startswith(TIMM):
        return sum(weight.numel() for weight in build_for(recipe, device="meta").parameters())
    row = ARCHITECTURES[recipe.architecture]
    return row.parameter_count(recipe.image_size, recipe.num_classes, recipe.patch_stride)


def layer_groups(model: nn.Module, decay: float | None) -> list[dict[str, Any]]:
    """The parameters of a PixelModel in groups for an optimizer: with `decay` one a layer, whose "lr_scale"
    is decay^k for the k-th layer before the last, the class head, as timm groups them; without it one of all.
    """
    if decay is None:
        return [{"params": list(model.parameters())}]
    groups: dict[float, list[nn.Parameter]] = {}
    for group in timm.optim.param_groups_layer_decay(model.network, layer_decay=decay):
        groups.setdefault(group["lr_scale"], []).extend(group["params"])
    return [{"params": parameters, "lr_scale": scale} for scale, parameters in groups.items()]


def _network(architecture: str, image_size: int, patch_stride: int | None) -> Network:
    if architecture not in ARCHITECTURES:
        raise RobustzooError(
            f"unknown architecture {architecture!r}; known: {', '.join(sorted(ARCHITECTURES))}"
        )
    try:
        network = ARCHITECTURES[architecture].network(image_size)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        sizes = ", ".join(str(size) for size in sorted(ARCHITECTURES[architecture].networks))
        raise RobustzooError(
            f"{architecture} has no network for image size {image_size!r}; known sizes: {sizes}, and of "
            "one's own images multiples of a patch (4 pixels near 32, 16 near 224)"
        ) from error
    strides = network.strides
    if patch_stride is not None and patch_stride not in strides:
        raise RobustzooError(
            f"{architecture} has no network of patch stride {patch_stride!r} for image size {image_size}; "
            f"known strides: {', '.join(map(str, (*strides, None)))}"
        )
    return ARCHITECTURES[architecture].network(image_size, patch_stride)
