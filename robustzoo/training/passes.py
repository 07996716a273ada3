"""The passes of a step: the attack on frozen weights, training through the engine, AWP on perturbed weights.

| precision | matrix products, convolutions | weights, optimizer, losses, traces, head, pixels, epsilon |
|-----------|-------------------------------|-----------------------------------------------------------|
| float32   | float32                       | float32                                                   |
| bf16      | bfloat16 (autocast)           | float32                                                   |
| fp16      | float16 (autocast)            | float32; the loss is scaled before the backward pass      |

Activations are recomputed (`--activation-checkpointing`) in the training pass only: an attack keeps no
activations for weights. With `--compile` each kind of pass is a graph of its own; images of one shape and
flags that stay as they are let it be compiled once. TRADES' clean target has no gradient: a third graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from robustzoo.models.batch_norm import kept_buffers
from robustzoo.models.pixel_model import FeaturesAndLogits
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.weight_perturbation import moved
from robustzoo.training import zero
from robustzoo.training.launch import Launch
from robustzoo.training.processes import Processes

COMPUTE_DTYPES = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# The gradient of an attack in fp16 is scaled by this, since small ones would be 0 there: a direction is all
# that the attack takes from it. Softmax gradients are at most 1 an image, 65,504 is the largest number.
FP16_ATTACK_SCALE = 2.0**10
COMPILER = "inductor"
MicroBatch = tuple[Tensor, Tensor, Tensor]  # x, x_adv (B, C, H, W); y (B,) or (B, K)


class Logits(nn.Module):
    """Pixels (B, C, H, W) to logits (B, K): what attacks and validation call, never the engine.

    Args:
        module: what the engine wraps.
        whole: call that module itself, whose hooks gather the weights (ZeRO 3); else its PixelModel alone.
        gradient_scale: factor of every gradient that is taken of the logits.
    """

    def __init__(self, module: FeaturesAndLogits, *, whole: bool, gradient_scale: float = 1.0) -> None:
        super().__init__()
        self.module = module if whole else module.pixel_model
        self.whole = whole
        self.gradient_scale = gradient_scale
        self._compiled = None

    def compile_inner(self) -> None:
        """Compile what `forward` calls, for batches of one shape."""
        self._compiled = torch.compile(self.module, backend=COMPILER, dynamic=False)

    def forward(self, x: Tensor) -> Tensor:
        out = (self.module if self._compiled is None else self._compiled)(x)
        logits = out[1] if self.whole else out
        if self.gradient_scale != 1.0 and logits.requires_grad:
            logits.register_hook(lambda gradient: gradient * self.gradient_scale)
        return logits


class Passes:
    """The passes of a training.

    Attributes:
        attack: what `Objective.attack` is given, compiled with `--compile`.
        logits: the same, never compiled: for batches of any size.
    """

    def __init__(self, engine, launch: Launch) -> None:
        self._engine = engine
        self._launch = launch
        module: FeaturesAndLogits = engine.module
        model = module.pixel_model
        model.compute_dtype = COMPUTE_DTYPES[launch.precision]
        scale = FP16_ATTACK_SCALE if launch.precision == "fp16" else 1.0
        whole = launch.zero_stage == 3
        self.logits = Logits(module, whole=whole)
        self.attack = Logits(module, whole=whole, gradient_scale=scale)
        if launch.compile:
            self.attack.compile_inner()
            module.compile(backend=COMPILER, dynamic=False)

    def train(self, images: Tensor) -> tuple[Tensor, ...]:
        """What `Objective.module` makes of images in the training pass, through the engine."""
        with self.recomputing():
            return self._engine(images)

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a training pass. What it recomputes is no second batch for batch norm."""
        model = self._engine.module.pixel_model
        with kept_buffers(model) if self._launch.activation_checkpointing else nullcontext():
            zero.backward(self._engine, loss)

    @contextmanager
    def recomputing(self):
        """Inside the block a forward pass keeps no activations within blocks, if the launch asks for it."""
        if not self._launch.activation_checkpointing:
            yield
            return
        network = self._engine.module.pixel_model.network
        network.set_grad_checkpointing(True)
        try:
            yield
        finally:
            network.set_grad_checkpointing(False)

    @contextmanager
    def perturbed_weights(
        self, objective: Objective, processes: Processes, micro_batches: Sequence[MicroBatch], *, step: int
    ):
        """The weights of AWP or another defence that moves them inside the block, where the recipe has it at
        this step; else the weights as they are.

        Take the gradients inside and the optimizer's step outside: a step at perturbed weights would be
        undone. The direction is that of the whole batch, all micro-batches and ranks, so that its layout does
        not change the result.
        """
        if not objective.ascends(step):
            yield
            return
        total: list[Tensor] = []
        for x, x_adv, y in micro_batches:
            with self.recomputing():
                model = self._engine.module.pixel_model
                parameters, directions = objective.ascent(model, x, x_adv, y, step)
            total = [a.add_(b) for a, b in zip(total, directions, strict=True)] if total else directions
        for direction in total:
            processes.mean(direction)
        moves = objective.moves(parameters, total)
        del total, directions  # once the moves are made: no need to keep them through the backward pass
        with moved(parameters, moves):
            del moves
            yield
