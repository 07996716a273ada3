"""SWA within a run: the averaged weights of a recipe that has them, through checkpoints to the export."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from robustzoo.models.pixel_model import PixelModel
from robustzoo.objectives.weight_averaging import WeightAverage
from robustzoo.registry import Recipe
from training.processes import Processes

_PREFIX = "averaged_weights_rank"


class Averaging:
    """The average of a run's weights, or nothing at all where the recipe has no SWA."""

    def __init__(self, recipe: Recipe, model: PixelModel, group: Processes) -> None:
        self._rank = group.rank
        self._average: WeightAverage | None = None
        if "swa" in recipe.defences:
            self._average = WeightAverage(
                model,
                recipe.swa_decay,
                rank=group.rank,
                world_size=group.world_size,
                broadcast=group.broadcast,
            )

    def update(self) -> None:
        """Take in the weights of the step just made."""
        if self._average is not None:
            self._average.update()

    def applied(self) -> AbstractContextManager[None]:
        """Within the block the model is the one to validate and export; every rank must enter."""
        return nullcontext() if self._average is None else self._average.applied()

    def save(self, folder: Path) -> None:
        """Write this rank's share into a checkpoint."""
        if self._average is not None:
            shared = {name: tensor.contiguous() for name, tensor in self._average.state().items()}
            save_file(shared, self._file(folder))

    def load(self, folder: Path) -> None:
        """Read this rank's share of the same number of ranks."""
        if self._average is not None:
            self._average.load(load_file(self._file(folder)))

    def _file(self, folder: Path) -> Path:
        return folder / f"{_PREFIX}{self._rank:05d}.safetensors"


def averaged_weights(folder: Path) -> dict[str, Tensor]:
    """PixelModel's averaged parameters by name, from every rank's share in a checkpoint; {} without SWA."""
    weights: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"{_PREFIX}*.safetensors")):
        weights |= load_file(path)
    return weights
