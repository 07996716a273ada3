"""Models of timm that robustzoo did not make: their own preprocessing folded in, so that they take pixels."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path

import timm
from timm.data import resolve_data_config
from torch import Tensor, nn

from robustzoo.errors import RobustzooError
from robustzoo.models.pixel_model import PixelModel, is_captured


class ForeignModel(PixelModel):
    """A timm classifier behind its own normalisation: pixels (B, C, H, W) in [0, 1] to logits (B, K).

    Unlike a PixelModel's, its last layer need not be linear; only `forward` and `normalise` are promised.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, K). Raises: RobustzooError as PixelModel."""
        if self.validate_pixels and not is_captured():
            self._check(x)
        return self.network(self.normalise(x))


def weights_on_hub(name: str) -> tuple[str, str] | None:
    """(repository, file) from which timm takes a model's weights; None where it has them elsewhere."""
    try:
        cfg = timm.models.get_pretrained_cfg(name, allow_unregistered=True)
    except RuntimeError:  # no such weights of an architecture that there is: `timm_model` says it
        return None
    if cfg is None or not cfg.hf_hub_id or cfg.file or cfg.custom_load == "hf":
        return None
    return cfg.hf_hub_id, cfg.hf_hub_filename or "model.safetensors"


def timm_model(
    name: str, shown: str | None = None, *, pretrained: bool = True, weights: Path | None = None
) -> ForeignModel:
    """A model of timm by its own name, in eval mode, on pixels of the size that it was made for.

    Args:
        name: such as "resnet18" or "vit_base_patch16_224.augreg_in21k_ft_in1k"; "local-dir:FOLDER" for a
            folder in timm's layout.
        shown: what Evidence calls it; default: "timm:NAME".
        pretrained: with weights, from the Hub where timm keeps them. False gives random ones.
        weights: the file that holds them, where it is at hand.

    Raises:
        RobustzooError: timm has no such model or weights, or the weights cannot be had.
    """
    try:
        at_hand = None if weights is None else {"file": str(weights), "custom_load": False}
        network = timm.create_model(name, pretrained=pretrained, pretrained_cfg_overlay=at_hand)
    except (
        Exception
    ) as error:  # of timm, of the Hub's client, of the file: whatever it is, the name is at fault
        reason = str(error).strip().rstrip(".") or type(error).__name__
        near = [] if ":" in name else get_close_matches(name.partition(".")[0], timm.list_models(), 3)
        known = not near or name.partition(".")[0] in near
        raise RobustzooError(
            f"timm cannot make {shown or name}: {reason}."
            f"{'' if known else ' Did you mean ' + ', '.join(near) + '?'} Expected a name of "
            "timm.list_models(pretrained=True), with a network or its weights in the Hub's cache"
        ) from error
    return fold(network, shown or f"timm:{name}")


def timm_folder(folder: Path, shown: str) -> ForeignModel:
    """The model of a folder in timm's layout (config.json, model.safetensors). Raises: RobustzooError."""
    _refuse_other_layout(folder, shown)
    for file in ("config.json", "model.safetensors"):
        if not (folder / file).is_file():
            raise RobustzooError(
                f"{shown} has no {file}; expected a repository in timm's layout, with config.json and "
                "model.safetensors (other formats can run code when they are read, so none is tried)"
            )
    return timm_model(f"local-dir:{folder}", shown)


def _refuse_other_layout(folder: Path, shown: str) -> None:
    """Name the libraries whose repositories are often taken for timm's."""
    factory = "write a factory that loads it there and returns its logits, and name it as FILE.py:FUNCTION"
    if (folder / "open_clip_config.json").is_file():
        raise RobustzooError(
            f"{shown} is in the layout of open_clip: an encoder of images and texts, without classes of its "
            f"own; {factory}, for example a zero-shot classifier"
        )
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return  # absent or damaged: said elsewhere
    if isinstance(config, dict) and "architecture" not in config:
        if "model_type" in config or "architectures" in config:
            of = str(config.get("architectures") or config.get("model_type"))[:80]
            raise RobustzooError(
                f"{shown} is in the layout of transformers ({of!r}), not of timm; {factory}: "
                "lambda: a module whose forward gives AutoModelForImageClassification(pixels).logits"
            )
        raise RobustzooError(
            f"{shown} has a config.json that names no architecture of timm; expected timm's layout, or "
            f"{factory}"
        )


def fold(network: nn.Module, shown: str) -> ForeignModel:
    """Put the normalisation that a timm network states in front of it.

    Raises:
        RobustzooError: it states none, or no image size.
    """
    stated = getattr(network, "pretrained_cfg", None) or {}
    mean, std, shape = (stated.get(key) for key in ("mean", "std", "input_size"))
    if mean is None or std is None or shape is None or len(shape) != 3:
        raise RobustzooError(
            f"{shown} does not say how it wants its pixels (mean, std and input_size of its pretrained_cfg); "
            "write a factory that normalises inside, and name it as FILE.py:FUNCTION"
        )
    if stated.get("num_classes") == 0 or getattr(network, "num_classes", None) == 0:
        raise RobustzooError(f"{shown} has no classifier (0 classes); expected one that gives logits")
    try:
        model = ForeignModel(network.eval(), mean, std)
    except ValueError as error:
        raise RobustzooError(f"{shown}: {error}") from error
    # Another size would run in many networks, and be another model: the size is part of the preprocessing.
    model.input_shape = tuple(int(side) for side in shape)
    model.preprocessing = resolve_data_config(pretrained_cfg=stated)
    model.name = shown
    return model.eval()
