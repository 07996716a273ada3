"""From a run to its model folder: RUN/model from its last checkpoint, or RUN/model_best from its best.

A training does the same at its end. What is written is read back and must give the same logits bit for bit:
the file that is evaluated and published is the model that was trained.

Checkpoints are pickles that DeepSpeed wrote, which can run code when opened: export only runs of your own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.keyed_noise import uniform
from robustzoo.models.folder import read_folder, write_folder
from robustzoo.models.pixel_model import PixelModel, pixel_model
from robustzoo.registry import Recipe
from robustzoo.registry.recipes import partial
from robustzoo.training.checkpoints import averages_file
from robustzoo.training.run_folder import RunFolder, export_command, hash_file

_PREFIX = "pixel_model."  # the engine wraps FeaturesAndLogits, whose only child this is
_CHECKED_IMAGES = 4


def export_model(folder: Path, recipe: Recipe, weights: Mapping[str, Tensor]) -> str:
    """Write the trained weights as a model folder, replacing an earlier export, and return their SHA-256.

    The hash is kept beside the folder (`run_folder.hash_file`), by which a broken folder is known.

    Args:
        folder: RUN/model.
        recipe: what they were trained with.
        weights: PixelModel's float32 state by name, on any device.

    Raises:
        RobustzooError: the folder read back gives other logits. Also as `write_folder`.
    """
    model = pixel_model(recipe)
    model.load_state_dict({name: tensor.detach().cpu() for name, tensor in weights.items()}, strict=True)
    model.eval()
    hash_file(folder).unlink(missing_ok=True)  # none is better than that of other weights
    digest = write_folder(folder, model, recipe, overwrite=True)
    if not torch.equal(_logits(read_folder(folder, sha256=digest)), _logits(model)):
        raise RobustzooError(
            f"{folder} read back gives other logits than the trained model; do not use it, and export "
            f"it again: {export_command(folder.parent)}"
        )
    atomic_files.write_text(hash_file(folder), f"{digest}  {folder.name}/model.safetensors\n")
    return digest


def export_run(run: RunFolder, *, best: bool = False) -> tuple[Path, int, str]:
    """Export the newest checkpoint of a run to RUN/model, or its best to RUN/model_best.

    Returns:
        The model folder, the optimizer steps done, and the SHA-256 of the weights.

    Raises:
        RobustzooError: no run or no checkpoint there, a damaged one, or no validation yet.
    """
    recipe, step = Recipe.from_json(run.settings()["recipe"]), run.chosen(best=best)
    run.check_intact(step)
    folder = run.model_best if best else run.model
    weights = checkpoint_weights(run.checkpoint(step))
    return folder, step, export_model(folder, partial(recipe, steps=step), weights)


def checkpoint_weights(folder: Path) -> dict[str, Tensor]:
    """PixelModel's float32 state in a checkpoint; where the run averages its weights, the averages.

    In ZeRO 0, 1 and 2 every rank holds all weights, in ZeRO 3 each a part, which are put together here.

    Raises:
        RobustzooError: DeepSpeed's files are absent or hold something else.
    """
    path = folder / "mp_rank_00_model_states.pt"
    if path.is_file():
        state = torch.load(path, map_location="cpu", weights_only=False)["module"]
    elif any(folder.glob("zero_pp_rank_*_model_states.pt")):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint  # takes seconds

        state = get_fp32_state_dict_from_zero_checkpoint(str(folder.parent), tag=folder.name)
    else:
        raise RobustzooError(
            f"{folder} has neither {path.name} nor the files of ZeRO 3; it is no checkpoint of a training. "
            "Delete it to export the one before"
        )
    strays = [name for name in state if not name.startswith(_PREFIX)]
    if strays:
        raise RobustzooError(
            f"{folder} holds weights that are not of the model: {', '.join(strays[:4])}. "
            "Export with the robustzoo that trained it"
        )
    # DeepSpeed gives batch norm's counters, whole numbers, as floats where it puts parts together.
    weights = {
        name.removeprefix(_PREFIX): tensor.long() if name.endswith("num_batches_tracked") else tensor
        for name, tensor in state.items()
    }
    return weights | _averages(folder, weights)


def _averages(folder: Path, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The averaged weights in a checkpoint, shaped as `weights`; none where the run averages none."""
    if (folder / averages_file(None)).is_file():
        return load_file(folder / averages_file(None))
    ranks = len(list(folder.glob(averages_file(0).replace("00000", "*"))))
    parts = [load_file(folder / averages_file(rank)) for rank in range(ranks)]
    if not parts:
        return {}
    whole = {}
    for name in parts[0]:
        own = [
            part[name] for part in parts
        ]  # of a weight its parts; every rank has all of a running statistic
        of_weight = own[0].numel() < weights[name].numel()
        whole[name] = torch.cat(own).view_as(weights[name]) if of_weight else own[0].view_as(weights[name])
    return whole


@torch.no_grad()
def _logits(model: PixelModel) -> Tensor:
    return model(uniform(0, torch.arange(_CHECKED_IMAGES), "export", model.input_shape))
