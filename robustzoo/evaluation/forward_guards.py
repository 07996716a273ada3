"""Guards of the forward: what a model must answer to a few images before any attack on it means anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from robustzoo.evaluation.guards import GuardError, input_shape

# Two forwards of the same sample may differ by rounding (another batch shape picks another kernel), relative
# to the largest logit. Dropout, batch statistics or added noise differ by orders of magnitude more.
_SAME = 1e-4


def check_forward(model: nn.Module, x: Tensor, *, gradients: bool = True, random: bool = False) -> int:
    """Try the model on a few images and return its number of classes K.

    Args:
        x: (4, C, H, W) in [0, 1] on the model's device, from `probe_images`.
        gradients: the protocol needs the gradient of the logits with respect to the pixels.
        random: the protocol averages over draws of a random model (aa-rand), so two calls may differ. That a
            sample's logits do not depend on its batch cannot be told then, and is not checked.

    Raises:
        GuardError: the model states another input_shape; the forward fails or writes into its input; its
            output is not float32 (B, K) with K >= 2; rows are probabilities; logits are not finite; two calls
            differ; a sample's logits depend on its batch; there is no gradient, or the forward that records
            gradients gives other logits.
    """
    expected = input_shape(model)
    if expected is not None and tuple(x.shape[1:]) != expected:
        raise GuardError(
            f"the images have shape {tuple(x.shape[1:])}, but the model expects {expected} (channels, "
            "height, width); expected data of the model's shape: evaluate it on the dataset it was made for. "
            "Folders of images are read as RGB: a model of one channel must reduce them in its forward"
        )
    logits = _forward(model, x)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise GuardError(
            f"the model returned {shape} for {len(x)} images; expected logits ({len(x)}, K) in one tensor"
        )
    num_classes = logits.shape[1]
    if num_classes < 2:
        raise GuardError(
            "the model has 1 output; expected K >= 2 logits: for a single logit z, return (0, z)"
        )
    if logits.dtype != torch.float32:
        raise GuardError(
            f"the model returned {logits.dtype}; expected float32, since verdicts are decided in it: use "
            "model.float() and switch autocast off"
        )
    if not logits.isfinite().all():
        raise GuardError(
            "the model returned NaN or infinite logits for clean images; expected finite ones: check the "
            "weights (a broken checkpoint, or an overflow in the model)"
        )
    if (logits >= 0).all() and ((logits.sum(1) - 1).abs() < 1e-4).all():
        raise GuardError(
            "the model's rows are non-negative and sum to 1, which is a softmax; expected logits: return the "
            "scores before the softmax (saturated probabilities hide the gradient and fake robustness)"
        )
    if random:
        if gradients:
            _check_gradient(model, x, logits, random)
        return num_classes
    scale = 1.0 + logits.abs().max()
    again = (_forward(model, x) - logits).abs().max() / scale
    if not again <= _SAME:
        raise GuardError(
            f"two calls on the same images differ by {float(again):.2g} of the largest logit; expected equal "
            "logits: switch off what is random in the forward. A randomised defence needs the protocol "
            "aa-rand, which averages over draws"
        )
    for order in ([0], [3, 2, 1, 0], [1, 3], [2, 2, 0]):
        other = (_forward(model, x[order]) - logits[order]).abs().max() / scale
        if not other <= _SAME:
            raise GuardError(
                f"logits of the same image change by {float(other):.2g} of the largest logit with the other "
                "images of the batch; expected every image to be classified alone: no statistics over the "
                "batch"
            )
    if gradients:
        _check_gradient(model, x, logits, random)
    return num_classes


def _forward(model: nn.Module, x: Tensor) -> Any:
    """The model's answer as the attacks see it where they need no gradient."""
    given = x.clone()
    try:
        with torch.inference_mode():
            logits = model(given)
    except Exception as error:
        raise _failure(x, error) from error
    _check_unchanged(given, x)
    return logits


def _check_unchanged(given: Tensor, x: Tensor) -> None:
    """`given` is what a forward got as a copy of x: what it writes there would move the attacked point."""
    if not torch.equal(given, x):
        raise GuardError(
            "the forward changes its input in place; expected it to leave the pixels as they are, since the "
            "attacks go on from them: use x = x - mean instead of x.sub_(mean), and likewise for mul_, "
            "clamp_ and assignments to x[...] or x.data"
        )


def _failure(x: Tensor, error: Exception) -> GuardError:
    """What to say of a model that raised `error`, whatever it is, on the images x."""
    said = str(error).strip().removesuffix(".") or type(error).__name__
    return GuardError(
        f"the model fails on a float32 batch of shape {tuple(x.shape)} in [0, 1] on {x.device}: "
        f"{said}. Expected a module from pixels to logits: wrap what it needs "
        "(resizing, channels, dtype) into its forward"
    )


def _check_gradient(model: nn.Module, x: Tensor, expected: Tensor, random: bool) -> None:
    """`expected`: the logits (4, K) of the forward without gradients, the same unless the model is random."""
    pixels = x.clone().requires_grad_(True)
    try:
        with torch.enable_grad():
            logits = model(pixels)
            gradient = (
                torch.autograd.grad(logits.sum(), pixels, allow_unused=True)[0]
                if logits.requires_grad
                else None
            )
    except Exception as error:
        raise _failure(x, error) from error
    _check_unchanged(pixels.detach(), x)
    if logits.shape != expected.shape:
        raise GuardError(
            f"the model returned logits {tuple(logits.shape)} where gradients are recorded and "
            f"{tuple(expected.shape)} elsewhere; expected one forward for both"
        )
    change = (logits.detach() - expected).abs().max() / (1.0 + expected.abs().max())
    if not random and not change <= _SAME:
        raise GuardError(
            f"logits change by {float(change):.2g} of the largest logit when gradients are recorded; "
            "expected the same, or the attacks search on another model than the one that is judged: make the "
            "forward independent of torch.is_grad_enabled() and requires_grad"
        )
    if gradient is None:
        raise GuardError(
            "the logits have no gradient with respect to the pixels; expected a differentiable forward: "
            "remove no_grad, detach and conversions to numpy, or use the protocol `square`"
        )
    if not gradient.isfinite().all():
        raise GuardError(
            "the gradient of the logits is not finite on clean images; expected finite values: look for "
            "sqrt, log or a division at zero in the forward"
        )
