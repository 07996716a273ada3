"""Guards of the forward: what a model must answer to a few images before any attack on it means anything."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from robustzoo.data.samples import input_shape
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.checks import probe_images
from robustzoo.evaluation.machine import ran_out_of_memory

# Two forwards of the same sample may differ by rounding (another batch shape picks another kernel): by this
# share of what separates classes and images (`_scale`), and of the logit itself. Dropout, batch statistics
# or added noise differ by orders of magnitude more than the first. The second, some 30 float32 spacings,
# allows for logits that lie far from 0 and have fewer digits left.
_SAME, _ROUNDED = 1e-4, 4e-6
# A prediction may change only where two logits are this near, as a share of them: some 8 spacings.
_TIED = 1e-6
# Gradients of the same sample may differ where a kink is met; half of the samples must be this near.
_SAME_GRADIENT = 0.1


def check_forward(model: nn.Module, x: Tensor, *, gradients: bool = True, random: bool = False) -> int:
    """Try the model on a few images and return its number of classes K.

    Args:
        x: (4, C, H, W) in [0, 1] on the model's device, from `probe_images`.
        gradients: the protocol needs the gradient of the logits with respect to the pixels.
        random: the protocol averages over draws of a random model (aa-rand), so two calls may differ. That a
            sample's logits do not depend on its batch cannot be told then, and is not checked.

    Raises:
        RobustzooError: the model states another input_shape; the forward fails or writes into its input; its
            output is not float32 (B, K) with K >= 2; rows are probabilities, or all between 0 and 1; logits
            are not finite; two calls differ; a sample's logits depend on its batch; there is no gradient, or
            the forward that records gradients gives other logits.
    """
    expected = input_shape(model)
    if expected is not None and tuple(x.shape[1:]) != expected:
        raise RobustzooError(
            f"the images have shape {tuple(x.shape[1:])}, but the model expects {expected} (channels, "
            "height, width); expected data of the model's shape: evaluate it on the dataset it was made for. "
            "Folders of images are read as RGB: a model of one channel must reduce them in its forward"
        )
    logits = _forward(model, x)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(x):
        raise RobustzooError(_no_logits(logits, len(x)))
    num_classes = logits.shape[1]
    if num_classes < 2:
        raise RobustzooError(
            "the model has 1 output; expected K >= 2 logits: for a single logit z, return (0, z)"
        )
    if logits.dtype != torch.float32:
        raise RobustzooError(
            f"the model returned {logits.dtype}; expected float32, since verdicts are decided in it: use "
            "model.float() and switch autocast off"
        )
    if not logits.isfinite().all():
        masked = (logits == -torch.inf).all(0)
        if masked.any() and logits[:, ~masked].isfinite().all():
            raise RobustzooError(
                f"{int(masked.sum())} of the model's {num_classes} logits are minus infinity for every "
                "image; expected finite ones, since no loss of an attack can compute with these: leave "
                "masked classes out, or mask them with a large negative number, such as -1e4"
            )
        raise RobustzooError(
            "the model returned NaN or infinite logits for clean images; expected finite ones: check the "
            "weights (a broken checkpoint, or an overflow in the model)"
        )
    if (logits >= 0).all() and ((logits.sum(1) - 1).abs() < 1e-4).all():
        raise RobustzooError(
            "the model's rows are non-negative and sum to 1, which is a softmax; expected logits: return the "
            "scores before the softmax (saturated probabilities hide the gradient and fake robustness)"
        )
    if 0.0 <= logits.min() < 0.1 and 0.9 < logits.max() <= 1.0:  # near both ends: not small logits by chance
        raise RobustzooError(
            "the model's outputs all lie between 0 and 1, as those of a sigmoid do; expected logits: return "
            "the scores before the sigmoid (saturated, it hides the gradient and fakes robustness). Where "
            "they are logits all the same, return them minus 1, which changes no verdict"
        )
    scale = None if random else _scale(logits)
    if scale is None:
        if gradients:
            _check_gradient(model, x, logits, scale)
        return num_classes
    _check_same(_forward(model, x), logits, scale, "between two calls on the same images", _RANDOM)
    for order in ([0], [3, 2, 1, 0], [1, 3], [2, 2, 0]):
        _check_same(_forward(model, x[order]), logits[order], scale, "with the other images", _ALONE)
    if gradients:
        _check_gradient(model, x, logits, scale)
    return num_classes


def check_micro_batch(
    model: nn.Module, images: list[Tensor], size: int, device: torch.device, *, gradients: bool, random: bool
) -> None:
    """Try the model, which `check_forward` has passed with four images, at the shape that the attacks use.

    Args:
        images: (C, H, W) in [0, 1], one or more, of which the first four are compared; repeated where they
            are fewer than `size`.
        gradients, random: as of `check_forward`.

    Raises:
        RobustzooError: the model answers otherwise there than for four images, or by what else is in the
            batch; its gradient is another one, or missing. (Where that shape does not fit into memory the
            next smaller one is tried, as the attacks then do.)
    """
    try:
        _check_shape(model, images, size, device, gradients=gradients, random=random)
    except Exception as error:
        if size == 1 or not ran_out_of_memory(error):
            raise
        smaller = size // 2
    else:
        return
    check_micro_batch(model, images, smaller, device, gradients=gradients, random=random)


def _check_shape(
    model: nn.Module, images: list[Tensor], size: int, device: torch.device, *, gradients: bool, random: bool
) -> None:
    """`check_micro_batch` at one shape."""
    few = probe_images(images).to(device)
    others = torch.stack([images[i % len(images)] for i in range(size)]).to(device)
    kept = min(4, size)
    batch = torch.cat([few[:kept], others[kept:]])
    # Other companions, in the other order, and the compared ones at the end.
    turned = torch.cat([few[:kept], 1.0 - others[kept:]]).flip(0)
    expected = _forward(model, few)
    logits, again = _forward(model, batch), _forward(model, turned)
    for answer in (logits, again):
        if not isinstance(answer, Tensor) or answer.shape != (size, expected.shape[1]):
            shape = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise RobustzooError(
                f"the model's output has shape {shape}; expected ({size}, {expected.shape[1]}), as for four "
                "images: make the forward independent of the size of the batch"
            )
    scale = None if random else _scale(expected)
    if scale is not None:
        where = f"in a batch of {size}, the micro-batch of this run,"
        _check_same(logits[:kept], expected[:kept], scale, where, _ALONE)
        _check_same(again.flip(0)[:kept], expected[:kept], scale, where, _ALONE)
    if gradients:
        found = _check_gradient(model, batch, logits[:kept], scale)
        if scale is not None:
            alone = _check_gradient(model, few, expected, scale)
            _check_same_gradient(found, alone[:kept], size)


_RANDOM = (
    "expected equal logits: switch off what is random in the forward. A randomised defence needs the "
    "protocol aa-rand, which averages over draws"
)
_ALONE = (
    "expected every image to be classified alone: no statistics over the batch, and one forward for all sizes"
)
_RECORDED = (
    "expected the same, or the attacks search on another model than the one that is judged: make the forward "
    "independent of torch.is_grad_enabled() and requires_grad"
)


def _check_same(found: Tensor, expected: Tensor, scale: Tensor, when: str, advice: str) -> None:
    """Raise RobustzooError unless two answers (B, K) to the same images differ by rounding alone.

    scale: from `_scale`, of all images that are compared.
    """
    change = (found - expected).abs()
    if not (change <= _SAME * scale + _ROUNDED * expected.abs()).all():
        share = float((change / (scale + expected.abs() * (_ROUNDED / _SAME)).clamp_min(_TINY)).max())
        raise RobustzooError(
            f"logits of the same image change {when} by {float(change.max()):.2g}, {share:.2g} of what "
            f"separates classes; {advice}"
        )
    top = expected.topk(2, dim=1).values
    tied = top[:, 0] - top[:, 1] <= _SAME * scale + _TIED * top.abs().amax(1)
    if ((found.argmax(1) != expected.argmax(1)) & ~tied).any():
        raise RobustzooError(f"the predicted class of the same image changes {when}; {advice}")


_TINY = torch.finfo(torch.float32).tiny


def _scale(logits: Tensor) -> Tensor:
    """How far apart the logits (B, K) of classes and images are, as one number; neither a common offset nor
    classes that are masked out by a large negative number move it.

    The larger of the widest lead of a best class over the second, and of what a quarter of the differences
    between images do not exceed: a mask is in neither, also where it hides other classes for every image.
    """
    top = logits.topk(2, dim=1).values
    behind = logits - top[:, :1]
    first, second = torch.combinations(torch.arange(len(logits), device=logits.device)).unbind(1)
    between = (behind[first] - behind[second]).abs().flatten()
    return torch.maximum((top[:, 0] - top[:, 1]).max(), between.sort().values[len(between) // 4])


def _no_logits(answer: Any, count: int) -> str:
    """What to say of an answer that is no tensor (B, K): how to get one out of what libraries return."""
    expected = f"expected logits ({count}, K) in one tensor"
    if isinstance(answer, Tensor):
        return f"the model returned {tuple(answer.shape)} for {count} images; {expected}"
    kind = f"the model returned a {type(answer).__name__} for {count} images; {expected}"
    held = list(answer) if isinstance(answer, dict) else []  # of the libraries' outputs too
    names = held or [
        name for name in ("logits", "out", "output") if isinstance(getattr(answer, name, None), Tensor)
    ]
    for name in sorted(names, key=lambda name: name != "logits"):
        value = answer[name] if held else getattr(answer, name)
        if isinstance(value, Tensor) and value.dim() == 2 and len(value) == count:
            take = f"output[{name!r}]" if held else f"output.{name}"
            break
    else:
        if not isinstance(answer, list | tuple) or not answer:
            return f"{kind}: wrap the model in a module whose forward returns them"
        take = "output[0]"
    return (
        f"{kind}. One line takes them out: model.register_forward_hook(lambda module, inputs, output: {take})"
        "; with workers > 1, a function in a file in place of the lambda. If the model came with a processor "
        "that normalises images, its forward must do that too, since it gets pixels in [0, 1]"
    )


def _forward(model: nn.Module, x: Tensor) -> Any:
    """The model's answer as the attacks see it where they need no gradient."""
    given = x.clone()
    try:
        with torch.no_grad():
            logits = model(given)
    except Exception as error:
        raise _failure(x, error) from error
    _check_unchanged(given, x)
    return logits


def _check_unchanged(given: Tensor, x: Tensor) -> None:
    """`given` is what a forward got as a copy of x: what it writes there would move the attacked point."""
    if not torch.equal(given, x):
        raise RobustzooError(
            "the forward changes its input in place; expected it to leave the pixels as they are, since the "
            "attacks go on from them: use x = x - mean instead of x.sub_(mean), and likewise for mul_, "
            "clamp_ and assignments to x[...] or x.data"
        )


def _failure(x: Tensor, error: Exception) -> RobustzooError:
    """What to say of a model that raised `error`, whatever it is but a full memory, on the images x."""
    if ran_out_of_memory(error):
        raise error
    said = str(error).strip().removesuffix(".") or type(error).__name__
    if said.startswith("Guard failed"):  # of torch.export, which holds an axis for constant unless told
        said += ". It was exported for inputs of one shape: export it with dynamic_shapes for the batch"
    if x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        said += ". The images look like (height, width, channels): pass images.permute(0, 3, 1, 2)"
    if any(word in said for word in ("Half", "BFloat16", "Double", "double")):
        said += ". Weights of another precision than float32: use model.float()"
    return RobustzooError(
        f"the model fails on a float32 batch of shape {tuple(x.shape)} in [0, 1] on {x.device}: "
        f"{said}. Expected a module from pixels to logits: wrap what it needs "
        "(resizing, channels, dtype) into its forward"
    )


def _check_gradient(model: nn.Module, x: Tensor, expected: Tensor, scale: Tensor | None) -> Tensor:
    """The gradient (B', C, H, W) of each image's lead of its best class over the second; B' as of `expected`.

    expected: the logits (B', K) of the first B' images without gradients. scale: as of `_check_same`; None
    for a random model, whose logits differ.
    """
    rows, (best, second) = torch.arange(len(expected)), expected.topk(2, dim=1).indices.unbind(1)
    pixels = x.clone().requires_grad_(True)
    try:
        with torch.enable_grad():
            logits = model(pixels)
    except Exception as error:
        raise _failure(x, error) from error
    _check_unchanged(pixels.detach(), x)
    shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
    if shape != (len(x), expected.shape[1]):
        raise RobustzooError(
            f"the model returned logits {shape} where gradients are recorded and {tuple(expected.shape)} "
            "elsewhere; expected one forward for both"
        )
    if scale is not None:
        found = logits.detach()[: len(expected)]
        _check_same(found, expected, scale, "when gradients are recorded", _RECORDED)
    gradient = None
    if logits.requires_grad:
        lead = (logits[rows, best] - logits[rows, second]).sum()
        try:
            (gradient,) = torch.autograd.grad(lead, pixels, allow_unused=True)
        except Exception as error:
            raise _failure(x, error) from error
    if gradient is None:
        raise RobustzooError(
            "the logits have no gradient with respect to the pixels; expected a differentiable forward: "
            "remove no_grad, detach and conversions to numpy, or use the protocol `square`"
        )
    gradient = gradient[: len(expected)]
    if not gradient.isfinite().all():
        raise RobustzooError(
            "the gradient of the logits is not finite on clean images; expected finite values: look for "
            "sqrt, log or a division at zero in the forward"
        )
    return gradient


def _check_same_gradient(found: Tensor, expected: Tensor, size: int) -> None:
    """Raise RobustzooError where most gradients (B, C, H, W) are others in a batch of `size` than alone."""
    change, length = (g.double().flatten(1).norm(dim=1) for g in (found - expected, expected))
    apart = change > _SAME_GRADIENT * length
    if 2 * int(apart.sum()) > len(apart):
        hidden = " (zero)" if not found.any() else ""
        raise RobustzooError(
            f"the gradient is another one{hidden} in a batch of {size}, the micro-batch of this run, than in "
            "a batch of four; expected the same, or the attacks search on another model than the one that is "
            "judged: make the forward independent of the size of the batch"
        )
