"""A model and images made ready for attacks, and guarded, once: for every command that attacks."""

from __future__ import annotations

import hashlib
import numbers
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from robustzoo.attacks.frozen import frozen
from robustzoo.data import DataError, ImageDataset, Subset, evaluation_subset, open_data, pixel_digest
from robustzoo.data.datasets import WITHOUT_FILES
from robustzoo.data.fit import Fit
from robustzoo.data.sources import FOLDER, data_place
from robustzoo.evaluation import machine, micro_batch
from robustzoo.evaluation.arguments import (
    check_model,
    check_placed,
    check_seed,
    check_threat_model,
    check_whole,
)
from robustzoo.evaluation.engine import Work
from robustzoo.evaluation.forward_guards import check_forward, check_micro_batch
from robustzoo.evaluation.guards import check_eval_mode, check_labels, input_shape, probe_images, read_probe
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.witnessing import leads
from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry import ThreatModel, find_entry
from robustzoo.registry.catalog import is_catalog_key
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.names import unpublished_name


@dataclass(frozen=True)
class Prepared:
    """What attacks need. `correct`: the ids of the subset that the model classifies correctly, ascending."""

    model: nn.Module
    name: str
    dataset: ImageDataset
    subset: Subset
    threat_model: ThreatModel
    num_classes: int
    seed: int
    micro_batch_size: int
    device: torch.device
    correct: list[int]

    def work(self, protocol: str) -> Work:
        """The work of a protocol on these images."""
        return Work(
            self.dataset,
            protocol,
            self.threat_model,
            self.num_classes,
            self.seed,
            self.micro_batch_size,
            str(self.device),
        )

    def batches(self) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """(ids, images (B, C, H, W), labels (B,)) of the correct images, on the device."""
        for start in range(0, len(self.correct), self.micro_batch_size):
            ids = self.correct[start : start + self.micro_batch_size]
            pairs = [self.dataset[i] for i in ids]
            x = torch.stack([image for image, _ in pairs]).to(self.device)
            yield ids, x, torch.tensor([int(label) for _, label in pairs], device=self.device)


@contextmanager
def prepared(
    model: nn.Module,
    data: Any,
    threat_model: str | ThreatModel | None,
    *,
    n: int | None,
    seed: int,
    device: str | None = None,
    micro_batch_size: int | None = None,
    data_root: str | Path | None = None,
    name: str | None = None,
    reporter: Reporter | None = None,
) -> Iterator[Prepared]:
    """Within the block the model is checked, frozen and on its device, in strict float32.

    Args and Raises: as `evaluate`, but `n` may be more than there are images, and then means all; `reporter`
    gets what there is to say of the images.
    """
    check_model(model)
    threat_model = check_threat_model(threat_model, model)
    check_whole("n", n, 1)
    check_whole("micro_batch_size", micro_batch_size, 1)
    check_seed(seed, optional=False)
    check_eval_mode(model)
    place = machine.device_of(model) if device is None else machine.find_device(device)
    check_placed(model, place)
    with machine.strict_arithmetic(place), machine.placed(model, place), frozen(model):
        dataset = open_samples(data, model, data_root)
        if reporter is not None:
            reporter.say_all(dataset)
        num_classes = check_forward(model, probe_images(read_probe(dataset)).to(place))
        if dataset.labels is not None:
            check_labels(dataset.labels, num_classes, dataset.classes)
        subset = choose_samples(dataset, None if n is None or n >= len(dataset) else n)
        size = min(micro_batch.DEFAULT, len(subset)) if micro_batch_size is None else micro_batch_size
        size = micro_batch.within_memory(model, dataset[subset.indices[0]][0], size, place)
        first = [dataset[i][0] for i in subset.indices[:size]]
        check_micro_batch(model, first, size, place, gradients=True, random=False)
        ready = Prepared(
            model,
            identify(model, name).name,
            dataset,
            subset,
            threat_model,
            num_classes,
            seed,
            size,
            place,
            correct=list(subset.indices),
        )
        correct = []
        for ids, x, labels in ready.batches():
            ahead = leads(model, x.cpu(), labels.tolist(), size, place)
            correct += [i for i, lead in zip(ids, ahead, strict=True) if lead < 0]
        ready.correct[:] = correct
        yield ready


@dataclass(frozen=True)
class FolderOptions:
    """How a folder of images is to be read, where that is not left to the model; as of the command line.

    resize: "N" (the short side), "HxW" (both sides, whatever their ratio) or "none". crop: "N" or "HxW", of
    the centre; default: the model's size. interpolation: see INTERPOLATIONS. classes: a file of class names.
    """

    resize: str | None = None
    crop: str | None = None
    interpolation: str | None = None
    classes: str | Path | None = None

    def fit(self, usual: Fit | None) -> Fit | None:
        """The transform, where `usual` is the model's, None where it states no size.

        Raises DataError where the options do not go together, or are no sizes.
        """
        if self.resize is None and self.crop is None and self.interpolation is None:
            return usual
        size = _size("crop", self.crop) if self.crop else (224, 224) if usual is None else usual.size
        fit = Fit.usual(size) if usual is None or usual.size != size else usual
        try:
            if self.resize is not None:
                if self.resize == "none":
                    fit = Fit(size, None, "crop")
                else:
                    way = "squash" if "x" in self.resize.lower() else "cover"
                    resize = _size("resize", self.resize)
                    fit = Fit(size, resize, way, fit.interpolation, keeps_exact=False)
            if self.interpolation is not None:
                fit = replace(fit, interpolation=self.interpolation)
        except ValueError as error:
            raise DataError(f"--resize {self.resize or 'as usual'}, --crop {_by(size)}: {error}") from error
        return fit


def open_samples(
    data: Any,
    model: nn.Module,
    data_root: str | Path | None = None,
    options: FolderOptions = FolderOptions(),
    split: str = "test",
) -> ImageDataset:
    """Open `data` as evaluate() takes it; `model` says how a folder is to be read.

    Args:
        data: a dataset name of the catalog (its `split`, with files in `data_root`) or "NAME:DIR", a
            folder, a torch Dataset of (image, label) pairs, or a pair of tensors (images: (N, C, H, W) in
            [0, 1], labels: (N,) integers). A folder holds the dataset of the model's recipe; for a model
            without a recipe, or with one whose dataset has no files, and as "folder:DIR", one sub-folder of
            image files per class: see `order_of`. Text that is a name of the catalog never means a folder.
        options: of folders with a sub-folder per class; of the others refused.

    Raises:
        DataError, MissingData: none of these, or files or samples that are not as they should be.
        GuardError: the model's input_shape is no shape.
    """
    recipe = getattr(model, "recipe", None)
    name, folder = data_place(data) if isinstance(data, str) else (None, data)
    if name is None and recipe is not None and recipe.dataset not in WITHOUT_FILES and _is_folder(folder):
        if data_root is not None:
            raise DataError(
                f"data is the folder {str(data)!r}, and data_root is given too; expected one folder"
            )
        data, data_root, name = recipe.dataset, folder, recipe.dataset
    if not isinstance(data, str | Path) or name not in (None, FOLDER):
        if options != FolderOptions():
            given = data if isinstance(data, str) else type(data).__name__
            raise DataError(
                "--resize, --crop, --interpolation and --classes say how a folder of images is read, and the "
                f"data are {given}: leave them away, or give the folder with a sub-folder per class as "
                f"{FOLDER}:DIR"
            )
        dataset = open_data(data, data_root, split=split)
        _refuse_other_size(dataset, model)
        return dataset
    shape, classes = _shape_of(model), _classes_of(model)
    fit = options.fit(None if shape is None else _usual_fit(model, shape[1:]))
    channels = 3 if shape is None else shape[0]
    if channels not in (1, 3):
        raise DataError(
            f"the model takes {channels} channels, and image files give 1 or 3; pass the images as a pair of "
            "tensors or a torch Dataset"
        )
    return open_data(
        data, data_root, fit=fit, channels=channels, classes=options.classes, num_classes=classes
    )


def _is_folder(place: Any) -> bool:
    return isinstance(place, Path) and place.expanduser().is_dir()


def _shape_of(model: nn.Module) -> tuple[int, int, int] | None:
    recipe = getattr(model, "recipe", None)
    if recipe is not None:
        return recipe.channels, recipe.image_size, recipe.image_size
    return input_shape(model)


def _classes_of(model: nn.Module) -> int | None:
    """Outputs of the model, where it says."""
    for holder in (getattr(model, "recipe", None), model, getattr(model, "network", None)):
        found = getattr(holder, "num_classes", None)
        if isinstance(found, int) and found > 0:
            return found
    return None


def _usual_fit(model: nn.Module, size: tuple[int, int]) -> Fit:
    """What the model states in its attribute `preprocessing`, as timm's do; else what is usual."""
    if getattr(model, "recipe", None) is not None:
        return Fit(size, size, "cover")  # whole: its images are small, and a border would be a good part
    stated = getattr(model, "preprocessing", None)
    return Fit.usual(size) if stated is None else Fit.of_timm(stated, size)


def _refuse_other_size(dataset: ImageDataset, model: nn.Module) -> None:
    """Raise DataError where the catalog's photographs have another size than the model takes."""
    shape = _shape_of(model)
    if shape is None or not is_catalog_key(dataset.key) or tuple(dataset.image_shape) == shape:
        return
    wanted, found = (" x ".join(map(str, sides)) for sides in (shape, dataset.image_shape))
    raise DataError(
        f"the model takes images of {wanted} (channels, height, width), and the catalog's {dataset.key} are "
        f"{found}; to bring image files to the model's size, give the folder with a sub-folder per class as "
        f"{FOLDER}:DIR"
    )


def _size(option: str, text: str) -> tuple[int, int]:
    """(height, width) of "N" or "HxW". Raises DataError."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(s.isascii() and s.isdecimal() and 0 < len(s) < 6 and int(s) for s in sides):
        also = ', HxW or "none"' if option == "resize" else " or HxW"
        raise DataError(f"--{option} {text}: expected a size in pixels, N{also}, for example 256 or 256x320")
    return int(sides[0]), int(sides[-1])


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def choose_samples(
    dataset: ImageDataset, n: int | None = None, indices: Sequence[int] | None = None
) -> Subset:
    """All samples, `n` drawn by the subset seed 0, or the positions `indices`, in any order. Reads each
    image once.

    Raises:
        DataError: n or a position is no whole number or out of range, a position occurs twice, or both are
            given.
    """
    if n is not None and indices is not None:
        raise DataError(f"n is {n}, and indices are given too; expected one of them")
    if indices is None:
        return evaluation_subset(dataset, n)
    chosen = sorted(_positions(indices, dataset))
    return Subset(f"chosen{len(chosen)}", chosen, pixel_digest(dataset, chosen), dataset)


def _positions(indices: Any, dataset: ImageDataset) -> list[int]:
    """The positions as ints, after each has been checked."""
    size = len(dataset)
    expected = f"expected whole numbers in 0..{size - 1}, the positions of {dataset.key}, each once"
    if isinstance(indices, Tensor | np.ndarray):
        indices = indices.tolist()
    if isinstance(indices, str | bytes) or not isinstance(indices, Iterable):
        raise DataError(f"indices are {indices!r}; {expected}")
    chosen: dict[int, None] = {}
    for position in indices:
        if isinstance(position, Tensor) and position.numel() == 1:
            position = position.item()
        if not isinstance(position, numbers.Integral) or isinstance(position, bool):
            raise DataError(f"indices hold {position!r} ({type(position).__name__}); {expected}")
        if not 0 <= position < size:
            raise DataError(f"indices hold {position}; {expected}")
        if int(position) in chosen:
            raise DataError(f"indices hold {position} twice; {expected}")
        chosen[int(position)] = None
    if not chosen:
        raise DataError(f"indices are empty; {expected}, and at least one")
    return list(chosen)


@dataclass(frozen=True)
class Identity:
    """Name and hash as Evidence states them; `warning`: what the evaluator's user should know, or None."""

    name: str
    sha256: str | None
    warning: str | None = None


def identify(model: nn.Module, name: str | None = None) -> Identity:
    """Who `model` is. `name` is what its owner calls it; default: its own name, else that of its class.

    A registry name stands for the published weights alone. Others trained by the same recipe, or the
    published ones with a byte changed, get the hash behind the name and a warning.
    """
    sha256 = weights_hash(model)
    own = getattr(model, "name", None)
    if name is not None or own is None:
        return Identity(name or type(model).__name__, sha256)
    if sha256 is None:
        changed = getattr(model, "folder", None) is not None
        return Identity(f"{own} (changed since loading)" if changed else own, None)
    item = find_entry(own)
    if item is None or item.weights is None or item.weights.sha256 == sha256:
        return Identity(own, sha256)
    other = unpublished_name(own, sha256)
    return Identity(
        other,
        sha256,
        f"{model.folder} does not hold the published weights of {own}: its model.safetensors has sha256 "
        f"{sha256}, the published file {item.weights.sha256}. The result is named {other!r}. If you did not "
        f"train these weights, the file is damaged: robustzoo.load({own!r}) has the published ones",
    )


def weights_hash(model: nn.Module) -> str | None:
    """SHA-256 of the file that the model was loaded from; None without one or if changed since."""
    if not isinstance(model, PixelModel) or model.folder is None:
        return None
    path = Path(model.folder) / "model.safetensors"
    if not path.is_file():
        return None
    stored, state = load_file(path), model.network.state_dict()
    same = stored.keys() == state.keys() and all(torch.equal(stored[key], state[key].cpu()) for key in stored)
    return sha256_file(path) if same else None


def state_digest(model: nn.Module) -> str:
    """SHA-256 (hex) over the class of the model and its parameters and buffers in memory, names included, and
    over the constants of scripted code.

    What else a forward may use (attributes that are no tensors, code) it cannot see.
    """
    digest = hashlib.sha256(f"{type(model).__module__}.{type(model).__qualname__}".encode())
    for name, tensor in sorted((*model.named_parameters(), *model.named_buffers()), key=lambda pair: pair[0]):
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(_bytes(tensor))
    for module in model.modules():
        graph = getattr(module, "inlined_graph", None) if isinstance(module, torch.jit.ScriptModule) else None
        for node in [] if graph is None else graph.findAllNodes("prim::Constant"):
            if node.hasAttribute("value") and node.kindOf("value") == "t":
                digest.update(_bytes(node.t("value")))  # jit.freeze writes the weights into the code
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
