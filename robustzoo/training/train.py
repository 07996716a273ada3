"""The training loop: from a plan to checkpoints, a log and the model folder.

A recipe holds the science, flags hold the hardware: every layout of a batch over processes and micro-batches
trains the same model up to rounding. A run that was killed goes on with --resume and ends with the same
weights, bit for bit on one machine. See docs/training.md.
"""

from __future__ import annotations

import math
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustzoo.data import augment, cutmix, training_batches
from robustzoo.errors import RobustzooError
from robustzoo.models.architectures import computed_buffers
from robustzoo.models.initial import load_initial
from robustzoo.models.pixel_model import PixelModel, pixel_model
from robustzoo.objectives.objective import Objective
from robustzoo.registry.describe import changes
from robustzoo.registry.extensions import versions
from robustzoo.registry.recipes import partial
from robustzoo.training import processes, zero
from robustzoo.training.checkpoints import Best
from robustzoo.training.data import TrainingData, open_training_data
from robustzoo.training.export import export_model
from robustzoo.training.launch import speaks
from robustzoo.training.metrics import Clock, Metrics, open_logger, say, step_line
from robustzoo.training.passes import Passes
from robustzoo.training.plan import Plan
from robustzoo.training.processes import Processes
from robustzoo.training.run_folder import export_command
from robustzoo.training.step import Outcome, Step, expected_cost, learning_rate
from robustzoo.training.validation import Validation


def run(plan: Plan) -> int:
    """`train`, with its end told in words.

    Returns:
        The status of the process, see `__main__.train`.
    """
    return told(lambda: train(plan))


def told(work: Callable[[], None]) -> int:
    """Do it, and tell how it ended: see `run`."""
    try:
        work()
    except processes.TrainingStopped as error:
        say(f"error: {error}")  # on the process where it happened: the others know no more
        return error.status
    except KeyboardInterrupt:
        say("error: interrupted before the first step; nothing is lost")
        return 128 + signal.SIGINT
    except RobustzooError as error:
        if speaks():
            say(f"error: {error}")
        return 2
    return 0


def train(plan: Plan) -> None:
    """Everything from names to the model folder. Refuses bad input before it writes anything."""
    flags, launch, folder = plan.flags, plan.launch, plan.run

    # ---- What to train, and on what ------------------------------------------------------------------------
    data = open_training_data(plan)
    recipe, objective, last_step = data.recipe, Objective(data.recipe), plan.last_step
    refuse_moving_parts(plan, objective)

    # ---- Processes, and whether the run folder may be used -------------------------------------------------
    group = processes.start()
    settings = snapshot(plan, data)
    done = group.decide(lambda: folder.check(settings, last_step, resume=flags.resume))
    best = group.decide(lambda: folder.best(done))
    last_step = done if best.stops(flags.early_stopping) else last_step
    validation = Validation(data, group, launch.micro_batch_size, every=plan.validate_every)

    # ---- Weights and engine, and what a checkpoint restores: these, then random states ---------------------
    model, start = initial_model(plan, data, done)
    engine = zero.build_engine(objective, launch, model)
    passes = Passes(engine, launch)
    average = zero.weight_average(engine, model, recipe)
    take_step = Step(objective, engine, passes, group, average, flags.seed)
    torch.manual_seed(flags.seed + 1 + group.rank)  # for dropout and stochastic depth
    if done:
        group.decide(lambda: folder.check_intact(done))
        zero.load_state(engine, folder.checkpoint(done), group.rank, average)
    group.decide(lambda: folder.claim(settings, last_step, done, resume=flags.resume))
    if group.is_main:
        folder.begin(settings)
        introduce(plan, data, validation, start, range(done, last_step))

    with processes.told(folder, group):
        # ---- Steps -----------------------------------------------------------------------------------------
        batches = micro_batches(plan, data, group, range(done, last_step))
        metrics = None
        if group.is_main:
            also = open_logger(flags.logger, folder.path, recipe.name, recipe.to_json())
            metrics = Metrics(folder.metrics, done, also)
        clock = Clock(done, last_step, recipe.batch_size)
        engine.train()
        last = done == last_step
        while not last:
            step, done = done, done + 1
            rate = learning_rate(recipe, step)
            outcome = take_step(step, rate, [next(batches) for _ in range(launch.accumulation(recipe))])
            refuse_divergence(done, outcome)

            # ---- What to say and to keep after the step ----------------------------------------------------
            last = done == last_step
            reads = last or done % plan.validate_every == 0
            keeps = last or done % plan.checkpoint_every == 0
            if not (reads or keeps or done % flags.log_every == 0):
                continue
            images_per_second, seconds_left = clock.read(done)
            record = measured(engine, objective, step, outcome, rate, images_per_second)
            if launch.precision == "fp16":
                record["loss_scale"] = zero.loss_scale(engine)
            if average is not None:  # its weights have seen no image: their running statistics are measured
                average.renew(lambda: validation.renew_statistics(passes.logits))
            if reads:
                with nullcontext() if average is None else average.in_place():  # what is exported
                    record |= validation.run(passes.logits)
                best = best.after(done, record["pgd10_accuracy"])
                last = last or best.stops(flags.early_stopping)
                if group.is_main and (collapsed := validation.collapse(record)):
                    say(f"step {done:,}: {collapsed}")
            if group.is_main:
                metrics.write(done, **record)
                say(step_line(done, last_step, record, seconds_left))
            if last or keeps or best.step == done:
                write_checkpoint(
                    plan, group, done, best, lambda to: zero.save_state(engine, to, group.rank, average)
                )
            clock.restart(done)

        # ---- Export: the file that is evaluated is the file that is published ------------------------------
        weights = zero.trained_weights(engine, average)
        if group.is_main:
            metrics.close()
            export_trained(plan, data, done, best, weights)
        group.barrier()


def refuse_moving_parts(plan: Plan, objective: Objective) -> None:
    """Raise RobustzooError for a defence that needs whole weights, where no process has any."""
    if plan.launch.zero_stage == 3 and objective.moves_weights:
        raise RobustzooError(
            f"{plan.recipe.name} has a defence that moves the weights, and ZeRO 3 leaves no process a whole "
            "weight: use --zero 2, which shards all but the weights"
        )


def snapshot(plan: Plan, data: TrainingData) -> dict[str, Any]:
    """config.json: all that is needed to run this again. What is "fixed" must not change on --resume."""
    return {
        "command": shlex.join(processes.command(plan.launch.world_size)),
        "fixed": {**plan.fixed(data.recipe), **data.identity()},
        "recipe": data.recipe.to_json(),
        "deepspeed_config": zero.config(data.recipe, plan.launch),
        "versions": {
            **{package: version(package) for package in ("torch", "deepspeed", "timm")},
            **versions(data.recipe.science),
        },
    }


def initial_model(plan: Plan, data: TrainingData, done: int) -> tuple[PixelModel, str]:
    """The network with its initial weights, the same on every rank, and what they are, in words."""
    recipe = data.recipe
    torch.manual_seed(plan.flags.seed)
    model = pixel_model(recipe)
    model.check_head()
    computed_buffers(recipe, model.network)  # refuses those that no folder could give back
    if plan.launch.activation_checkpointing:
        require_recomputing(model)
    if "trh" in recipe.defences:
        _ = model.head  # refuses a network without a linear one
    model.validate_pixels = False  # data, augmentation and attacks keep to [0, 1]
    if done:
        return model, "a checkpoint"
    init = plan.flags.init_file or recipe.init
    return model, load_initial(model.network, init, kernel_downsampling=recipe.kernel_downsampling)


def require_recomputing(model: PixelModel) -> None:
    """Raise RobustzooError where timm's network cannot recompute its activations."""
    try:
        model.network.set_grad_checkpointing(True)
        model.network.set_grad_checkpointing(False)
    except (AssertionError, AttributeError, NotImplementedError) as error:
        raise RobustzooError(
            f"--activation-checkpointing: {type(model.network).__name__} does not recompute activations: "
            "leave it out, or take another network"
        ) from error


def introduce(plan: Plan, data: TrainingData, validation: Validation, start: str, steps: range) -> None:
    """Say what is trained, how it is laid out, and what it will cost. steps: those to come."""
    recipe, done = data.recipe, steps.start
    say(f"{recipe.name}: {data.describe()}, {plan.launch.describe(recipe)}, starting from {start}")
    for key, value, was in changes(recipe):
        say(f"changed from {recipe.base_name}: {key} {value} (was {was})")
    if data.images.shortfall:
        say(f"not the whole data set, so not a model of its name: {data.images.shortfall}")
    what = f"resuming after step {done:,}" if done else "cost"
    if plan.flags.resume and not done:
        what = "resuming at step 0, for there is no checkpoint yet"
    say(f"{what}: {expected_cost(recipe, len(steps))}")
    say(f"validation: {validation.describe()}")


def micro_batches(
    plan: Plan, data: TrainingData, group: Processes, steps: range
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(epochs, ids, x, y) of this rank, augmented, on its device, one step's after the other's."""
    recipe, seed = data.recipe, plan.flags.seed
    batches = training_batches(
        data.images,
        data.order,
        steps.start,
        steps.stop,
        augmentation=recipe.augmentation,
        rank=group.rank,
        world_size=group.world_size,
        micro_batch=plan.launch.micro_batch_size,
        workers=plan.flags.workers,
    )
    for batch in batches:
        epochs, ids, x, y = (tensor.to(group.device) for tensor in batch[1:])
        x = augment(x, recipe, seed, epochs, ids)
        if recipe.cutmix:
            x, y = cutmix(x, y, recipe.num_classes, seed, epochs, ids)
        yield epochs, ids, x, y


def measured(
    engine: Any, objective: Objective, step: int, outcome: Outcome, rate: float, images_per_second: float
) -> dict[str, float]:
    """What the metrics keep of a step that was done. Raises: RobustzooError as `refuse_divergence`."""
    l2 = zero.l2_term(engine, objective)
    refuse_divergence(step + 1, outcome, l2)
    record = outcome.terms | {
        "l2": l2,
        "learning_rate": rate,
        "trh_lambda": objective.trh_lambda(step),
        "epsilon": objective.threat_model(step).eps,
        "images_per_second": float(f"{images_per_second:.4g}"),
    }
    return record if outcome.skipped else record | {"gradient_norm": outcome.gradient_norm}


def write_checkpoint(
    plan: Plan, group: Processes, step: int, best: Best, save: Callable[[Path], None]
) -> None:
    """Every rank writes its part, then rank 0 makes the whole visible.

    Raises:
        RobustzooError: a disk refused; nothing of the checkpoint is left.
    """
    folder = plan.run
    try:
        save(folder.writing(step))
        group.barrier()
        group.decide(lambda: folder.commit(step, best))
    except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError
        free = shutil.disk_usage(folder.path).free / 1e6
        folder.give_up(step)
        if processes.is_of_a_lost_process(error, group):
            raise
        raise RobustzooError(
            f"the checkpoint after step {step:,} could not be written in {folder.checkpoints}, where "
            f"{free:,.0f} MB were free then: {error}. Where the disk is full, make room for "
            "two checkpoints, then resume"
        ) from error


def refuse_divergence(step: int, outcome: Outcome, l2: float | None = None) -> None:
    """Raise RobustzooError where loss, gradient or weights are no numbers.

    l2: of the weights after the update, which no loss has seen yet, where it was measured.
    """
    if outcome.finite and (l2 is None or math.isfinite(l2)):
        return
    terms = ", ".join(f"{name} {value:.4g}" for name, value in outcome.terms.items())
    terms += "" if l2 is None else f", l2 {l2:.4g} after the update"
    raise RobustzooError(
        f"not finite at step {step}: {terms}, gradient norm {outcome.gradient_norm:.4g}. Resumed, the run "
        "comes to the same step: try a lower rate (--set base_lr=X), a longer warm-up (--set warmup_steps=N) "
        "or gradient clipping, in a new run"
    )


def export_trained(plan: Plan, data: TrainingData, done: int, best: Best, weights: dict[str, Tensor]) -> None:
    """Write the model folder, and say what it is and which checkpoint was better."""
    recipe, folder = data.recipe, plan.run
    exported = partial(recipe, steps=done)
    digest = export_model(folder.model, exported, weights)
    if best.stops(plan.flags.early_stopping):
        say(
            f"--early-stopping {plan.flags.early_stopping} ends the run: {best.readings_since} readings "
            f"without a higher robust accuracy than after step {best.step:,}"
        )
    if exported != recipe:
        say(f"stopped after {done:,} of {recipe.total_steps:,} steps: the model is {exported.name}")
    say(f"exported {folder.model} (model.safetensors sha256 {digest})")
    if 0 < best.step < done:
        say(
            f"robust accuracy on held-out images was highest after step {best.step:,} "
            f"({best.accuracy:.4f}): {export_command(folder.path)} --best exports that model"
        )
