"""Files of weights as strangers publish them: read without running anything in them, and made to fit."""

from __future__ import annotations

import argparse
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from robustzoo.errors import RobustzooError
from robustzoo.untrusted_files import refuse_pointer

_COUNTER = "num_batches_tracked"  # of batch norm: counts training steps, and decides nothing in eval mode
_AVERAGED = "n_averaged"  # torch's AveragedModel counts in it
_MOST_CHANNELS = 4  # of images
_DEEPEST = 5  # dictionaries in dictionaries
_SHOWN = 4


@dataclass(frozen=True)
class Normaliser:
    """names of a file's tensors that hold a mean and a std per channel, and what they hold."""

    names: tuple[str, str]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def text(self) -> str:
        return f"{' and '.join(self.names)} of the file hold mean {self.mean} and std {self.std}"


@dataclass(frozen=True)
class Found:
    """Weights under the network's own names, where in the file they were, in words, and the normaliser that
    the file has before them."""

    weights: dict[str, Tensor]
    part: str
    normaliser: Normaliser | None = None


def read_checkpoint(file: Path) -> dict[str, Any]:
    """What a .safetensors, .pt, .pth or .ckpt file holds: tensors by name, perhaps nested in dictionaries.

    Raises:
        RobustzooError: no such file, damaged, of another format, or one that only running its code can read.
    """
    if not file.is_file():
        raise RobustzooError(
            f"there is no file {file}; expected a checkpoint (.safetensors, .pt, .pth, .ckpt)"
        )
    refuse_pointer(file)
    if file.suffix.lower() == ".safetensors":
        try:
            return load_file(file)
        except (safetensors.SafetensorError, OSError) as error:
            raise RobustzooError(f"{file} is not a readable safetensors file: {error}") from error
    if file.suffix.lower() == ".onnx":
        raise RobustzooError(
            f"{file} is a graph of ONNX, not weights by name: write a FILE.py whose FUNCTION "
            f"converts it (for "
            "example with onnx2torch), and evaluate that as FILE.py:FUNCTION"
        )
    try:
        if _is_scripted(file):
            raise RobustzooError(
                f"{file} is TorchScript, a program and not weights alone: write a FILE.py whose "
                f"FUNCTION loads "
                "it with torch.jit.load, and evaluate that as FILE.py:FUNCTION"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of old formats; what cannot be read is refused
            # timm's own checkpoints keep the command line: a plain record, and the only class let in.
            with torch.serialization.safe_globals([argparse.Namespace]):
                content = torch.load(file, map_location="cpu", weights_only=True)
    except RobustzooError:
        raise
    except zipfile.BadZipFile as error:
        raise RobustzooError(f"{file} is damaged ({error}): take it again") from error
    except (
        pickle.UnpicklingError,
        RuntimeError,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        AttributeError,
    ) as error:
        raise RobustzooError(f"{file} {_why(file, error)}") from error
    if not isinstance(content, Mapping):
        raise RobustzooError(
            f"{file} holds a {type(content).__name__}; expected a dictionary of tensors, as "
            "torch.save(model.state_dict(), FILE) writes it"
        )
    return dict(content)


def _is_scripted(file: Path) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any("/code/" in name or name.endswith("constants.pkl") for name in archive.namelist())


def _why(file: Path, error: Exception) -> str:
    if "weights_only" in str(error).lower() or "weights only" in str(error).lower():
        line = next(
            (part.strip() for part in str(error).splitlines() if "GLOBAL" in part or "global" in part), ""
        )
        return (
            f"needs code to be read, so nothing of it was run "
            f"({line[:200] or type(error).__name__}): it may hold "
            "a whole module. Where you trust its source, write the weights alone: of a module "
            "torch.save(torch.load(FILE, weights_only=False).state_dict(), NEW), of a dictionary "
            "torch.save(torch.load(FILE, weights_only=False)[KEY], NEW), KEY that of the weights, such as "
            "'state_dict' (where a module is there, its .state_dict())"
        )
    first = str(error).strip().splitlines()
    return (
        f"is no readable checkpoint ({type(error).__name__}: {first[0][:200] if first else ''}); it may be "
        "damaged: take it again"
    )


def fitting(content: Mapping[str, Any], expected: Mapping[str, Tensor], key: str | None = None) -> Found:
    """The weights in a checkpoint that are those of a network, in its names, as float32.

    A state dictionary nested under another key is found, a prefix that all names share is taken off, and both
    are said. key: of the nested one to take, where several fit.

    Raises:
        RobustzooError: none fits, with the difference of the nearest; several do, and no key is given.
    """
    parts = _parts(content)
    if key is not None:
        if key not in parts:
            raise RobustzooError(f"the checkpoint has no weights under {key!r}; it has {_some(list(parts))}")
        parts = {key: parts[key]}
    if not parts:
        raise RobustzooError(
            f"the checkpoint holds no tensors; it has "
            f"{_some([f'{k} ({type(v).__name__})' for k, v in content.items()])}"
        )
    read = {name: _unwrapped(weights, expected) for name, weights in parts.items()}
    normalisers: dict[str, Normaliser] = {}
    for name, weights in parts.items():
        if any(_problems(read[name][0], expected)) and (before := normaliser_of(weights)) is not None:
            rest = _unwrapped({k: t for k, t in weights.items() if k not in before.names}, expected)
            if rest[1] or rest[0].keys() & expected.keys():
                read[name], normalisers[name] = rest, before
    problems = {name: _problems(weights, expected) for name, (weights, _) in read.items()}
    good = [name for name, found in problems.items() if not any(found)]
    if not good:
        nearest = min(problems, key=lambda name: sum(map(len, problems[name])))
        shown = "; ".join(_some(kind, "; ") for kind in problems[nearest] if kind)
        raise RobustzooError(
            f"the weights{_under(nearest)} are not those of the network: {shown}. Give "
            "the architecture that they were saved from (and its --model-args)"
        )
    if len(good) > 1 and not all(_same(read[good[0]][0], read[other][0]) for other in good[1:]):
        raise RobustzooError(
            f"the checkpoint has several sets of weights that fit, {_some(good)}: say which with "
            f"--key (often an "
            "average of weights, ema, is the one that was measured)"
        )
    weights, prefix = read[good[0]]
    halves = sorted({str(t.dtype) for t in weights.values() if t.is_floating_point()} - {"torch.float32"})
    made = {
        name: weights[name].to(like.dtype) if name in weights else torch.zeros(like.shape, dtype=like.dtype)
        for name, like in expected.items()
    }
    part = f"the weights{_under(good[0])}"
    part += f" without their prefix {prefix}" if prefix else ""
    part += f" from {', '.join(halves)} to float32" if halves else ""
    before = normalisers.get(good[0])
    part += f" behind a normaliser ({before.text()})" if before else ""
    return Found(made, part, before)


def _parts(content: Mapping[str, Any], at: str = "", depth: int = _DEEPEST) -> dict[str, dict[str, Tensor]]:
    """Place ("" for the top) -> tensors by name, of every dictionary that has some."""
    tensors = {
        str(name): value for name, value in content.items() if isinstance(value, Tensor) and value.dim()
    }
    loose = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    found = {at: loose} if tensors else {}
    for name, value in content.items() if depth else ():
        if isinstance(value, Mapping):
            found |= _parts(value, f"{at}/{name}" if at else str(name), depth - 1)
    return found


def _unwrapped(
    weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], str]:
    """The weights under the network's names, and the prefix that all of them had; as they are where taking
    prefixes off leads to no name of the network's."""
    found, prefix = dict(weights), ""
    while found and not found.keys() & expected.keys():
        found.pop(_AVERAGED, None)
        heads = {name.partition(".")[0] for name in found if "." in name}
        if len(heads) != 1 or not all("." in name for name in found):
            return dict(weights), ""
        shared = f"{heads.pop()}."
        found, prefix = {name.removeprefix(shared): t for name, t in found.items()}, prefix + shared
    return found, prefix


def normaliser_of(weights: Mapping[str, Tensor]) -> Normaliser | None:
    """The mean and std that a file keeps beside a network that they stand before, if any."""
    for name, tensor in weights.items():
        before, _, last = name.rpartition(".")
        other = f"{before}.std" if before else "std"
        pair = (tensor, weights.get(other))
        if last == "mean" and all(
            isinstance(t, Tensor) and 1 <= t.numel() <= _MOST_CHANNELS and t.is_floating_point() for t in pair
        ):
            mean, std = (tuple(round(v, 6) for v in t.flatten().tolist()) for t in (tensor, weights[other]))
            return Normaliser((name, other), mean, std)
    return None


def stored_normaliser(content: Mapping[str, Any]) -> Normaliser | None:
    """As `normaliser_of`, of a whole checkpoint."""
    return next((n for part in _parts(content).values() if (n := normaliser_of(part)) is not None), None)


def _problems(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[list[str]]:
    """What keeps the weights from being the network's, a list a kind."""
    missing = [name for name in expected if name not in weights and not name.endswith(_COUNTER)]
    surplus = [name for name in weights if name not in expected]
    wrong = [name for name in expected if name in weights and weights[name].shape != expected[name].shape]
    odd = [
        name
        for name, tensor in weights.items()
        if name in expected
        and expected[name].is_floating_point()
        and not (tensor.is_floating_point() and tensor.itemsize >= 2 and bool(tensor.isfinite().all()))
    ]
    return [
        [
            f"{name} has shape {tuple(weights[name].shape)}, and the network's {tuple(expected[name].shape)}"
            for name in wrong
        ],
        [f"{name} is missing" for name in missing],
        [f"{name} is unknown to the network" for name in surplus],
        [f"{name} holds no finite floating-point numbers of 16 bits or more" for name in odd],
    ]


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _under(name: str) -> str:
    return f" under {name}" if name else ""


def _some(items: list[str], between: str = ", ") -> str:
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return between.join(items[:_SHOWN]) + more
