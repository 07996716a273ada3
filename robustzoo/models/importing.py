"""import_checkpoint(): a stranger's file of weights becomes a model folder, its normalisation known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustzoo.cards.imported import PYTHON, Imported, spdx
from robustzoo.errors import RobustzooError
from robustzoo.models.checkpoint_files import Normaliser, fitting, read_checkpoint, stored_normaliser
from robustzoo.models.folder import write_imported
from robustzoo.models.imported_networks import (
    Code,
    ImportedModel,
    build,
    clean_correct,
    logits_of,
)
from robustzoo.python_files import file_and_function
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.extensions import TIMM
from robustzoo.registry.threat_model import ThreatModel

_ROUNDING = 5e-4  # of a mean or std that is stated to three digits

# What published classifiers of photographs are normalised by -> mean and std of the three channels.
USUAL: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "none (pixels as they are)": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "[-1, 1]": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "ImageNet's": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "CIFAR-10's": ((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    "CIFAR-10's mean, the mean of each image's std": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "CIFAR-10's mean, std 0.225": ((0.4914, 0.4822, 0.4465), (0.225, 0.225, 0.225)),
    "CIFAR-10's mean alone": ((0.4914, 0.4822, 0.4465), (1.0, 1.0, 1.0)),
    "CIFAR-100's": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "centered (mean 0.47, std 0.25)": ((0.47, 0.47, 0.47), (0.25, 0.25, 0.25)),
}


def import_checkpoint(
    file: str | Path,
    architecture: str,
    out: str | Path,
    *,
    threat_model: str | ThreatModel,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    from_claim: str | float | None = None,
    data: Any = None,
    indices: Sequence[int] | None = None,
    image_size: int | None = None,
    model_args: dict[str, Any] | None = None,
    key: str | None = None,
    name: str | None = None,
    license: str = "unknown",
    overwrite: bool = False,
) -> Imported:
    """Write a model folder from a file of weights. What it holds is said in the result.

    Args:
        file: .safetensors, or .pt, .pth, .ckpt, of which nothing but tensors is read.
        architecture: "timm:NAME", or "FILE.py:FUNCTION", which is run; FUNCTION takes no arguments and
            returns the network of normalised images. The file is copied into the folder, and must stand
            alone.
        out: the folder to write: as `robustzoo.models.write_folder`.
        threat_model: that it was trained against.
        mean, std: of the pixels in [0, 1], one number or one per channel. Without them `from_claim` is
            needed.
        from_claim: clean accuracy in percent that its authors state, such as "68.7". Of the usual
            normalisations (`USUAL`) the one is taken that gives this accuracy on `data`, to the digits that
            are stated.
        data: an ImageDataset; says the image size, channels and classes too.
        indices: of `data`, to count on; default: all.
        image_size: pixels, where neither `data` nor timm says.
        model_args: keyword arguments of timm's create_model; num_classes too, where `data` does not say.
        key: which weights of the file, where several fit.
        name: what to call it, behind "import:"; default: the file's name.
        license: of the weights, an SPDX identifier.

    Raises:
        RobustzooError: the file cannot be read without running code, its weights are not the network's, the
            normalisation is not stated or none or several of the usual ones fit the claim, or the folder is
            in use.
    """
    file, threat_model, license = Path(file), ThreatModel.parse(threat_model), spdx(license)
    if (mean is None) != (std is None) or (mean is None) == (from_claim is None):
        raise RobustzooError(
            "the normalisation of the network must be known: give --mean and --std, or "
            "--from-claim PERCENT with "
            "--data, the clean accuracy that its authors state; a wrong one raises no error and "
            f"moves every number{_of_file(file)}"
        )
    if from_claim is not None and data is None:
        raise RobustzooError("--from-claim needs the images of the claim: give --data NAME:DIR")
    model_args = dict(model_args or {})
    classes = model_args.pop("num_classes", None if data is None else data.num_classes)
    content = read_checkpoint(file)
    code, built = _architecture(architecture)
    network = build(built, classes, model_args, code)
    found = fitting(content, network.state_dict(), key)
    network.load_state_dict(found.weights, strict=True)
    channels, side = _shape(network, data, image_size, model_args)
    stated = (
        (None, None) if mean is None or std is None else (_channels(mean, channels), _channels(std, channels))
    )
    described: dict[str, Any] = {
        "name": f"import:{name or re.sub('[^A-Za-z0-9._+-]', '-', file.stem).strip('-._+') or 'model'}",
        "architecture": built,
        "model_args": model_args,
        "code_file": None if code is None else code.stored_name,
        "code_sha256": None if code is None else code.sha256,
        "dataset": data.key if data is not None and data.key in DATASETS else None,
        "threat_model": threat_model,
        "image_size": side,
        "channels": channels,
        "num_classes": _outputs(network, channels, side, data),
        "file": file.name,
        "file_sha256": sha256_file(file),
        "part": found.part,
        "license": license,
    }
    if stated[0] is not None:
        words = "as its importer states it"
    else:
        chosen = range(len(data)) if indices is None else indices
        stated, words = _from_claim(network, described, str(from_claim), data, list(chosen))
    _require_agreement(found.normaliser, stated)
    imported = Imported(**described, mean=stated[0], std=stated[1], normalisation=words)
    write_imported(
        out,
        ImportedModel(network, imported),
        imported,
        None if code is None else code.source,
        overwrite=overwrite,
    )
    return imported


def _of_file(file: Path) -> str:
    """What the file itself says of a normalisation, in words."""
    found = stored_normaliser(read_checkpoint(file)) if file.is_file() else None
    return "" if found is None else f". {found.text()}: give these where they are of pixels in [0, 1]"


def _require_agreement(found: Normaliser | None, stated: tuple[Any, Any]) -> None:
    """Raise RobustzooError where a file's own normaliser, of pixels in [0, 1] or to 255, is not as stated."""
    if found is None:
        return
    for scale in (1, 255):
        own = [value / scale for values in (found.mean, found.std) for value in values]
        given = [value for values in stated for value in _channels(values, len(found.mean))]
        if len(own) == len(given) and all(abs(a - b) < _ROUNDING for a, b in zip(own, given, strict=True)):
            return
    raise RobustzooError(
        f"{found.text()}, and mean {stated[0]} and std {stated[1]} were given: give --mean and --std as the "
        "file has them (of pixels in [0, 1]), or write the file without its normaliser"
    )


def _architecture(text: str) -> tuple[Code | None, str]:
    """(code to run or None, "python:FUNCTION" or "timm:NAME")."""
    parts = file_and_function(text)
    if parts is not None:
        return Code.read(parts[0]), f"{PYTHON}{parts[1]}"
    if not text.startswith(TIMM):
        raise RobustzooError(f"architecture {text!r} is neither timm:NAME nor FILE.py:FUNCTION")
    return None, text


def _shape(
    network: nn.Module, data: Any, image_size: int | None, model_args: dict[str, Any]
) -> tuple[int, int]:
    """(channels, side) of the images: of the data, or as stated, or of timm's network."""
    own = (getattr(network, "pretrained_cfg", None) or {}).get("input_size")
    fixed = getattr(getattr(network, "patch_embed", None), "img_size", None)
    if data is not None:
        channels, height, width = data.image_shape
        if height != width or (image_size is not None and image_size != height):
            raise RobustzooError(
                f"the images have {height} x {width} pixels; expected squares of {image_size or height}"
            )
        return channels, height
    channels = model_args.get("in_chans") or (own[0] if own else 3)
    chosen = model_args.get("img_size")  # some networks state the size they were made for, whatever is chosen
    if image_size is None and isinstance(chosen, list | tuple) and len(set(chosen)) == 1:
        chosen = chosen[0]
    if image_size is not None or isinstance(chosen, int):
        return channels, chosen if image_size is None else image_size
    if fixed is not None or own is not None:
        return channels, (fixed[0] if fixed is not None else own[1])
    raise RobustzooError(
        "the network does not say its image size: give --image-size PIXELS, or --data NAME:DIR"
    )


def _outputs(network: nn.Module, channels: int, side: int, data: Any) -> int:
    """The number of classes, by asking the network."""
    with torch.no_grad():
        found = logits_of(network, torch.zeros(2, channels, side, side)).shape[1]
    if data is not None and found != data.num_classes:
        raise RobustzooError(
            f"the network has {found} outputs, and {data.key} has {data.num_classes} classes"
        )
    return found


def _channels(values: Sequence[float], channels: int) -> tuple[float, ...]:
    given = tuple(float(value) for value in values)
    return given * channels if len(given) == 1 else given


def _from_claim(
    network: nn.Module, described: dict[str, Any], claim: str, data: Any, indices: list[int]
) -> tuple[tuple[tuple[float, ...], tuple[float, ...]], str]:
    """The one usual normalisation that gives the claimed accuracy, and how it was found, in words."""
    try:
        wanted = Decimal(claim.strip().removesuffix("%"))
    except InvalidOperation as error:
        raise RobustzooError(f"--from-claim {claim!r} is no number of percent, such as 68.7") from error
    if not wanted.is_finite() or not 1 < wanted <= 100:
        raise RobustzooError(f"--from-claim {claim} is not in (1, 100]: give percent, such as 68.7")
    if described["channels"] != 3:
        raise RobustzooError(
            f"--from-claim knows normalisations of 3 channels, and these images have "
            f"{described['channels']}: give "
            "--mean and --std"
        )
    counts = {}
    for label, (mean, std) in USUAL.items():
        tried = Imported(**described, mean=mean, std=std, normalisation=label)
        counts[label] = clean_correct(ImportedModel(network, tried), data, indices)
    half = Decimal(5).scaleb(min(int(wanted.as_tuple().exponent), 0) - 1)  # of the last digit that is stated
    shares = {label: Decimal(100 * correct) / len(indices) for label, correct in counts.items()}
    fits = [label for label, share in shares.items() if abs(share - wanted) <= half]
    shown = "; ".join(
        f"{label} {float(share):.2f} %" for label, share in sorted(shares.items(), key=lambda pair: -pair[1])
    )
    if len(fits) != 1:
        raise RobustzooError(
            f"{'none' if not fits else 'more than one'} of the usual normalisations gives the "
            f"claimed {wanted} % "
            f"clean accuracy (within {half}) on {len(indices):,} images of {data.key}: {shown}. "
            f"Give --mean and "
            f"--std as its authors state them{', or the claim with more digits' if fits else ''}"
        )
    words = (
        f"{fits[0]}, which alone of {len(USUAL)} usual ones gives the claimed {wanted} % clean accuracy: "
        f"{counts[fits[0]]} of {len(indices)} images of {data.key}"
    )
    return USUAL[fits[0]], words
