"""A model and images made ready for attacks, and guarded, once: for every command that attacks or replays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.protocols import Protocol
from robustzoo.data import ImageDataset, Subset
from robustzoo.data.samples import choose_samples, open_samples
from robustzoo.evaluation import machine, micro_batch
from robustzoo.evaluation.checks import (
    check_arguments,
    check_eval_mode,
    check_labels,
    check_model,
    check_placed,
    check_protocol,
    check_threat_model,
    outputs_note,
    probe_images,
    read_probe,
)
from robustzoo.evaluation.engine import Forwards, Work, check_precision
from robustzoo.evaluation.forward_guards import check_forward, check_micro_batch
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.witnessing import margins
from robustzoo.registry import ThreatModel, find_entry
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.names import unpublished_name


@dataclass(frozen=True)
class Asked:
    """What is asked of a model, checked: arguments as of `evaluate`.

    Attributes:
        protocol: at ten classes, whose number chooses losses alone.
        indices: positions, or a choice that was made and read before.
        at_most: `n` may be more than there are images, and then means all.
        answers_only: nothing will be attacked: the model is replayed, and needs no gradients.
    """

    threat_model: ThreatModel
    protocol: Protocol
    device: torch.device
    n: int | None = None
    indices: Sequence[int] | Subset | None = None
    seed: int = 0
    micro_batch_size: int | None = None
    workers: int = 1
    data_root: str | Path | None = None
    precision: str = "float32"
    compiled: bool = False
    at_most: bool = False
    answers_only: bool = False

    @property
    def asks(self) -> dict[str, bool]:
        """What the guards are told of it: see `check_forward`."""
        gradients = self.protocol.asks["gradients"] and not self.answers_only
        return {**self.protocol.asks, "gradients": gradients}


def ask(
    model: nn.Module,
    threat_model: str | ThreatModel | None,
    protocol: str,
    *,
    device: str | torch.device | None = None,
    precision: str = "float32",
    **options: Any,
) -> Asked:
    """What is asked of `model`, refused in words before anything is read or computed.

    Args:
        options: the other fields of `Asked`.

    Raises:
        RobustzooError: an argument is not what is expected, or the model is not in eval mode.
        ProtocolError: no protocol of that name for this norm.
    """
    check_model(model)
    threat_model = check_threat_model(threat_model, model)
    known = check_protocol(protocol, threat_model)
    unchecked = ("indices", "at_most", "answers_only")
    check_arguments(**{name: value for name, value in options.items() if name not in unchecked})
    check_eval_mode(model)
    place = machine.device_of(model) if device is None else machine.find_device(device)
    check_placed(model, place)
    check_precision(precision, place)
    options["seed"] = int(options.get("seed", 0))
    return Asked(threat_model, known, place, precision=precision, **options)


@dataclass(frozen=True)
class Prepared:
    """A frozen model on its device, and images.

    Attributes:
        work: the asked protocol on these images; its micro-batch is one image until `sized`.
        sha256: of the file that the model was read from, which other processes can read too; None: it has
            none, or was changed since.
        started: when it was begun to make it ready.
        measured: seconds of a forward and of a backward of a micro-batch, once `sized`.
    """

    model: nn.Module
    asked: Asked
    dataset: ImageDataset
    subset: Subset
    work: Work
    sha256: str | None
    started: datetime
    measured: tuple[float, float] | None = None

    @cached_property
    def fingerprint(self) -> dict[str, Any]:
        """Of this machine, at the micro-batch of `work`."""
        return machine.fingerprint(self.asked.device, self.work.micro_batch_size)

    def sized(
        self, size: int | None = None, *, workers: int = 1, reporter: Reporter | None = None
    ) -> Prepared:
        """The same at a micro-batch of `size` images, as far as it fits into the memory that the workers
        share; guarded at that shape.

        Args:
            size: None chooses one by rule.
            reporter: is told where the size is not what was asked for, or more than there are images.

        Raises:
            RobustzooError: not even one image fits, or the model answers otherwise at that shape.
        """
        asked, device, count = self.asked, self.asked.device, len(self.subset)
        image = self.dataset[self.subset.indices[0]][0]
        gradients = asked.asks["gradients"]
        forwards = Forwards(self.model, asked.precision, asked.compiled, device)
        with forwards.searching():
            if size is None:
                size = micro_batch.find_micro_batch(forwards.judge, image, count, device, gradients=gradients)
            fitting = micro_batch.within_memory(
                forwards.judge, image, int(size), device, workers, gradients=gradients
            )
            fitting, measured = micro_batch.fit_micro_batch(
                forwards.search, image, fitting, device, gradients=gradients
            )
        if reporter is not None and fitting < size:
            reporter.say(f"micro-batch {size} does not fit into the memory of {device}: {fitting} is used")
        if reporter is not None and fitting > count:
            reporter.say(
                f"micro-batch {fitting} is larger than the {count} images: the rest of each batch is "
                "padding, which costs time and changes nothing"
            )
        first = [self.dataset[i][0] for i in self.subset.indices[:fitting]]
        check_micro_batch(self.model, first, fitting, device, **asked.asks)
        return replace(self, work=replace(self.work, micro_batch_size=fitting), measured=measured)

    def attacking(self, protocol: str) -> Prepared:
        """The same for another protocol."""
        return replace(self, work=replace(self.work, protocol_name=protocol))

    def correct(self) -> list[int]:
        """Ids of the subset that the model classifies correctly, ascending."""
        return [
            i
            for ids, x, labels in self.batches(self.subset.indices)
            for i, margin in zip(
                ids,
                margins(self.model, x, labels.tolist(), self.work.micro_batch_size, self.asked.device),
                strict=True,
            )
            if margin < 0
        ]

    def batches(self, ids: Sequence[int]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """(ids, images (B, C, H, W), labels (B,)) of some of the images, on the device."""
        size, device = self.work.micro_batch_size, self.asked.device
        for start in range(0, len(ids), size):
            part = list(ids[start : start + size])
            pairs = [self.dataset[i] for i in part]
            x = torch.stack([image for image, _ in pairs]).to(device)
            yield part, x, torch.tensor([int(label) for _, label in pairs], device=device)


@contextmanager
def prepare(
    model: nn.Module, data: Any, asked: Asked, reporter: Reporter | None = None, sha256: str | None = None
) -> Iterator[Prepared]:
    """Within the block the model is frozen and on its device, in strict float32, and it and the images have
    been tried on each other.

    Args:
        data: as of `evaluate`.
        reporter: gets what there is to say of the images.
        sha256: as of `Prepared`.

    Raises:
        RobustzooError: the model would give a meaningless number, or the data are not what is expected.
        MissingData: the files of the data are not there. ProtocolError: no such attack on so few classes.
    """
    started, device = datetime.now(timezone.utc), asked.device
    with machine.strict_arithmetic(device), machine.placed(model, device), frozen(model):
        dataset = open_samples(data, model, asked.data_root)
        if reporter is not None:
            reporter.say_all(dataset)
        num_classes = check_forward(model, probe_images(read_probe(dataset)).to(device), **asked.asks)
        known = dataset.labels  # without reading the images; else they are checked as they are read
        check_labels([] if known is None else known, num_classes, dataset.classes)
        if reporter is not None and (note := outputs_note(dataset.classes, num_classes)) is not None:
            reporter.say(note)
        work = Work(
            dataset,
            asked.protocol.name,
            asked.threat_model,
            num_classes,
            asked.seed,
            1,
            str(device),
            asked.precision,
            asked.compiled,
        )
        work.protocol  # noqa: B018  refused before the images are read
        if isinstance(asked.indices, Subset):
            subset = asked.indices
        else:
            n = None if asked.at_most and asked.n is not None and asked.n >= len(dataset) else asked.n
            subset = choose_samples(dataset, n, asked.indices)
        yield Prepared(model, asked, dataset, subset, work, sha256, started)


@dataclass(frozen=True)
class Identity:
    """Name and hash as Evidence states them; `warning`: what the evaluator's user should know, or None."""

    name: str
    sha256: str | None
    warning: str | None = None

    def described(self, weights: str | None) -> dict[str, Any]:
        """For the Evidence; weights: digest of those in memory, which stands where there is no file's hash,
        so that no other weights of that name pass for these."""
        stated = {"name": self.name, "sha256": self.sha256}
        return {**stated, "weights": weights} if self.sha256 is None else stated


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
    if getattr(model, "folder", None) is None:
        return None
    from robustzoo.models.pixel_model import PixelModel  # timm: seconds that who brings a model saves

    if not isinstance(model, PixelModel):
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
