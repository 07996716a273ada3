"""What a stranger's model folder shows by its files alone, before torch is loaded for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.untrusted_files import UnfitFile, read_object, safetensors_header

WEIGHTS, CONFIG = "model.safetensors", "config.json"
LARGEST_CONFIG = 2**20  # bytes
# How timm's networks call their layers; each has one tensor at least.
_LAYERS = ("depth", "depths", "layers", "num_layers", "blocks", "num_blocks")
_LARGEST_SIDE = 10_000  # of images, in pixels; whatever else is larger is the size of a tensor


def check_files(folder: Path) -> None:
    """Refuse weights that are none, and a configuration that would build a network of another size than
    theirs or name a file elsewhere. What is missing or no JSON is left to who reads it.

    Raises:
        RobustzooError: what is wrong, and the next step.
    """
    weights, config = folder / WEIGHTS, folder / CONFIG
    if not weights.is_file():
        return
    header = safetensors_header(weights)
    try:
        document = read_object(config, LARGEST_CONFIG)
    except (UnfitFile, FileNotFoundError):
        return
    arguments, stated = document.get("model_args"), document.get("pretrained_cfg")
    if isinstance(arguments, dict):
        _check_size(config, arguments, header)
    file = stated.get("file") if isinstance(stated, dict) else None
    if file is not None:
        raise RobustzooError(
            f"{config}: pretrained_cfg.file names {str(file)[:80]!r}; weights are {WEIGHTS} of the same "
            "folder, and no other file is read. Remove that key, or take the folder from who made it"
        )


def _check_size(config: Path, arguments: dict[str, Any], header: dict[str, tuple]) -> None:
    layers = sum(sum(_numbers(arguments.get(key))) for key in _LAYERS)
    if layers > len(header):
        raise RobustzooError(
            f"{config}: model_args describes {layers} layers, and {WEIGHTS} holds {len(header)} tensors, so "
            "they are not of one model; take the original again"
        )
    largest = max((side for _, shape in header.values() for side in shape), default=0)
    for key, value in arguments.items():
        if (most := max(_numbers(value), default=0)) > max(largest, _LARGEST_SIDE):
            raise RobustzooError(
                f"{config}: model_args.{str(key)[:40]} is {most}, and no tensor of {WEIGHTS} is that large, "
                "so they are not of one model; take the original again"
            )


def _numbers(value: Any) -> Iterator[int]:
    """The whole numbers of a value, or of a list of them."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, int) and not isinstance(item, bool):
            yield item
