"""Checks: what a user hands in, and what must be true of a model before its number means anything.

Each is an error, since it would change the number and is easily overlooked; only zero gradients, which a
robust model may have on single images, are a warning. (Images outside [0, 1] and labels that are not class
ids are refused where data are opened, in robustzoo.data.)
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from robustzoo.attacks.frozen import with_mode
from robustzoo.attacks.protocols import Protocol
from robustzoo.attacks.protocols import protocol as make_protocol
from robustzoo.cards.evidence import Evidence
from robustzoo.data import ImageDataset
from robustzoo.errors import RobustzooError
from robustzoo.registry import ThreatModel


class EvaluationWarning(UserWarning):
    """The number stands, but a reader of it should know more."""


def check_model(model: Any) -> None:
    """Raise RobustzooError unless `model` is a module, saying how to make one of what was given."""
    if isinstance(model, nn.Module):
        return
    expected = "expected a torch.nn.Module from pixels (B, C, H, W) in [0, 1] to logits (B, K)"
    if isinstance(model, str | os.PathLike):
        name = str(model)
        raise RobustzooError(f"model is {name!r}, a name; {expected}: pass robustzoo.load({name!r})")
    if isinstance(model, type):
        raise RobustzooError(f"model is the class {model.__name__}; {expected}: pass an instance of it")
    if callable(model):
        kind = type(model).__name__
        raise RobustzooError(
            f"model is a {kind}; {expected}: wrap the function in a class Wrapped(torch.nn.Module) whose "
            "__init__ keeps the networks it uses as attributes (their eval mode and weights are looked "
            "after) and whose forward calls the function"
        )
    raise RobustzooError(f"model is {_shown(model)}; {expected}")


def check_placed(model: nn.Module, device: torch.device) -> None:
    """Raise RobustzooError unless the model has weights with values, and the device can compute with them and
    their gradients."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise RobustzooError(
                f"the model's {name} has no shape yet (a lazy module); expected trained weights: run one "
                "batch through the model, or load its weights, first"
            )
        if tensor.is_inference():
            raise RobustzooError(
                f"the model's {name} was made under torch.inference_mode, and no gradient can pass such a "
                "tensor; expected ordinary weights: make the model, or load its weights, outside of it"
            )
        if tensor.device.type == "meta":
            raise RobustzooError(
                f"the model's {name} is on the meta device, without values; expected weights on cpu or cuda: "
                "load them first"
            )
    if device.type == "meta":
        raise RobustzooError("device 'meta' cannot be used: it computes no values. Expected cpu, or cuda")


def check_threat_model(threat_model: Any, model: nn.Module) -> ThreatModel:
    """The threat model that is meant: the one given, else the model's own.

    Raises:
        RobustzooError: there is neither.
        ThreatModelError: it is none.
    """
    if threat_model is None:
        threat_model = getattr(model, "threat_model", None)
        if threat_model is None:
            raise RobustzooError(
                'no threat model: the model has none of its own; pass one such as "linf:8/255"'
            )
    return ThreatModel.parse(threat_model)


def check_protocol(protocol: Any, threat_model: ThreatModel) -> Protocol:
    """The protocol of that name, at ten classes: their number chooses losses, not names.

    Raises:
        RobustzooError: it is no name. ProtocolError: it is no protocol for this norm.
    """
    if not isinstance(protocol, str):
        raise RobustzooError(
            f"protocol is {_shown(protocol)}; expected a name such as 'aa-standard', 'apgd-ce+t' or 'pgd-40'"
        )
    return make_protocol(protocol, threat_model, 10)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= least


def _path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and bool(str(value)) and "\0" not in str(value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip()) and value.isprintable()


_POSITIVE = (lambda value: _whole(value, 1), "a whole number of at least 1")
_FLAG = (lambda value: isinstance(value, bool), "True or False")
_FOLDER = (_path, "the path of a folder")
# Argument -> what is asked of it, and in words; None passes where the argument may be left away.
_RULES: dict[str, tuple[tuple[Callable[[Any], bool], str], ...]] = {
    "n": (_POSITIVE,),
    "micro_batch_size": (_POSITIVE,),
    "workers": (_POSITIVE,),
    "tolerance": ((lambda value: _whole(value, 0), "a whole number of at least 0"),),
    "seed": (
        (lambda value: _whole(value, 0), "a whole number of at least 0"),
        (lambda value: value < 2**64, "a whole number below 2^64"),
    ),
    "compiled": (_FLAG,),
    "restart": (_FLAG,),
    "progress": (
        (
            lambda value: isinstance(value, bool) or callable(value),
            "True, False, or a function of one message (a dict)",
        ),
    ),
    "name": ((_text, "printable text, or None for the model's own name"),),
    "data_root": (_FOLDER,),
    "out": (_FOLDER,),
    "smaller": ((lambda value: isinstance(value, Evidence), "an Evidence, or None"),),
}
_NEEDED = {"seed", "workers", "compiled", "restart", "progress"}


def check_arguments(**given: Any) -> None:
    """Raise RobustzooError at the first argument that is not what `_RULES` asks of its name."""
    for name, value in given.items():
        if value is None and name not in _NEEDED:
            continue
        for holds, expected in _RULES[name]:
            if not holds(value):
                raise RobustzooError(f"{name} is {_shown(value)}; expected {expected}")


def _shown(value: Any) -> str:
    """The value for a message, with its type where its text would not tell it."""
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return text if value is None else f"{text} ({type(value).__name__})"


def check_labels(labels: Sequence[int] | np.ndarray, num_classes: int, classes: Sequence[str] = ()) -> None:
    """Every class id of the data must be an output of the model. classes: the names, where they have some.

    Raises:
        RobustzooError: a label below 0 or at least `num_classes`, or more classes than these.
    """
    labels = np.asarray(labels)
    for index in np.flatnonzero((labels < 0) | (labels >= num_classes))[:1]:
        label = labels[index]
        name = classes[label] if 0 <= label < len(classes) else str(label)
        called = "" if name == str(label) else f" (class {name!r})"
        raise RobustzooError(
            f"label of sample {index} is {label}{called}, but the model has {num_classes} outputs: expected "
            f"0..{num_classes - 1}. Check that model and data number the same classes in the same order, "
            "from 0"
        )
    if len(classes) > num_classes and not _are_numbers(classes):
        raise RobustzooError(
            f"the data have {len(classes)} classes, {classes[0]!r} to {classes[-1]!r}, and the model has "
            f"{num_classes} outputs: give the images of its classes alone, or a model of them all"
        )


def _are_numbers(classes: Sequence[str]) -> bool:
    """Whether nobody named them: there, the classes are those that occur."""
    return list(classes) == [str(k) for k in range(len(classes))]


def outputs_note(classes: Sequence[str], num_classes: int) -> str | None:
    """What to say where the model has more outputs than the data have named classes; None where not."""
    if len(classes) >= num_classes or _are_numbers(classes):
        return None
    return (
        f"the model has {num_classes} outputs, the data {len(classes)} classes, {classes[0]!r} to "
        f"{classes[-1]!r}: they are taken for the first {len(classes)} outputs, and any other answer is wrong"
    )


def check_eval_mode(model: nn.Module) -> None:
    """Every module that has a mode must be in eval mode.

    Raises:
        RobustzooError: names the first modules that are in training mode.
    """
    training = [name or type(model).__name__ for name, module in with_mode(model) if module.training]
    if training:
        modules = "1 module is" if len(training) == 1 else f"{len(training)} modules are"
        exported = sum(1 for _ in with_mode(model)) < sum(1 for _ in model.modules())
        advice = "call model.eval() first"
        if exported:  # torch.export's modules raise in eval(), and with them whatever holds them
            advice = "set `training = False` on these, since what torch.export made refuses eval()"
        more = f" and {len(training) - 3} more" if len(training) > 3 else ""
        raise RobustzooError(
            f"{modules} in training mode ({', '.join(training[:3])}{more}); expected none, "
            f"since dropout and batch statistics change the verdicts: {advice}"
        )


def probe_images(images: list[Tensor]) -> Tensor:
    """(4, C, H, W) images to try a model on: the first four given, or fewer and their negatives."""
    images = images[:4]
    return torch.stack([*images, *(1.0 - x for x in images), *images, *images][:4])


def read_probe(dataset: ImageDataset) -> list[Tensor]:
    """The first four images of a dataset (or all of fewer), after each was read again and found the same.

    Raises:
        RobustzooError: an image or its label differs between reads.
    """
    images = []
    for i in range(min(4, len(dataset))):
        x, label = dataset[i]
        for _ in range(3):  # a flip by chance shows in one of three
            again, other = dataset[i]
            if label != other or not torch.equal(x, again):
                raise RobustzooError(
                    f"the {'label' if label != other else 'image'} of item {i} differs between two reads; "
                    "expected the same on every read: leave training transforms (random crops, flips, noise) "
                    "out"
                )
        images.append(x)
    return images
