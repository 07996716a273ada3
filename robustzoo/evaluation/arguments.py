"""Arguments of evaluate() and verify(): refused in words before anything is computed or written."""

from __future__ import annotations

import numbers
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from robustzoo import atomic_files
from robustzoo.attacks.protocols import protocol as make_protocol
from robustzoo.evaluation.guards import GuardError
from robustzoo.registry import ThreatModel

_WRAP = (
    "class Wrapped(torch.nn.Module) whose __init__ keeps the networks it uses as attributes (their eval mode "
    "and weights are looked after) and whose forward calls the function"
)


def check_model(model: Any) -> None:
    """Raise GuardError unless `model` is a module, saying how to make one of what was given."""
    if isinstance(model, nn.Module):
        return
    expected = "expected a torch.nn.Module from pixels (B, C, H, W) in [0, 1] to logits (B, K)"
    if isinstance(model, str | os.PathLike):
        name = str(model)
        raise GuardError(f"model is {name!r}, a name; {expected}: pass robustzoo.load({name!r})")
    if isinstance(model, type):
        raise GuardError(f"model is the class {model.__name__}; {expected}: pass an instance of it")
    if callable(model):
        kind = type(model).__name__
        raise GuardError(f"model is a {kind}; {expected}: wrap the function in a {_WRAP}")
    raise GuardError(f"model is {_shown(model)}; {expected}")


def check_placed(model: nn.Module, device: torch.device) -> None:
    """Raise GuardError unless the model has weights with values, and the device can compute with them and
    their gradients."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise GuardError(
                f"the model's {name} has no shape yet (a lazy module); expected trained weights: run one "
                "batch through the model, or load its weights, first"
            )
        if tensor.is_inference():
            raise GuardError(
                f"the model's {name} was made under torch.inference_mode, and no gradient can pass such a "
                "tensor; expected ordinary weights: make the model, or load its weights, outside of it"
            )
        if tensor.device.type == "meta":
            raise GuardError(
                f"the model's {name} is on the meta device, without values; expected weights on cpu or cuda: "
                "load them first"
            )
    if device.type == "meta":
        raise GuardError("device 'meta' cannot be used: it computes no values. Expected cpu, or cuda")


def check_threat_model(threat_model: Any, model: nn.Module) -> ThreatModel:
    """The threat model that is meant: the one given, else the model's own.

    Raises:
        GuardError: there is neither.
        ThreatModelError: it is none.
    """
    if threat_model is None:
        threat_model = getattr(model, "threat_model", None)
        if threat_model is None:
            raise GuardError('no threat model: the model has none of its own; pass one such as "linf:8/255"')
    return ThreatModel.parse(threat_model)


def check_protocol(protocol: Any, threat_model: ThreatModel) -> None:
    """Raise GuardError for what is no name, ProtocolError for a name that is no protocol for this norm."""
    if not isinstance(protocol, str):
        raise GuardError(
            f"protocol is {_shown(protocol)}; expected a name such as 'aa-standard', 'apgd-ce+t' or 'pgd-40'"
        )
    make_protocol(protocol, threat_model, 10)  # the number of classes chooses losses, not names


def check_whole(
    label: str, value: Any, least: int, *, optional: bool = True, error: type[ValueError] = GuardError
) -> None:
    """Raise `error` unless `value` is a whole number of at least `least` (or None, where that is allowed)."""
    if value is None and optional:
        return
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise error(f"{label} is {_shown(value)}; expected a whole number of at least {least}")


def check_seed(seed: Any, *, optional: bool = True, error: type[ValueError] = GuardError) -> None:
    """Raise `error` unless `seed` is a whole number of 64 bits (or None, where that is allowed)."""
    check_whole("seed", seed, 0, optional=optional, error=error)
    if seed is not None and seed >= 2**64:
        raise error(f"seed is {seed}; expected a whole number below 2^64")


def check_progress(progress: Any) -> None:
    """Raise GuardError unless `progress` is True, False or a function."""
    if not isinstance(progress, bool) and not callable(progress):
        raise GuardError(
            f"progress is {_shown(progress)}; expected True, False, or a function of one message (a dict)"
        )


def check_flag(label: str, value: Any) -> None:
    """Raise GuardError unless `value` is True or False."""
    if not isinstance(value, bool):
        raise GuardError(f"{label} is {_shown(value)}; expected True or False")


def check_name(name: Any) -> None:
    """Raise GuardError unless `name` is None or printable text."""
    if name is not None and (not isinstance(name, str) or not name.strip() or not name.isprintable()):
        raise GuardError(f"name is {_shown(name)}; expected printable text, or None for the model's own name")


def check_path(label: str, path: Any) -> None:
    """Raise GuardError unless `path` is None or the text of a path."""
    if path is not None and (not isinstance(path, str | os.PathLike) or not str(path) or "\0" in str(path)):
        raise GuardError(f"{label} is {_shown(path)}; expected the path of a folder")


def check_writable(folder: Path) -> None:
    """Refuse a place for results that cannot be written, before hours are spent; leaves nothing behind.

    Raises:
        GuardError: the folder, or the nearest one above that exists, is a file or may not be written.
    """
    if (reason := atomic_files.why_unwritable(folder / "evidence")) is not None:
        raise GuardError(
            f"out is {str(folder)!r}, but {reason}; expected a folder, or a path where one can be made"
        )


def _shown(value: Any) -> str:
    """The value for a message, with its type where its text would not tell it."""
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return text if value is None else f"{text} ({type(value).__name__})"
