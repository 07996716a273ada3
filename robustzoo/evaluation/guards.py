"""Guards: what must be true of a model before its robustness number means anything.

Every guard is an error, since each of these mistakes changes the number and is easily overlooked; only zero
gradients, which a robust model may have on single images, are a warning.
(Images outside [0, 1] and labels that are not class ids are refused where data are opened, in
robustzoo.data.)
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from robustzoo.attacks.frozen import with_mode
from robustzoo.data import ImageDataset


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


def check_eval_mode(model: nn.Module) -> None:
    """Every module that has a mode must be in eval mode.

    Raises:
        GuardError: names the first modules that are in training mode.
    """
    training = [name or type(model).__name__ for name, module in with_mode(model) if module.training]
    if training:
        modules = "1 module is" if len(training) == 1 else f"{len(training)} modules are"
        exported = sum(1 for _ in with_mode(model)) < sum(1 for _ in model.modules())
        advice = "call model.eval() first"
        if exported:  # torch.export's modules raise in eval(), and with them whatever holds them
            advice = "set `training = False` on these, since what torch.export made refuses eval()"
        more = f" and {len(training) - 3} more" if len(training) > 3 else ""
        raise GuardError(
            f"{modules} in training mode ({', '.join(training[:3])}{more}); expected none, "
            f"since dropout and batch statistics change the verdicts: {advice}"
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
