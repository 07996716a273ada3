"""Everything DeepSpeed: (recipe, launch) -> config, the engine, its step, and its checkpoints."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler
from deepspeed.utils import logger as deepspeed_logger
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from robustzoo.models.architectures import layer_groups, parameter_count
from robustzoo.models.batch_norm import stored_buffers
from robustzoo.models.pixel_model import PixelModel
from robustzoo.objectives.extension import brought
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.weight_averaging import WeightAverage
from robustzoo.registry import Recipe
from robustzoo.registry.extensions import is_outside
from robustzoo.training.checkpoints import averages_file
from robustzoo.training.launch import Launch

# Elements per gradient bucket: a quarter of the network, so that even a tiny one is reduced in pieces,
# between 2^14 (below it a message costs more than its content) and 50M (200 MB in float32).
_SMALLEST_BUCKET, _LARGEST_BUCKET = 2**14, 50_000_000
# fp16: the loss is scaled by 2^16 at first, half of that after a step whose gradients overflow, twice after
# this many steps without one; 1 is the least. Source: the usual values of mixed precision training.
_LOSS_SCALE = {"init_scale": 2.0**16, "scale_window": 1000, "min_scale": 1.0}


def config(recipe: Recipe, launch: Launch) -> dict[str, Any]:
    """The DeepSpeed configuration of a recipe on this hardware; pure, every value that matters explicit.

    The learning rate and the optimizer are not in it: the engine is given a torch optimizer whose rate
    `schedule.learning_rate` sets at every step. Clipping is by global norm, 0 meaning none. `fp16` and `bf16`
    stay off in every precision: they would store the weights in 16 bits, ours are float32 (see `passes`).
    """
    quarter = parameter_count(recipe) // 8 * 2  # even: each partition begins at a multiple of 2 elements
    bucket = min(max(quarter, _SMALLEST_BUCKET), _LARGEST_BUCKET)
    partition: dict[str, Any] = {
        "stage": launch.zero_stage,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        "contiguous_gradients": True,
    }
    if launch.zero_stage == 3:
        partition |= {
            "stage3_prefetch_bucket_size": bucket,
            # What is gathered at a time: half of a network, two buckets of a large one. The default is larger
            # than any network here, which would then be kept whole on every process.
            "stage3_max_live_parameters": 2 * bucket,
            "stage3_max_reuse_distance": 2 * bucket,
            # No weight is kept whole beside its shards, so that averaged shards are all there is to swap in.
            "stage3_param_persistence_threshold": 0,
            "stage3_gather_16bit_weights_on_model_save": False,
        }
    if launch.offload == "optimizer":
        partition["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_batch_size": recipe.batch_size,
        "train_micro_batch_size_per_gpu": launch.micro_batch_size,
        "gradient_accumulation_steps": launch.accumulation(recipe),
        "gradient_clipping": recipe.gradient_clipping,
        "zero_optimization": partition,
        "zero_allow_untested_optimizer": True,  # SGD: element-wise, so right on any partition
        "zero_force_ds_cpu_optimizer": False,
        "fp16": {"enabled": False},
        "bf16": {"enabled": False},
        "steps_per_print": 10**9,
        "wall_clock_breakdown": False,
    }


def optimizer(
    recipe: Recipe, parameters: list[nn.Parameter] | list[dict[str, Any]], weight_decay: float
) -> torch.optim.Optimizer:
    """The recipe's torch optimizer over these parameters or groups, with weight decay (2 gamma or 2 l2_reg).

    SGD and Adam add `weight_decay * theta` to the gradient they are given, which is the clipped one: the L2
    term of the objective, applied after clipping. AdamW takes `rate * weight_decay * theta` from the weights
    beside its step, which is the gradient of no objective.
    """
    if is_outside(recipe.optimizer):
        return brought(recipe, "optimizer", recipe.optimizer, torch.optim.Optimizer, parameters, weight_decay)
    settings = {"lr": recipe.base_lr, "weight_decay": weight_decay}
    if get_accelerator().device_name() in ("cpu", "cuda"):
        settings["fused"] = True  # one pass over weights, gradients and states
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, momentum=recipe.momentum, **settings)
    kind = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, betas=(recipe.momentum, 0.999), **settings)


def build_engine(objective: Objective, launch: Launch, model: PixelModel):
    """The DeepSpeed engine around `FeaturesAndLogits(model)`; see `passes` for what goes through it."""
    deepspeed_logger.setLevel(logging.WARNING)
    recipe = objective.recipe
    module = objective.module(model)
    torch_optimizer = optimizer(recipe, layer_groups(model, recipe.layer_decay), objective.weight_decay)
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=torch_optimizer, config=config(recipe, launch), dist_init_required=False
    )
    if launch.zero_stage == 3:
        # timm's forward_features is no module's forward, so no hook would gather what the network itself owns
        # (class token, position embedding).
        for parameter in model.network.parameters(recurse=False):
            deepspeed.zero.register_external_parameter(module, parameter)
    if launch.precision == "fp16":
        # DeepSpeed skips a step whose gradient norm is no number, tells the scaler, and checkpoints it.
        engine.optimizer.loss_scaler = DynamicLossScaler(
            **_LOSS_SCALE, delayed_shift=1, consecutive_hysteresis=False, raise_error_at_min_scale=False
        )
        engine.optimizer.dynamic_loss_scale = True
    return engine


def set_learning_rate(engine, rate: float) -> None:
    for group in engine.optimizer.param_groups:
        group["lr"] = rate * group.get("lr_scale", 1.0)


def backward(engine, loss: Tensor) -> None:
    """The backward pass of a micro-batch; its gradient is averaged with those of the step's others."""
    engine.backward(loss)
    if not engine.is_gradient_accumulation_boundary():
        engine.step()  # only counts the micro-batch


def optimizer_step(engine) -> float:
    """Update the weights after a step's last micro-batch and return the norm of the gradient.

    The norm is the one before clipping, over all parameters and ranks. Where it is no number, ZeRO 1 to 3
    leave the weights as they are.
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


def skipped(engine) -> bool:
    """Whether the last step left the weights as they were, to try a smaller loss scale (fp16)."""
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    return isinstance(scaler, DynamicLossScaler) and engine.optimizer.overflow and scaler.cur_scale > 1


def loss_scale(engine) -> float:
    """What the loss is multiplied by before the backward pass; 1 but for fp16."""
    return float(getattr(engine.optimizer, "loss_scale", 1.0))


def own_weights(engine) -> dict[str, Tensor]:
    """Weights by PixelModel's names, as far as this process keeps them: in ZeRO 3 flat parts, float32.

    The parts of all ranks, in their order, make up the weight: what pads the last ones is left out.
    """
    weights = dict(engine.module.pixel_model.named_parameters())
    if engine.zero_optimization_stage() < 3:
        return weights
    return {name: _own_part(weight) for name, weight in weights.items()}


def _own_part(weight: nn.Parameter) -> Tensor:
    size = weight.ds_tensor.ds_numel
    length = min(max(weight.ds_numel - dist.get_rank() * size, 0), size)
    return weight.ds_tensor.detach().narrow(0, 0, length)


def weight_average(engine, model: PixelModel, recipe: Recipe) -> WeightAverage | None:
    """The average of `own_weights` that a recipe asks for: in ZeRO 3 each process averages its parts, and
    nothing is gathered."""
    decay, warmup = recipe.swa_decay, recipe.swa_warmup
    if decay is None:
        return None
    if engine.zero_optimization_stage() < 3:
        return WeightAverage(model, decay, warmup=warmup)
    return WeightAverage(
        model,
        decay,
        weights=lambda: own_weights(engine),
        written=engine.empty_partition_cache,
        warmup=warmup,
    )


def l2_term(engine, objective: Objective) -> float:
    """`Objective.l2_term` of all weights; every rank must call it."""
    term = objective.l2_term(own_weights(engine).values())
    if engine.zero_optimization_stage() == 3:
        dist.all_reduce(term)
    return term.item()


def save_state(engine, folder: Path, rank: int, average: WeightAverage | None = None) -> None:
    """Write weights, their average, optimizer state and this rank's random state into `folder`.

    Every rank must call it. The average is written by rank 0 alone where it is the same on all of them.
    """
    engine.save_checkpoint(str(folder.parent), tag=folder.name, save_latest=False)
    state = {"cpu": torch.get_rng_state(), "device": get_accelerator().get_rng_state()}
    torch.save(state, folder / f"random_state_rank{rank:05d}.pt")
    sharded = engine.zero_optimization_stage() == 3
    if average is not None and (sharded or rank == 0):
        tensors = {name: t.cpu().contiguous() for name, t in average.state().items()}
        save_file(tensors, folder / averages_file(rank if sharded else None))


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
        sharded = engine.zero_optimization_stage() == 3
        average.load(load_file(folder / averages_file(rank if sharded else None)))


def trained_weights(engine, average: WeightAverage | None = None) -> dict[str, Tensor]:
    """What is exported: PixelModel's float32 state on the CPU by name, averaged where the recipe averages.

    Every rank must call it: ZeRO 3 gathers one weight after the other, and keeps one at a time.
    """
    weights = {}
    with nullcontext() if average is None else average.in_place():
        for name, weight in engine.module.pixel_model.named_parameters():
            gathered = engine.zero_optimization_stage() == 3
            with deepspeed.zero.GatheredParameters([weight]) if gathered else nullcontext():
                weights[name] = weight.detach().cpu().clone()
        for name, buffer in stored_buffers(engine.module.pixel_model).items():
            weights[name] = buffer.detach().cpu().clone()
    return weights
