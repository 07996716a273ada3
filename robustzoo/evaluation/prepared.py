"""A model and images made ready for attacks outside of an evaluation: the evaluation's own checks, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustzoo.attacks.frozen import frozen
from robustzoo.data import ImageDataset, Subset
from robustzoo.evaluation import machine, micro_batch
from robustzoo.evaluation.arguments import (
    check_model,
    check_placed,
    check_seed,
    check_threat_model,
    check_whole,
)
from robustzoo.evaluation.forward_guards import check_forward, check_micro_batch
from robustzoo.evaluation.guards import check_eval_mode, check_labels, probe_images, read_probe
from robustzoo.evaluation.identity import identify
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.samples import choose_samples, open_samples
from robustzoo.evaluation.witnessing import leads
from robustzoo.evaluation.work import Work
from robustzoo.registry import ThreatModel


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
