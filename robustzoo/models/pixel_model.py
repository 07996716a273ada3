"""PixelModel: pixels in [0, 1] in, logits out; the normalisation lives inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from robustzoo import keyed_noise
from robustzoo.errors import RobustzooError
from robustzoo.models.architectures import build_for
from robustzoo.models.batch_norm import apart
from robustzoo.models.preprocessing import PixelTransform, names_of_classes, preprocessing_of

if TYPE_CHECKING:
    from robustzoo.registry import Recipe, ThreatModel


class PixelModel(nn.Module):
    """A classifier of pixels: `logits = head(features)`, equal to `network((x - mean) / std)`.

    Attacks work in pixel space, so the normalisation is part of the model and epsilon needs no rescaling.

    Args:
        network: a timm classifier of normalised images.
        mean: per-channel mean in pixel units of [0, 1]; length 1 or C.
        std: per-channel standard deviation, > 0; length 1 or C.
        input_shape: (C, H, W) of its images; default: what the network says, if it does.

    Attributes:
        validate_pixels: check every input (True). Loops that clamp to [0, 1] themselves set it to False.
        compute_dtype: None, or torch.bfloat16 or float16 for autocast up to the features, in training only;
            weights, features and the head stay float32.
        has_linear_head: whether timm's interfaces give the last layer as a linear one: without it `features`
            and `head` are refused, and with them what the closed-form traces need.
        name, recipe, threat_model, card, license, folder: what the weights are and where they came from; None
            for a model that was not loaded. `card` is the text of README.md.

    Raises:
        ValueError: mean or std has the wrong length, is not finite, or std is not positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        mean: Sequence[float],
        std: Sequence[float],
        input_shape: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.has_linear_head = isinstance(getattr(network, "get_classifier", lambda: None)(), nn.Linear)
        self.input_shape = input_shape or _input_shape(network)
        channels = self.input_shape[0] if self.input_shape else len(mean)
        for label, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                raise ValueError(
                    f"{label} has {len(values)} values; expected 1 or {channels} (one per channel)"
                )
            if not all(math.isfinite(value) and (label == "mean" or value > 0) for value in values):
                raise ValueError(f"{label} is {tuple(values)}; expected finite values, and std > 0")
            tensor = torch.tensor([float(value) for value in values], dtype=torch.float32)
            # Not persistent: the stored weights are exactly timm's keys, the numbers live in config.json.
            self.register_buffer(label, tensor.view(-1, 1, 1), persistent=False)
        self.validate_pixels = True
        self.compute_dtype: torch.dtype | None = None
        self.name: str | None = None
        self.recipe: Recipe | None = None
        self._preprocessing: dict[str, Any] | None = None
        self.threat_model: ThreatModel | None = None
        self.card: str | None = None
        self.license: str | None = None
        self.folder: Path | None = None

    @property
    def head(self) -> nn.Linear:
        """The last linear layer, (d) -> (K). Raises: RobustzooError for a network without one."""
        if not self.has_linear_head:
            raise self._no_linear_head()
        return self.network.get_classifier()

    @property
    def num_classes(self) -> int:
        """K, of the logits."""
        return self.head.out_features if self.has_linear_head else self.network.num_classes

    @property
    def classes(self) -> tuple[str, ...]:
        """K names in the order of the logits: of the recipe's images, else the numbers.

        >>> import robustzoo
        >>> robustzoo.load("vit_micro2.digits_linf.at_base").classes[:3]
        ('0', '1', '2')
        """
        return names_of_classes(getattr(self, "imported", None) or self.recipe, self.num_classes)

    def transform(self) -> PixelTransform:
        """A function from a photograph (Pillow's image, a path, bytes) to its pixels, float32 (C, H, W) in
        [0, 1]: scaled and cropped as for the model's evaluation. Logits: `model(transform("x.jpg")[None])`.

        >>> import robustzoo
        >>> from PIL import Image
        >>> model = robustzoo.load("vit_micro2.digits_linf.at_base")
        >>> model.transform()(Image.new("RGB", (60, 40), "white")).shape
        torch.Size([1, 8, 8])
        """
        return PixelTransform(self.input_shape, self.preprocessing)

    @property
    def preprocessing(self) -> dict[str, Any] | None:
        """How photographs are brought to its size, in timm's words: crop_pct, crop_mode, interpolation (and
        mean). That of its recipe, unless another is set; None where nobody says."""
        stated = self._preprocessing
        return preprocessing_of(self.recipe) if stated is None and self.recipe is not None else stated

    @preprocessing.setter
    def preprocessing(self, stated: dict[str, Any]) -> None:
        self._preprocessing = stated

    def normalise(self, x: Tensor) -> Tensor:
        """(B, C, H, W) pixels -> what `network` expects, same shape."""
        return (x - self.mean) / self.std

    def features(self, x: Tensor) -> Tensor:
        """Penultimate features (B, d) of pixels x: (B, C, H, W) in [0, 1].

        Raises:
            RobustzooError: see `forward`.
        """
        if not self.has_linear_head:
            raise self._no_linear_head()
        return self._through(self._before_head, x)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, K) of pixels x: (B, C, H, W) in [0, 1].

        Raises:
            RobustzooError: x is not floating point, has another shape, contains NaN or leaves [0, 1]
                (only while `validate_pixels` is True).
        """
        return self.head(self.features(x)) if self.has_linear_head else self._through(self.network, x)

    def check_head(self) -> None:
        """Compare `head(features)` with what timm's network answers: no test of ours has seen all of them.

        Raises:
            RobustzooError: they are not the same function.
        """
        if not self.has_linear_head or self.input_shape is None:
            return
        x = keyed_noise.uniform(0, torch.arange(2), "head", self.input_shape).to(self.mean.device)
        modes = [(module, module.training) for module in self.modules()]
        try:
            with torch.no_grad():
                found, wanted = self.eval()(x), self.network(self.normalise(x))
        finally:
            for module, mode in modes:
                module.training = mode
        if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4):
            raise RobustzooError(
                f"{type(self.network).__name__} does not answer its head's logits of its own features "
                "(forward_head(pre_logits=True), get_classifier()), so that it cannot be trained here: take "
                "another network"
            )

    def _before_head(self, normalised: Tensor) -> Tensor:
        return self.network.forward_head(self.network.forward_features(normalised), pre_logits=True)

    def _no_linear_head(self) -> RobustzooError:
        return RobustzooError(
            f"the last layer of {type(self.network).__name__} is not linear, and TrH's trace is that of a "
            "linear head: train without trh, or take another network"
        )

    def _through(self, network: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """What a network, or the part of one, makes of pixels; float32 whatever it computes in."""
        if self.validate_pixels and not is_captured():
            self._check(x)
        lowered = self.compute_dtype is not None
        with torch.autocast(x.device.type, self.compute_dtype) if lowered else nullcontext():
            made = network(self.normalise(x))
        return made.float() if lowered else made

    def _check(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            raise RobustzooError(f"pixels are a {type(x).__name__}; expected a torch.Tensor (B, C, H, W)")
        if not x.is_floating_point():
            raise RobustzooError(
                f"pixels are {x.dtype}; expected float32 in [0, 1] (for uint8: x.float() / 255)"
            )
        expected = ("C", "H", "W") if self.input_shape is None else self.input_shape
        if x.dim() != 4 or (self.input_shape is not None and tuple(x.shape[1:]) != self.input_shape):
            sides = ", ".join(str(side) for side in expected)
            raise RobustzooError(f"pixels have shape {tuple(x.shape)}; expected (B, {sides})")
        dtype = self.mean.dtype
        if torch.promote_types(x.dtype, dtype) != dtype and not torch.is_autocast_enabled(x.device.type):
            raise RobustzooError(f"pixels are {x.dtype} but the model computes in {dtype}; use x.to({dtype})")
        if x.numel() == 0:
            return
        low, high = (bound.item() for bound in torch.aminmax(x.detach()))
        if low >= 0 and high <= 1:  # false for NaN as well: aminmax passes it on
            return
        if x.isnan().any():
            raise RobustzooError("pixels contain NaN; expected values in [0, 1]")
        shown = str if x.dtype == torch.float64 else np.float32  # all digits: 1.0000001 must not read 1
        raise RobustzooError(
            f"pixels lie in [{shown(low)!s}, {shown(high)!s}]; expected [0, 1]. The model normalises by "
            "itself: pass images divided by 255 and nothing else (.clamp(0, 1) where rounding left the range)"
        )


class FeaturesAndLogits(nn.Module):
    """A PixelModel from pixels (B, C, H, W) to features (B, d) and logits (B, K), both as outputs.

    Of a network without a linear head the features are none: (B, 0).

    Loss terms must reach the weights through a module's outputs: DeepSpeed scales nothing else under
    accumulation, and torch.func calls nothing else with other weights.

    Args:
        parts: equal parts of a training batch that batch norm sees apart, see `batch_norm`.
        head_square: the square norm of the head's weight is a third output, a scalar.
    """

    def __init__(self, pixel_model: PixelModel, parts: int = 1, head_square: bool = False) -> None:
        super().__init__()
        self.pixel_model = pixel_model
        self.parts = parts
        self.head_square = head_square

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        model = self.pixel_model
        if not model.has_linear_head:
            logits = apart(model, model, x, self.parts)
            return logits.detach()[:, :0], logits
        features = apart(model, model.features, x, self.parts)
        logits = model.head(features)
        return (
            (features, logits, model.head.weight.square().sum()) if self.head_square else (features, logits)
        )


def is_captured() -> bool:
    """Whether a forward is being traced, compiled or exported: a graph has no place for a check of values."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def pixel_model(recipe: Recipe) -> PixelModel:
    """A model of `recipe` in training mode, randomly initialised from torch's global generator."""
    return around(build_for(recipe), recipe)


def around(network: nn.Module, recipe: Recipe) -> PixelModel:
    """The recipe's normalisation around its network."""
    shape = (recipe.channels, recipe.image_size, recipe.image_size)
    return PixelModel(network, recipe.mean, recipe.std, shape)


def _input_shape(network: nn.Module) -> tuple[int, int, int] | None:
    """(C, H, W) of a network with a fixed image size, None where it does not say."""
    says = network if hasattr(network, "img_size") else getattr(network, "patch_embed", None)
    size = getattr(says, "img_size", None)
    channels = getattr(network, "in_chans", None)
    if size is None or channels is None:
        return None
    return (channels, size[0], size[1])
