"""Everything DeepSpeed: (recipe, launch) -> config, the engine, its step, and its checkpoints."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import logger as deepspeed_logger
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from robustzoo.models.pixel_model import FeaturesAndLogits, PixelModel
from robustzoo.objectives.weight_averaging import WeightAverage
from robustzoo.registry import Recipe
from robustzoo.registry.catalog import ARCHITECTURES
from training.run_folder import AVERAGES

# Elements per gradient bucket: a quarter of the network, so that even a tiny one is reduced in pieces,
# between 2^14 (below it a message costs more than its content) and 50M (200 MB in float32).
_SMALLEST_BUCKET, _LARGEST_BUCKET = 2**14, 50_000_000


class LaunchError(ValueError):
    """Hardware flags that do not fit the recipe."""


@dataclass(frozen=True)
class Launch:
    """How a recipe is laid out on hardware; nothing in here changes the result beyond rounding."""

    world_size: int
    micro_batch_size: int
    zero_stage: int = 1

    @classmethod
    def fit(
        cls, recipe: Recipe, world_size: int, micro_batch_size: int | None, zero_stage: int = 1
    ) -> Launch:
        """Lay out the recipe's batch; without a micro-batch size each process takes its share in one pass.

        Raises:
            LaunchError: the batch is not a whole number of micro-batches on every process.
        """
        batch = recipe.batch_size
        if batch % world_size:
            raise LaunchError(
                f"the batch of {batch} does not divide evenly over {world_size} processes; "
                f"choose --batch-size as a multiple of {world_size}, or another number of processes"
            )
        share = batch // world_size
        micro = share if micro_batch_size is None else micro_batch_size
        if share % micro:
            divisors = [d for d in range(1, share + 1) if share % d == 0]
            near = sorted(sorted(divisors, key=lambda d: abs(d - micro))[:3])
            raise LaunchError(
                f"--micro-batch {micro} does not divide the {share} samples of each process (batch {batch} "
                f"over {world_size}); the nearest that do: {', '.join(map(str, near))}"
            )
        return cls(world_size, micro, zero_stage)

    def accumulation(self, recipe: Recipe) -> int:
        """Engine calls per optimizer step."""
        return recipe.batch_size // (self.micro_batch_size * self.world_size)

    def describe(self, recipe: Recipe) -> str:
        """One line for people."""
        return (
            f"batch {recipe.batch_size} = {self.world_size} process{'es' * (self.world_size > 1)} x "
            f"{self.micro_batch_size} x {self.accumulation(recipe)} accumulated, ZeRO {self.zero_stage}"
        )


def config(recipe: Recipe, launch: Launch) -> dict[str, Any]:
    """The DeepSpeed configuration of a recipe on this hardware; pure, every value that matters explicit.

    The learning rate and the optimizer are not in it: the engine is given a torch optimizer whose rate
    `schedule.learning_rate` sets at every step. Clipping is by global norm, 0 meaning none.
    """
    parameters = ARCHITECTURES[recipe.architecture].parameter_count(recipe.image_size, recipe.num_classes)
    bucket = min(max(parameters // 4, _SMALLEST_BUCKET), _LARGEST_BUCKET)
    return {
        "train_batch_size": recipe.batch_size,
        "train_micro_batch_size_per_gpu": launch.micro_batch_size,
        "gradient_accumulation_steps": launch.accumulation(recipe),
        "gradient_clipping": recipe.gradient_clipping,
        "zero_optimization": {
            "stage": launch.zero_stage,
            "reduce_bucket_size": bucket,
            "allgather_bucket_size": bucket,
            "contiguous_gradients": True,
        },
        "zero_allow_untested_optimizer": True,  # SGD: element-wise, so right on any partition
        "zero_force_ds_cpu_optimizer": False,
        "fp16": {"enabled": False},
        "bf16": {"enabled": False},
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }


def optimizer(recipe: Recipe, parameters: list[nn.Parameter], weight_decay: float) -> torch.optim.Optimizer:
    """The recipe's torch optimizer over all parameters, with coupled weight decay (2 gamma or 2 l2_reg).

    SGD and Adam add `weight_decay * theta` to the gradient they are given, which is the clipped one: the L2
    term of the objective, applied after clipping. AdamW's decoupled decay would be another objective.
    """
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=recipe.base_lr, momentum=recipe.momentum, weight_decay=weight_decay
        )
    return torch.optim.Adam(
        parameters, lr=recipe.base_lr, betas=(recipe.momentum, 0.999), weight_decay=weight_decay
    )


def build_engine(recipe: Recipe, launch: Launch, model: PixelModel, weight_decay: float):
    """The DeepSpeed engine around `FeaturesAndLogits(model)`; attacks go through `model` itself."""
    deepspeed_logger.setLevel(logging.WARNING)
    module = FeaturesAndLogits(model)
    torch_optimizer = optimizer(recipe, list(module.parameters()), weight_decay)
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=torch_optimizer, config=config(recipe, launch), dist_init_required=False
    )
    return engine


def set_learning_rate(engine, rate: float) -> None:
    for group in engine.optimizer.param_groups:
        group["lr"] = rate


def backward(engine, loss: Tensor) -> None:
    """The backward pass of a micro-batch; its gradient is averaged with those of the step's others."""
    engine.backward(loss)
    if not engine.is_gradient_accumulation_boundary():
        engine.step()  # only counts the micro-batch


def optimizer_step(engine) -> float:
    """Update the weights after a step's last micro-batch and return the norm of the gradient.

    The norm is the one before clipping, over all parameters and ranks.
    """
    if engine.zero_optimization_stage() == 0:  # plain float32: DeepSpeed clips but keeps no norm
        norm = torch.nn.utils.get_total_norm(
            [p.grad for p in engine.module.parameters() if p.grad is not None]
        )
        engine.step()
    else:
        engine.step()
        norm = engine.get_global_grad_norm()
    return float(norm)


def save_state(engine, folder: Path, rank: int, average: WeightAverage | None = None) -> None:
    """Write weights, their average, optimizer state and this rank's random state into `folder`.

    Every rank must call it; the average, the same on all of them, is written by rank 0.
    """
    engine.save_checkpoint(str(folder.parent), tag=folder.name, save_latest=False)
    state = {"cpu": torch.get_rng_state(), "device": get_accelerator().get_rng_state()}
    torch.save(state, folder / f"random_state_rank{rank:05d}.pt")
    if average is not None and rank == 0:
        save_file({name: t.cpu().contiguous() for name, t in average.state().items()}, folder / AVERAGES)


def load_state(engine, folder: Path, rank: int, average: WeightAverage | None = None) -> None:
    """Read what `save_state` wrote, on the same number of processes.

    DeepSpeed's files are pickles, which can run code when opened: read them only from your own run folder.
    """
    path, _ = engine.load_checkpoint(str(folder.parent), tag=folder.name)
    if path is None:
        raise FileNotFoundError(
            f"DeepSpeed found no checkpoint in {folder}; delete it to resume from the one before"
        )
    state = torch.load(folder / f"random_state_rank{rank:05d}.pt", weights_only=True, map_location="cpu")
    torch.set_rng_state(state["cpu"])
    get_accelerator().set_rng_state(state["device"])
    if average is not None:
        average.load(load_file(folder / AVERAGES))


def trained_weights(engine, average: WeightAverage | None = None) -> dict[str, Tensor]:
    """What is exported: PixelModel's float32 state by name, averaged where the recipe averages weights.

    In ZeRO 0 to 2 every rank's own module holds all of it.
    """
    return engine.module.pixel_model.state_dict() | ({} if average is None else average.state())
