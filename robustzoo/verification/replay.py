"""Replay: one forward for each clean image and each witness, and what the two together prove."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from robustzoo.cards.witnesses import Witnesses
from robustzoo.evaluation.prepare import Prepared
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


def replay(ready: Prepared, witnesses: Witnesses | None) -> Replay:
    """Classify every image and every witness, in batches of one shape.

    Args:
        ready: sized, on the images of the Evidence.
        witnesses: None where there is no file.
    """
    found = Replay(clean_correct=ready.correct())
    if witnesses is None:
        return found
    size, device = ready.work.micro_batch_size, ready.asked.device
    fits = witnesses.image_shape == tuple(ready.dataset.image_shape)
    known = set(ready.subset.indices) if fits else set()
    correct = set(found.clean_correct)
    row = {int(i): position for position, i in enumerate(witnesses.ids)}
    found.foreign = [i for i in row if i not in known]
    for chosen, x, labels in ready.batches([i for i in row if i in known]):
        points = torch.from_numpy(witnesses.points([row[i] for i in chosen]))
        within = inside(points, x.cpu(), ready.asked.threat_model).tolist()
        here = margins(ready.model, points, labels.tolist(), size, device).tolist()
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


def replay_cost(ready: Prepared, witnesses: Witnesses | None) -> str:
    """What a replay costs here: forwards, and seconds from the trials of `ready`, which is sized."""
    count, points = len(ready.subset), 0 if witnesses is None else len(witnesses)
    size = ready.work.micro_batch_size
    batches = math.ceil(count / size) + math.ceil(points / size)
    return (
        f"replay of {count} images and {points} witnesses: {count + points:,} forwards, no backwards, "
        f"{estimate(ready.measured[0] * batches)} (one process, micro-batch {size}, {ready.asked.device})"
    )
