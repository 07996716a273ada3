"""What a training will cost here, from a few steps of it: `train NAME --estimate`. Nothing is kept."""

from __future__ import annotations

import resource
import sys
import time

import torch

from robustzoo.objectives.objective import Objective
from robustzoo.training import processes, zero
from robustzoo.training.data import open_training_data
from robustzoo.training.metrics import duration, say
from robustzoo.training.passes import Passes
from robustzoo.training.plan import Plan
from robustzoo.training.step import Step, expected_cost, learning_rate
from robustzoo.training.train import initial_model, micro_batches

SECONDS = 30  # of timed steps, at least one
_MOST_STEPS = 20


def estimate(plan: Plan) -> None:
    """Train a step, then as many as SECONDS allow on the clock, and say what all of them would take.

    Raises: as `train`, of which it writes nothing.
    """
    data = open_training_data(plan)
    recipe, objective, last_step = data.recipe, Objective(data.recipe), plan.last_step
    group = processes.start()
    model, _ = initial_model(plan, data, 0)
    engine = zero.build_engine(objective, plan.launch, model)
    average = zero.weight_average(engine, model, recipe)
    take_step = Step(objective, engine, Passes(engine, plan.launch), group, average, plan.flags.seed)
    steps = range(min(last_step, _MOST_STEPS + 1))
    batches = micro_batches(plan, data, group, steps)
    engine.train()
    done, spent = 0, 0.0
    for step in steps:
        begun = time.monotonic()
        take_step(
            step,
            learning_rate(recipe, step),
            [next(batches) for _ in range(plan.launch.accumulation(recipe))],
        )
        if step:  # the first one warms up, compiles, fills caches
            done, spent = done + 1, spent + time.monotonic() - begun
        slowest = group.mean(torch.tensor([spent], device=group.device)).item()
        if done and slowest > SECONDS:
            break
    seconds = spent / max(done, 1) if done else time.monotonic() - begun
    memory = _peak_bytes(group.device)
    if not group.is_main:
        return
    say(f"{recipe.name}: {data.describe()}, {plan.launch.describe(recipe)}")
    say(f"passes: {expected_cost(recipe, last_step)}")
    say(f"memory: {memory / 1e9:.2f} GB at most in this process ({group.device.type})")
    say(
        f"time: {seconds:.3g} s a step ({max(done, 1)} timed), {recipe.batch_size / seconds:.3g} images/s; "
        f"{last_step:,} steps in {duration(seconds * last_step)} h, without validation and checkpoints"
    )


def _peak_bytes(device: torch.device) -> int:
    """Of a GPU what torch has allocated, of a CPU the resident memory of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
