"""The clean pass: every sample is classified before any attack, and its target classes are ranked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import nn

from robustzoo.attacks.answers import check_finite, predict
from robustzoo.attacks.attempts import Sample
from robustzoo.attacks.lanes import Lanes
from robustzoo.attacks.protocols import MAX_CANDIDATES


@dataclass(frozen=True)
class Clean:
    """A sample before any attack. targets: the other classes by falling logit, as many as a
    search may look at."""

    id: int
    label: int
    predicted: int
    targets: tuple[int, ...]

    @property
    def correct(self) -> bool:
        return self.predicted == self.label

    def waiting(self, dataset) -> Sample:
        """The sample as attacks take it; its image is read when a lane does."""
        return Sample(self.id, self.label, self.targets, lambda: dataset[self.id][0])


def clean_pass(
    model: nn.Module, dataset, ids: Iterable[int], lanes: Lanes, num_classes: int, draws: int = 1
) -> Iterator[list[Clean]]:
    """One forward per sample (and draw of a random model), in batches of the lanes' shape: predictions and
    rankings of the targets.

    Raises:
        ValueError: a label outside [0, num_classes), wrong logits shape. NonFiniteLogits: naming the samples.
    """
    size, queue = len(lanes), iter(ids)
    batch, labels = lanes.x.clone(), torch.zeros_like(lanes.y)
    while chunk := [int(i) for i in islice(queue, size)]:
        for lane, i in enumerate(chunk):
            image, label = dataset[i]
            if not 0 <= int(label) < num_classes:
                raise ValueError(f"sample {i} has label {label}; expected 0 to {num_classes - 1}")
            batch[lane], labels[lane] = image.to(batch), int(label)
        logits = predict(model, batch, draws)
        if logits.shape != (size, num_classes):
            expected = f"({size}, {num_classes})"
            raise ValueError(f"the model's output has shape {tuple(logits.shape)}; expected {expected}")
        here = torch.arange(size, device=batch.device)
        check_finite(
            logits, torch.tensor(chunk + [0] * (size - len(chunk)), device=batch.device), here < len(chunk)
        )
        predicted, labelled = logits.argmax(1).tolist(), labels.tolist()
        # The label last, the others by falling logit, ties by index: the order in which targets are tried.
        others = logits.scatter(1, labels.unsqueeze(1), -torch.inf).sort(dim=1, descending=True, stable=True)
        targets = others.indices[:, : min(MAX_CANDIDATES, num_classes - 1)].tolist()
        yield [
            Clean(i, labelled[lane], predicted[lane], tuple(targets[lane])) for lane, i in enumerate(chunk)
        ]
