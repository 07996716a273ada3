"""Adversarially train a model of the zoo, from its registry name, and export it.

    python training/train.py vit_micro2.digits_linf.at_trh --out RUN                             (one process)
    deepspeed --num_accelerators 2 training/train.py vit_micro2.digits_linf.at_trh --out RUN
    deepspeed training/train.py vit_l16.imagenet_linf.trades_trh --data IMAGENET --out RUN --micro-batch 32

Cost per image, with F a forward pass, B a backward pass to the input, T a full training pass and n the
recipe's attack steps: AT n (F + B) + T, TRADES F + n (F + B) + 2 T; the trace of the Hessian adds none, AWP
as much as the training pass. The run says what that comes to before it starts. ViT-Micro/2 on digits: about
6 minutes on one core.

A recipe holds the science, flags hold the hardware: every layout of a batch over processes and micro-batches
trains the same model up to rounding. A run that was killed goes on with --resume and ends with the same
weights, bit for bit on one machine. RUN gets config.json, metrics.jsonl (`robustzoo plot RUN` draws it),
checkpoints/ (pickles: resume and export only runs of your own) and the model folder, model/. See
docs/training.md.
"""

from __future__ import annotations

import math
import shlex
import shutil
import signal
import sys
from contextlib import nullcontext
from importlib.metadata import version
from typing import Any

import torch

from robustzoo.data import augment, cutmix, training_batches
from robustzoo.models.initial import load_initial
from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.weight_averaging import WeightAverage
from robustzoo.registry.describe import changes
from robustzoo.registry.recipes import partial
from robustzoo.training import ends, processes, zero
from robustzoo.training.arguments import Job, parse
from robustzoo.training.best import Best
from robustzoo.training.data import TrainingData, open_training_data
from robustzoo.training.export import export_model
from robustzoo.training.launch import Launch
from robustzoo.training.launcher import speaks
from robustzoo.training.passes import Passes
from robustzoo.training.progress import Clock, Metrics, say, step_line
from robustzoo.training.refusals import REFUSALS
from robustzoo.training.resuming import claim, fixed_settings, steps_done
from robustzoo.training.run_folder import RunFolder
from robustzoo.training.schedule import expected_cost, learning_rate
from robustzoo.training.step import Outcome, Step
from robustzoo.training.validation import Validation


def train(job: Job) -> None:
    """Everything from names to the model folder. Refuses bad input before it writes anything."""
    # ---- What to train, on what, and how it is laid out on this hardware ----------------------------------
    data = open_training_data(job.recipe(), job)
    recipe = data.recipe
    objective = Objective(recipe)
    launch = job.launch(recipe, processes.world_size())
    last_step = job.last_step(recipe)
    twentieth = max(recipe.total_steps // 20, 1)
    validate_every = min(job.validate_every or twentieth, last_step)
    checkpoint_every = job.checkpoint_every or twentieth

    # ---- Processes, and whether the run folder may be used ------------------------------------------------
    group = processes.start()
    run = RunFolder(job.run_folder)
    settings = snapshot(job, data, launch)
    done = group.decide(lambda: steps_done(run, settings, last_step, resume=job.resume))
    best = group.decide(lambda: run.best(done))
    if best.stops(job.early_stopping):
        last_step = done
    validation = Validation(
        recipe, data.holdout, data.originals, group, launch.micro_batch_size, every=validate_every
    )

    # ---- Initial weights, the same on every rank ----------------------------------------------------------
    torch.manual_seed(job.seed)
    model = pixel_model(recipe)
    model.validate_pixels = False  # data, augmentation and attacks keep to [0, 1]
    initial = "a checkpoint"
    if not done:
        start = job.init_file or recipe.init
        initial = load_initial(model.network, start, kernel_downsampling=recipe.kernel_downsampling)

    # ---- Engine, and what a checkpoint restores: weights and optimizer, then random states ----------------
    engine = zero.build_engine(recipe, launch, model, objective.weight_decay)
    passes = Passes(engine, launch)
    average = None if recipe.swa_decay is None else zero.weight_average(engine, model, recipe.swa_decay)
    take_step = Step(objective, model, engine, passes, group, average, job.seed)
    torch.manual_seed(job.seed + 1 + group.rank)  # for dropout and stochastic depth
    if done:
        group.decide(lambda: run.check_intact(done))
        zero.load_state(engine, run.checkpoint(done), group.rank, average)
    group.decide(lambda: claim(run, settings, last_step, done, resume=job.resume))
    if group.is_main:
        run.begin(settings)
        introduce(job, data, launch, validation, initial, done, last_step)

    with ends.told(run, group):
        # ---- Steps ----------------------------------------------------------------------------------------
        batches = training_batches(
            data.images,
            data.order,
            done,
            last_step,
            augmentation=recipe.augmentation,
            rank=group.rank,
            world_size=group.world_size,
            micro_batch=launch.micro_batch_size,
            workers=job.workers,
        )
        metrics = Metrics(run.metrics, done) if group.is_main else None
        clock = Clock(done, last_step, recipe.batch_size)
        engine.train()
        last = done == last_step
        while not last:
            step, done = done, done + 1
            rate = learning_rate(recipe, step)
            micro_batches = []
            for _ in range(launch.accumulation(recipe)):
                epochs, ids, x, y = (tensor.to(group.device) for tensor in next(batches)[1:])
                x = augment(x, recipe, job.seed, epochs, ids)
                if recipe.cutmix:
                    x, y = cutmix(x, y, recipe.num_classes, job.seed, epochs, ids)
                micro_batches.append((epochs, ids, x, y))
            outcome = take_step(step, rate, micro_batches)
            if not outcome.finite:
                raise ends.NonFiniteLoss(diverged(done, outcome))

            # ---- What to say and to keep after the step ---------------------------------------------------
            last = done == last_step
            if not last and all(done % n for n in (job.log_every, validate_every, checkpoint_every)):
                continue
            images_per_second, seconds_left = clock.read(done)
            l2 = zero.l2_term(engine, objective)
            if not math.isfinite(l2):  # the weights after the update, which no loss has seen yet
                raise ends.NonFiniteLoss(diverged(done, outcome, l2))
            record = outcome.terms | {
                "l2": l2,
                "learning_rate": rate,
                "trh_lambda": objective.trh_lambda(step),
                "epsilon": objective.threat_model(step).eps,
                "images_per_second": float(f"{images_per_second:.4g}"),
            }
            if not outcome.skipped:
                record["gradient_norm"] = outcome.gradient_norm
            if launch.precision == "fp16":
                record["loss_scale"] = zero.loss_scale(engine)
            if last or done % validate_every == 0:
                with nullcontext() if average is None else average.in_place():  # what is exported
                    record |= validation.run(passes.logits)
                best = best.after(done, record["pgd10_accuracy"])
                last = last or best.stops(job.early_stopping)
            if group.is_main:
                metrics.write(done, **record)
                say(step_line(done, last_step, record, seconds_left))
            if last or best.step == done or done % checkpoint_every == 0:
                write_checkpoint(engine, run, group, done, average, best)
            clock.restart(done)

        # ---- Export: the file that is evaluated is the file that is published -----------------------------
        weights = zero.trained_weights(engine, average)
        if group.is_main:
            metrics.close()
            exported = partial(recipe, steps=done)
            digest = export_model(run.model, exported, weights)
            if best.stops(job.early_stopping):
                say(
                    f"--early-stopping {job.early_stopping} ends the run: {best.readings_since} readings "
                    f"without a higher robust accuracy than after step {best.step:,}"
                )
            if exported != recipe:
                say(f"stopped after {done:,} of {recipe.total_steps:,} steps: the model is {exported.name}")
            say(f"exported {run.model} (model.safetensors sha256 {digest})")
            if 0 < best.step < done:
                place = shlex.quote(str(run.path))
                say(
                    f"robust accuracy on held-out images was highest after step {best.step:,} "
                    f"({best.accuracy:.4f}): python training/export.py {place} --best exports that model"
                )
        group.barrier()


def introduce(
    job: Job,
    data: TrainingData,
    launch: Launch,
    validation: Validation,
    initial: str,
    done: int,
    last_step: int,
) -> None:
    """Say what is trained, how it is laid out, and what it will cost."""
    recipe = data.recipe
    say(f"{recipe.name}: {data.describe()}, {launch.describe(recipe)}, starting from {initial}")
    for key, value, was in changes(recipe):
        say(f"changed from {recipe.base_name}: {key} {value} (was {was})")
    if data.images.shortfall:
        say(f"not the whole data set, so not a model of its name: {data.images.shortfall}")
    what = f"resuming after step {done:,}" if done else "cost"
    if job.resume and not done:
        what = "resuming at step 0, for there is no checkpoint yet"
    say(f"{what}: {expected_cost(recipe, last_step - done)}")
    say(f"validation: {validation.describe()}")


def write_checkpoint(
    engine, run: RunFolder, group: processes.Processes, step: int, average: WeightAverage | None, best: Best
) -> None:
    """Every rank writes its part, then rank 0 makes the whole visible.

    Raises:
        CheckpointNotWritten: a disk refused; nothing of the checkpoint is left.
    """
    try:
        zero.save_state(engine, run.writing(step), group.rank, average)
        group.barrier()
        group.decide(lambda: run.commit(step, best))
    except (OSError, RuntimeError) as error:  # torch's own writer raises RuntimeError
        free = shutil.disk_usage(run.path).free / 1e6
        run.give_up(step)
        if ends.is_of_a_lost_process(error, group):
            raise
        raise ends.CheckpointNotWritten(
            f"the checkpoint after step {step:,} could not be written in {run.checkpoints}, where "
            f"{free:,.0f} MB were free then: {error}. Where the disk is full, make room for "
            "two checkpoints, then resume"
        ) from error


def snapshot(job: Job, data: TrainingData, launch: Launch) -> dict[str, Any]:
    """config.json: all that is needed to run this again. What is "fixed" must not change on --resume."""
    recipe = data.recipe
    return {
        "command": shlex.join(sys.argv),
        "fixed": {
            **fixed_settings(job, recipe, launch),
            **data.identity(),
        },
        "recipe": recipe.to_json(),
        "deepspeed_config": zero.config(recipe, launch),
        "versions": {package: version(package) for package in ("torch", "deepspeed", "timm")},
    }


def diverged(step: int, outcome: Outcome, l2: float | None = None) -> str:
    """The last words of a run whose loss, gradient or weights are no numbers.

    l2: of the weights, where it was measured.
    """
    terms = ", ".join(f"{name} {value:.4g}" for name, value in outcome.terms.items())
    terms += "" if l2 is None else f", l2 {l2:.4g} after the update"
    return (
        f"not finite at step {step}: {terms}, gradient norm {outcome.gradient_norm:.4g}. Resumed, the run "
        "comes to the same step: try a lower rate (--set base_lr=X), a longer warm-up (--set warmup_steps=N) "
        "or gradient clipping, in a new run"
    )


def main(argv: list[str] | None = None) -> int:
    """Status 0: trained and exported; 1: begun and ended early (130: by Ctrl-C, 143: by SIGTERM); 2: refused.

    The reason is told in words.
    """
    try:
        train(parse(argv))
    except ends.TrainingStopped as error:
        say(f"error: {error}")  # on the process where it happened: the others know no more
        return error.status
    except KeyboardInterrupt:
        say("error: interrupted before the first step; nothing is lost")
        return 128 + signal.SIGINT
    except REFUSALS as error:
        if speaks():
            say(f"error: {error}")
        return 2
    return 0
