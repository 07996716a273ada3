"""From a run to its model folder: `python training/export.py RUN` writes RUN/model from its last checkpoint.

train.py does the same at its end. What is written is read back and must give the same logits bit for bit: the
file that is evaluated and published is the model that was trained.

Checkpoints are pickles that DeepSpeed wrote, which can run code when opened: export only runs of your own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout: `training` and robustzoo

from robustzoo.keyed_noise import uniform
from robustzoo.models.folder import FolderError, read_folder, write_folder
from robustzoo.models.pixel_model import PixelModel, pixel_model
from robustzoo.registry import Recipe, RecipeError
from robustzoo.registry.recipes import partial
from training.averaging import averaged_weights
from training.run_folder import RunFolder, RunFolderError

_PREFIX = "pixel_model."  # the engine wraps FeaturesAndLogits, whose only child this is
_CHECKED_IMAGES = 2  # beside the weights themselves; a large network takes seconds an image


class ExportError(ValueError):
    """Weights that cannot be exported, or that came back changed."""


def export_model(folder: Path, recipe: Recipe, weights: Mapping[str, Tensor]) -> str:
    """Write the trained weights as a model folder, replacing an earlier export, and return their SHA-256.

    Args:
        folder: RUN/model.
        recipe: what they were trained with.
        weights: PixelModel's float32 state by name, on any device.

    Raises:
        ExportError: the folder read back gives other logits. FolderError: see `write_folder`.
    """
    model = pixel_model(recipe)
    model.load_state_dict({name: tensor.detach().cpu() for name, tensor in weights.items()}, strict=True)
    model.eval()
    digest = write_folder(folder, model, recipe, overwrite=True)
    if not torch.equal(_logits(read_folder(folder, sha256=digest)), _logits(model)):
        raise ExportError(f"{folder} read back gives other logits than the trained model; do not use it")
    return digest


def export_run(run: RunFolder) -> tuple[int, str]:
    """Export the newest checkpoint of a run; (optimizer steps it had done, SHA-256 of the weights).

    Raises:
        RunFolderError: no run or no whole checkpoint there.
    """
    recipe = Recipe.from_json(run.settings()["recipe"])
    step = run.latest_step()
    if step is None:
        raise RunFolderError(f"{run.path} has no whole checkpoint; train first, or continue with --resume")
    weights = checkpoint_weights(run.checkpoint(step)) | averaged_weights(run.checkpoint(step))
    return step, export_model(run.model, partial(recipe, steps=step), weights)


def checkpoint_weights(folder: Path) -> dict[str, Tensor]:
    """PixelModel's float32 state in a checkpoint of ZeRO 0, 1 or 2, where every rank holds all weights.

    Raises:
        ExportError: DeepSpeed's file is absent or holds something else.
    """
    path = folder / "mp_rank_00_model_states.pt"
    if not path.is_file():
        raise ExportError(f"{folder} has no {path.name}; it is no checkpoint of ZeRO stage 0, 1 or 2")
    state = torch.load(path, map_location="cpu", weights_only=False)["module"]
    strays = [name for name in state if not name.startswith(_PREFIX)]
    if strays:
        raise ExportError(f"{path} holds weights that are not of the model: {', '.join(strays[:4])}")
    return {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()}


@torch.no_grad()
def _logits(model: PixelModel) -> Tensor:
    return model(uniform(0, torch.arange(_CHECKED_IMAGES), "export", model.input_shape))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="export.py", description=__doc__.splitlines()[0])
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="the run folder of train.py (only one of your own)"
    )
    run = RunFolder(parser.parse_args(argv).run)
    try:
        step, digest = export_run(run)
    except (RunFolderError, ExportError, FolderError, RecipeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{run.model}: weights after {step:,} steps, sha256 {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
