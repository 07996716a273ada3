"""Replay: one forward for each clean image and each witness, and what the two together prove."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import ImageDataset
from robustzoo.evaluation import machine
from robustzoo.evaluation.progress import estimate
from robustzoo.evaluation.witnessing import BORDERLINE, inside, margins


@dataclass
class Replay:
    """What a replay found. Lists hold sample ids, ascending.

    Attributes:
        clean_correct: images that are classified correctly here, unattacked.
        valid: images of those that have a witness which fools the model here, inside ball and box.
        borderline: witnesses that do not fool here, within 1e-4 of a tie here or where they were made:
            unreplayable on this machine, and no sign of anything wrong.
        failing: witnesses that clearly do not fool the model.
        outside: witnesses that are not within the threat model.
        foreign: witnesses for images that are not in the subset, or of another shape.
    """

    clean_correct: list[int] = field(default_factory=list)
    valid: list[int] = field(default_factory=list)
    borderline: list[int] = field(default_factory=list)
    failing: list[int] = field(default_factory=list)
    outside: list[int] = field(default_factory=list)
    foreign: list[int] = field(default_factory=list)

    @property
    def robust_at_most(self) -> int:
        """Upper bound on the robust images, proven: correct ones that no witness breaks."""
        return len(self.clean_correct) - len(self.valid)

    @property
    def witnesses(self) -> int:
        """Witnesses there are, useful or not."""
        return sum(map(len, (self.valid, self.borderline, self.failing, self.outside, self.foreign)))


def replay(
    model: nn.Module,
    dataset: ImageDataset,
    evidence: Evidence,
    witnesses: Witnesses | None,
    micro_batch_size: int,
    device: torch.device,
) -> Replay:
    """Classify every image of the Evidence's subset and every witness, in batches of one shape.

    Args:
        model: frozen, on `device`; pixels to logits.
        witnesses: None where there is no file.
    """
    found, indices = Replay(), evidence.doc["dataset"]["indices"]
    for chosen in _batches(indices, micro_batch_size):
        x, labels = _read(dataset, chosen)
        found.clean_correct += [
            i
            for i, margin in zip(chosen, margins(model, x, labels, micro_batch_size, device), strict=True)
            if margin < 0
        ]
    if witnesses is None:
        return found
    fits = witnesses.image_shape == tuple(dataset.image_shape)
    known = set(indices) if fits else set()
    correct = set(found.clean_correct)
    row = {int(i): position for position, i in enumerate(witnesses.ids)}
    found.foreign = [i for i in row if i not in known]
    for chosen in _batches([i for i in row if i in known], micro_batch_size):
        x, labels = _read(dataset, chosen)
        points = torch.from_numpy(witnesses.points([row[i] for i in chosen]))
        within = inside(points, x, evidence.threat_model).tolist()
        here = margins(model, points, labels, micro_batch_size, device).tolist()
        for i, legal, margin in zip(chosen, within, here, strict=True):
            tie = margin > -BORDERLINE or abs(float(witnesses.margins[row[i]])) < BORDERLINE
            if not legal:
                found.outside.append(i)
            elif margin <= 0:
                (found.borderline if tie else found.failing).append(i)
            elif i in correct:
                # A witness for an image that is misclassified anyway proves nothing more.
                found.valid.append(i)
    return found


def replay_cost(
    model: nn.Module,
    dataset: ImageDataset,
    count: int,
    witnesses: Witnesses | None,
    micro_batch_size: int,
    device: torch.device,
) -> str:
    """What a replay costs here: forwards, and seconds from a short trial."""
    points = 0 if witnesses is None else len(witnesses)
    x = dataset[0][0]
    forward, _ = machine.seconds_per_pass(
        model, x.expand(micro_batch_size, *x.shape).to(device), gradients=False
    )
    batches = math.ceil(count / micro_batch_size) + math.ceil(points / micro_batch_size)
    return (
        f"replay of {count} images and {points} witnesses: {count + points:,} forwards, no backwards, "
        f"{estimate(forward * batches)} (one process, micro-batch {micro_batch_size}, {device})"
    )


def _batches(items: Sequence[int], size: int) -> list[Sequence[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def _read(dataset: ImageDataset, indices: Sequence[int]) -> tuple[Tensor, list[int]]:
    pairs = [dataset[i] for i in indices]
    return torch.stack([x for x, _ in pairs]), [label for _, label in pairs]
