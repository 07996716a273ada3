"""Clean and PGD-10 accuracy, held-out and on training images, while training: to choose by, never a claim."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.pgd import pgd, uniform_start
from robustzoo.data import Subset, evaluation_subset
from robustzoo.models.batch_norm import renew_statistics, running_statistics
from robustzoo.registry import Recipe
from robustzoo.training.data import TrainingData
from robustzoo.training.processes import Processes

STEPS = 10
STEP_RATIO = 2.5  # step = ratio * epsilon / steps; source: Madry et al.'s rule
COLLAPSE = 0.15  # more than this between one step and PGD is no healthy network
STATISTICS_IMAGES = 2_000  # training images that running statistics of averaged weights rest on
LARGEST = 1000  # images; about 3 percentage points of 95 % interval, at a small part of the training time


class Validation:
    """Fixed images and one keyed start per image, so that two readings differ by the model only.

    As many training images, without augmentation, as held-out ones: the difference of their robust accuracies
    is the robust generalisation gap.
    """

    def __init__(self, data: TrainingData, processes: Processes, batch_size: int, *, every: int) -> None:
        """every: optimizer steps between two readings, for the number of images (`affordable`)."""
        self.recipe = data.recipe
        self.processes = processes
        self.batch_size = batch_size
        size = min(len(data.holdout), len(data.originals), affordable(data.recipe, every))
        self.holdout = evaluation_subset(data.holdout, size)
        self.training = evaluation_subset(data.originals, size)
        self.originals = data.originals

    def describe(self) -> str:
        """How many images a reading rests on, and how far chance alone moves it, in words."""
        size = len(self.holdout)
        return (
            f"{size:,} held-out and as many training images a reading, "
            f"+-{196 * (0.25 / size) ** 0.5:.0f} points by chance at most (95 %)"
        )

    def run(self, model: nn.Module) -> dict[str, float]:
        """One reading; every rank must call it and gets the same answer.

        Returns:
            clean_accuracy and pgd10_accuracy (held-out), train_clean_accuracy and train_pgd10_accuracy, in
            [0, 1], and robust_gap = train_pgd10_accuracy - pgd10_accuracy; where the recipe's attack is one
            step, fgsm_accuracy (held-out), under one step of epsilon from the image, see `collapse`.
        """
        clean, robust, *single = self._accuracies(model, self.holdout, single=self.recipe.attack_steps == 1)
        train_clean, train_robust = self._accuracies(model, self.training)
        return {
            **({"fgsm_accuracy": single[0]} if single else {}),
            "clean_accuracy": clean,
            "pgd10_accuracy": robust,
            "train_clean_accuracy": train_clean,
            "train_pgd10_accuracy": train_robust,
            "robust_gap": train_robust - robust,
        }

    def collapse(self, reading: Mapping[str, float]) -> str | None:
        """Catastrophic overfitting in a reading of `run`, in words: far more stands against one step than
        against PGD. None where there is no sign of it, or the recipe's attack has more steps."""
        single, robust = reading.get("fgsm_accuracy"), reading["pgd10_accuracy"]
        # Beyond what chance alone makes of two readings; a healthy network loses a few points in between.
        least = max(COLLAPSE, 3 * (0.25 / len(self.holdout)) ** 0.5)
        if single is None or single - robust <= least:
            return None
        return (
            f"catastrophic overfitting: {single:.1%} of held-out images stand against one step and "
            f"{robust:.1%} against PGD-{STEPS}; end the run, and train with attack_start=label and a "
            "consistency_weight, a smaller rate, or more attack_steps"
        )

    def renew_statistics(self, model: nn.Module) -> None:
        """Measure batch norm's running statistics anew, on fixed training images without augmentation.

        Clean ones, as the releases of weight averaging do. Every rank must call it: each measures its share,
        and all get the mean.
        """
        subset = evaluation_subset(self.originals, min(len(self.originals), STATISTICS_IMAGES))
        renew_statistics(model, (x for x, *_ in self._share(subset)))
        self.processes.share(running_statistics(model).values())

    def _accuracies(self, model: nn.Module, subset: Subset, single: bool = False) -> list[float]:
        """Clean and robust accuracy on a subset; with `single` that under one step too."""
        correct = torch.zeros(3 if single else 2, dtype=torch.float64, device=self.processes.device)
        threat_model = self.recipe.threat_model
        with frozen(model):
            for x, y, ids, counted in self._share(subset):
                start = uniform_start(x, threat_model, seed=0, ids=ids, purpose="validation")
                ways = [(STEPS, STEP_RATIO / STEPS, start), *([(1, 1.0, x)] if single else [])]
                attacked = [
                    pgd(
                        model,
                        x,
                        lambda logits, y=y: functional.cross_entropy(logits.float(), y, reduction="none"),
                        threat_model=threat_model,
                        steps=steps,
                        step_size=size * threat_model.eps,
                        x_start=begin,
                    )
                    for steps, size, begin in ways
                ]
                with torch.no_grad():
                    right = [(model(images).argmax(dim=1) == y) & counted for images in (x, *attacked)]
                correct += torch.stack([right[0].sum(), *((right[0] & found).sum() for found in right[1:])])
        return (self.processes.mean(correct) * self.processes.world_size / len(subset)).tolist()

    def _share(self, subset: Subset) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """x, y, ids and whether they count, of this rank, in batches.

        Every rank gets as many: in ZeRO 3 all of them gather weights together. What makes up the number is
        image 0 again, uncounted.
        """
        ranks, rank, device = self.processes.world_size, self.processes.rank, self.processes.device
        mine = subset.indices[rank::ranks]
        positions = range(-(-len(subset) // ranks))
        for first in range(0, len(positions), self.batch_size):
            chosen = positions[first : first + self.batch_size]
            ids = [mine[i] if i < len(mine) else subset.indices[0] for i in chosen]
            images, labels = zip(*(subset.dataset[i] for i in ids), strict=True)
            yield (
                torch.stack(images).to(device),
                torch.tensor(labels).to(device),
                torch.tensor(ids).to(device),
                torch.tensor([i < len(mine) for i in chosen]).to(device),
            )


def affordable(recipe: Recipe, every: int) -> int:
    """Images of each kind in a reading: as many as cost, both kinds together, a tenth of `every` steps'
    attacks, at least a batch, at most LARGEST.

    So that a trial of a few steps of a large network is no validation with a few steps of training.
    """
    twentieth = every * recipe.batch_size * recipe.attack_steps // (20 * STEPS)
    return min(max(twentieth, recipe.batch_size), LARGEST)
