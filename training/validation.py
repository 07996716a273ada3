"""Clean and PGD-10 accuracy on held-out images while training: to choose by, never a claim."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.pgd import pgd, uniform_start
from robustzoo.data import ImageDataset, evaluation_subset
from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry import Recipe
from training.processes import Processes

STEPS = 10
STEP_RATIO = 2.5  # step = ratio * epsilon / steps; source: Madry et al.'s rule
LARGEST = 1000  # images; about 3 percentage points of 95 % interval
SHARE = 10  # at most one image for so many trained on since the last validation, as dear as a training image


class Validation:
    """Fixed held-out images and one keyed start per image, so that two readings differ by the model only."""

    def __init__(
        self, recipe: Recipe, dataset: ImageDataset, processes: Processes, batch_size: int, every: int
    ) -> None:
        """every: optimizer steps from one validation to the next, which bound how many images it takes."""
        self.recipe = recipe
        self.dataset = dataset
        self.processes = processes
        self.batch_size = batch_size
        affordable = max(every * recipe.batch_size // SHARE, 1)
        self.ids = evaluation_subset(dataset, min(len(dataset), LARGEST, affordable)).indices

    def run(self, model: PixelModel) -> dict[str, float]:
        """clean_accuracy and pgd10_accuracy in [0, 1]; every rank must call it and gets the same answer."""
        correct = torch.zeros(2, dtype=torch.float64, device=self.processes.device)
        threat_model = self.recipe.threat_model
        with frozen(model):
            for x, y, ids in self._share():
                start = uniform_start(x, threat_model, seed=0, ids=ids, purpose="validation")
                x_adv = pgd(
                    model,
                    x,
                    lambda logits, y=y: functional.cross_entropy(logits.float(), y, reduction="none"),
                    threat_model=threat_model,
                    steps=STEPS,
                    step_size=STEP_RATIO * threat_model.eps / STEPS,
                    x_start=start,
                )
                with torch.no_grad():
                    right = [model(images).argmax(dim=1) == y for images in (x, x_adv)]
                correct += torch.stack([right[0].sum(), (right[0] & right[1]).sum()])
        share = self.processes.mean(correct) * self.processes.world_size / len(self.ids)
        return dict(zip(("clean_accuracy", "pgd10_accuracy"), share.tolist(), strict=True))

    def _share(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        mine = self.ids[self.processes.rank :: self.processes.world_size]
        for first in range(0, len(mine), self.batch_size):
            ids = mine[first : first + self.batch_size]
            images, labels = zip(*(self.dataset[i] for i in ids), strict=True)
            device = self.processes.device
            yield (
                torch.stack(images).to(device),
                torch.tensor(labels).to(device),
                torch.tensor(ids).to(device),
            )
