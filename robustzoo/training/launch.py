"""How a recipe is laid out on hardware: the processes of a launcher, micro-batches, ZeRO stage, precision."""

from __future__ import annotations

import os
from dataclasses import dataclass

from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe

PRECISIONS = ("float32", "bf16", "fp16")
OFFLOADS = ("none", "optimizer")
_WHOLE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
_NEEDED = (*_WHOLE, "MASTER_ADDR")
_START = (
    "start the processes with `deepspeed training/train.py ...` or `torchrun ... training/train.py ...`, or "
    "unset RANK and WORLD_SIZE for one process"
)


@dataclass(frozen=True)
class Launcher:
    """What a launcher tells this process through its environment; as it stands here without one.

    Attributes:
        rank: 0 to world_size - 1.
        local_rank: the same among the processes of this machine.
        neighbours: processes on this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    neighbours: int = 1

    @classmethod
    def read(cls) -> Launcher:
        """From the environment, before the processes meet.

        Raises:
            RobustzooError: variables that are missing or no whole numbers, or a rank not below WORLD_SIZE.
        """
        given = os.environ
        if "RANK" not in given and "WORLD_SIZE" not in given:
            return cls()
        if missing := [name for name in _NEEDED if not given.get(name)]:
            there = "RANK" if "RANK" in given else "WORLD_SIZE"
            raise RobustzooError(
                f"the environment has {there}, as a launcher sets it, but no {', '.join(missing)}: {_START}"
            )
        for name in _WHOLE:
            if not given[name].isdecimal():
                raise RobustzooError(f"{name} is {given[name]!r}; expected a whole number: {_START}")
        rank, world_size = int(given["RANK"]), int(given["WORLD_SIZE"])
        if rank >= world_size:
            raise RobustzooError(
                f"RANK is {rank}; expected a number below WORLD_SIZE, which is {world_size}: {_START}"
            )
        neighbours = int(given.get("LOCAL_WORLD_SIZE") or given.get("LOCAL_SIZE") or 1)
        return cls(rank, world_size, int(given["LOCAL_RANK"]), neighbours)


def speaks() -> bool:
    """Whether this process is to tell why nothing is started: of those of a launcher, rank 0 alone.

    Outside a launcher, where a RANK may be left over from one, every process does.
    """
    try:
        return Launcher.read().rank == 0
    except RobustzooError:
        return True


@dataclass(frozen=True)
class Launch:
    """A layout; nothing in here changes the result beyond rounding.

    Attributes:
        world_size: processes.
        micro_batch_size: samples per process and engine call.
        zero_stage: 0 to 3.
        precision: what the network's matrix products and convolutions run in; weights, optimizer, losses,
            traces and pixels are float32 in all of them.
        activation_checkpointing: recompute each block in the backward pass of the training pass.
        offload: "optimizer": the optimizer's state lives in the memory of the host.
        compile: torch.compile of the attack and of the training pass.
    """

    world_size: int
    micro_batch_size: int
    zero_stage: int = 1
    precision: str = "float32"
    activation_checkpointing: bool = False
    offload: str = "none"
    compile: bool = False

    @classmethod
    def fit(
        cls,
        recipe: Recipe,
        world_size: int,
        micro_batch_size: int | None,
        zero_stage: int = 1,
        **settings: str | bool,
    ) -> Launch:
        """Lay out the recipe's batch; without a micro-batch size each process takes its share in one pass.

        Args:
            settings: the fields from `precision` on.

        Raises:
            RobustzooError: the batch is not a whole number of micro-batches on every process, or settings
                that do not go together or with the recipe.
        """
        batch = recipe.batch_size
        if batch % world_size:
            raise RobustzooError(
                f"the batch of {batch} does not divide evenly over {world_size} processes; "
                f"choose --batch-size as a multiple of {world_size}, or another number of processes"
            )
        share = batch // world_size
        micro = share if micro_batch_size is None else micro_batch_size
        if share % micro:
            divisors = [d for d in range(1, share + 1) if share % d == 0]
            near = sorted(sorted(divisors, key=lambda d: abs(d - micro))[:3])
            raise RobustzooError(
                f"--micro-batch {micro} does not divide the {share} samples of each process (batch {batch} "
                f"over {world_size}); the nearest that do: {', '.join(map(str, near))}"
            )
        launch = cls(world_size, micro, zero_stage, **settings)
        for does_not_go, reason in launch._contradictions(recipe):
            if does_not_go:
                raise RobustzooError(reason)
        return launch

    def _contradictions(self, recipe: Recipe) -> list[tuple[bool, str]]:
        """What does not go together, and what to use instead."""
        return [
            (
                self.zero_stage == 3 and recipe.awp_delta is not None,
                f"{recipe.name} has AWP, which scales every weight by its own norm, and ZeRO 3 leaves no "
                "process a whole weight: use --zero 2, which shards all but the weights",
            ),
            (
                self.zero_stage == 3 and recipe.sam_rho is not None,
                f"{recipe.name} has SAM, which moves the weights, and ZeRO 3 leaves no process a whole one: "
                "use --zero 2, which shards all but the weights",
            ),
            (
                self.zero_stage == 3 and recipe.trh_form == "relative",
                f"{recipe.name} has relative flatness, which needs the norm of the whole head, and ZeRO 3 "
                "leaves no process one: use --zero 2, which shards all but the weights",
            ),
            (
                self.zero_stage == 3 and self.compile,
                "--compile traces whole weights, and ZeRO 3 gathers them in hooks that no graph holds: use "
                "--zero 2, or leave --compile out",
            ),
            (
                self.zero_stage == 0 and self.offload != "none",
                "--offload optimizer moves the partition that a process updates, and ZeRO 0 has none: use "
                "--zero 1",
            ),
            (
                self.zero_stage == 0 and self.precision == "fp16",
                "--precision fp16 scales its loss in DeepSpeed's ZeRO optimizer, which ZeRO 0 does without: "
                "use --zero 1, or --precision bf16",
            ),
        ]

    def accumulation(self, recipe: Recipe) -> int:
        """Engine calls per optimizer step."""
        return recipe.batch_size // (self.micro_batch_size * self.world_size)

    def describe(self, recipe: Recipe) -> str:
        """One line for people."""
        extras = [
            self.precision,
            *(["activation checkpointing"] if self.activation_checkpointing else []),
            *([f"{self.offload} offloaded"] if self.offload != "none" else []),
            *(["compiled"] if self.compile else []),
        ]
        return (
            f"batch {recipe.batch_size} = {self.world_size} process{'es' * (self.world_size > 1)} x "
            f"{self.micro_batch_size} x {self.accumulation(recipe)} accumulated, ZeRO {self.zero_stage}, "
            f"{', '.join(extras)}"
        )
