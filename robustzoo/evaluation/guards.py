"""Guards: what must be true of a model before its robustness number means anything.

Every guard is an error, since each of these mistakes changes the number and is easily overlooked; only zero
gradients, which a robust model may have on single images, are a warning.
(Images outside [0, 1] and labels that are not class ids are refused where data are opened, in
robustzoo.data.)
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustzoo.data import ImageDataset

# Two forwards of the same sample may differ by rounding (another batch shape picks another kernel), relative
# to the largest logit. Dropout, batch statistics or added noise differ by orders of magnitude more.
_SAME = 1e-4


# Share of the attacked images beyond which zero gradients are no accident.
_FEW = 0.01


class EvaluationWarning(UserWarning):
    """The number stands, but a reader of it should know more."""


class GuardError(ValueError):
    """The model or the data would give a meaningless number; the message says what to change."""


def check_labels(labels: Sequence[int] | np.ndarray, num_classes: int, classes: Sequence[str] = ()) -> None:
    """Every class id of the data must be an output of the model. classes: the names, where they have some.

    Raises:
        GuardError: a label below 0 or at least `num_classes`.
    """
    labels = np.asarray(labels)
    for index in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
        label = labels[index]
        name = classes[label] if 0 <= label < len(classes) else str(label)
        called = "" if name == str(label) else f" (class {name!r})"
        raise GuardError(
            f"label of sample {index} is {label}{called}, but the model has {num_classes} outputs: expected "
            f"0..{num_classes - 1}. Check that model and data number the same classes in the same order, "
            "from 0"
        )


def outputs_note(classes: Sequence[str], num_classes: int) -> str | None:
    """What to say where the model has more outputs than the data have named classes; None where not."""
    if len(classes) >= num_classes or list(classes) == [str(k) for k in range(len(classes))]:
        return None  # numbers are no names: there, the classes are those that occur
    return (
        f"the model has {num_classes} outputs, the data {len(classes)} classes, {classes[0]!r} to "
        f"{classes[-1]!r}: they are taken for the first {len(classes)} outputs, and any other answer is wrong"
    )


def masking_warning(blind: Mapping[str, int], attacked: int) -> str | None:
    """What to say of gradients that were zero throughout; None where that is no more than a few images.

    Args:
        blind: attack -> images for which every gradient it asked for was zero.
        attacked: images that were classified correctly, and so attacked.
    """
    many = {attack: count for attack, count in blind.items() if count > _FEW * attacked}
    if not many:
        return None
    counts = ", ".join(f"{attack} on {count} of {attacked} images" for attack, count in many.items())
    return (
        f"gradient masking suspected: every gradient was zero for {counts}, so these attacks could not "
        "search and the robust accuracy may be overestimated. Look for rounding, detach or saturated "
        "outputs in the model, and evaluate it without them or with a protocol that includes `square`"
    )


def check_eval_mode(model: nn.Module) -> None:
    """Every module must be in eval mode.

    Raises:
        GuardError: names the first modules that are in training mode.
    """
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        modules = "1 module is" if len(training) == 1 else f"{len(training)} modules are"
        more = f" and {len(training) - 3} more" if len(training) > 3 else ""
        raise GuardError(
            f"{modules} in training mode ({', '.join(training[:3])}{more}); expected none, "
            "since dropout and batch statistics change the verdicts: call model.eval() first"
        )


def input_shape(model: nn.Module) -> tuple[int, int, int] | None:
    """(channels, height, width) that a model states for its images in its attribute, None where it does not.

    Raises:
        GuardError: the attribute is anything but three positive integers.
    """
    stated = getattr(model, "input_shape", None)
    if stated is None:
        return None
    sides = list(stated) if isinstance(stated, Sequence) and not isinstance(stated, str | bytes) else []
    if len(sides) != 3 or not all(
        isinstance(side, numbers.Integral) and not isinstance(side, bool) and int(side) > 0 for side in sides
    ):
        raise GuardError(
            f"the model's input_shape is {stated!r}; expected (channels, height, width), three positive "
            "integers: correct the attribute, or leave it away for images of 224 x 224"
        )
    channels, height, width = map(int, sides)
    return channels, height, width


def probe_images(images: list[Tensor]) -> Tensor:
    """(4, C, H, W) images to try a model on: the first four given, or fewer and their negatives."""
    images = images[:4]
    return torch.stack([*images, *(1.0 - x for x in images), *images, *images][:4])


def read_probe(dataset: ImageDataset) -> list[Tensor]:
    """The first four images of a dataset (or all of fewer), after each was read again and found the same.

    Raises:
        GuardError: an image or its label differs between reads.
    """
    images = []
    for i in range(min(4, len(dataset))):
        x, label = dataset[i]
        for _ in range(3):  # a flip by chance shows in one of three
            again, other = dataset[i]
            if label != other or not torch.equal(x, again):
                raise GuardError(
                    f"the {'label' if label != other else 'image'} of item {i} differs between two reads; "
                    "expected the same on every read: leave training transforms (random crops, flips, noise) "
                    "out"
                )
        images.append(x)
    return images


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
