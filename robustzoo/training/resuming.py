"""What a resumed run must share with its beginning, judged from its folder: nothing here loads torch."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe, recipe
from robustzoo.registry.recipes import partial
from robustzoo.registry.rules import generated_images
from robustzoo.training.arguments import Job
from robustzoo.training.launch import Launch
from robustzoo.training.run_folder import ANEW, RunFolder, RunFolderError, hash_file

# Known once the data are open.
_FROM_DATA = ("training_images", "generated_images", "training_data_digest", "generated_data_digest")


def fixed_settings(job: Job, made: Recipe, launch: Launch) -> dict[str, Any]:
    """What must not change on --resume, as far as the command line tells."""
    return {
        "recipe_digest": made.digest,
        "initial_weights": str(job.init_file or made.init),
        "seed": job.seed,
        "processes": launch.world_size,
        "micro_batch_size": launch.micro_batch_size,
        "zero_stage": launch.zero_stage,
        "precision": launch.precision,
        "activation_checkpointing": launch.activation_checkpointing,
        "offload": launch.offload,
        "compile": launch.compile,
        "skip_corrupt": job.skip_corrupt,
    }


def steps_done(run: RunFolder, settings: dict[str, Any], last_step: int, *, resume: bool) -> int:
    """`RunFolder.check`, and that a run that is to end after `last_step` steps has not gone beyond them.

    Raises:
        RunFolderError: the folder cannot be used so.
    """
    if resume:
        run.check_place(resume=True)
        begun_recipe(run)
    done = run.check(settings, resume=resume)
    if done > last_step:
        raise RunFolderError(
            f"{run.path} has {done:,} steps done already, more than the {last_step:,} asked for: leave "
            "--max-steps out or raise it, or begin a new run in another --out"
        )
    return done


def begun_recipe(run: RunFolder) -> Recipe:
    """The recipe that a run was begun with. Raises RunFolderError where config.json does not hold it."""
    settings = run.settings()
    try:
        begun = Recipe.from_json(settings["recipe"])
    except (RobustzooError, TypeError) as error:
        raise RunFolderError(f"{run.config} is damaged: {error}; {ANEW}") from error
    if begun.digest != settings["fixed"].get("recipe_digest"):
        raise RunFolderError(
            f"{run.config} is damaged: its recipe, {begun.name}, is not that of its recipe_digest; {ANEW}"
        )
    return begun


def claim(run: RunFolder, settings: dict[str, Any], last_step: int, done: int, *, resume: bool) -> None:
    """Keep the folder for this process, if it still is what `steps_done` found: another training may have
    begun and even ended there since.

    Raises:
        RunFolderError: another process trains there, or has.
    """
    run.claim()
    try:
        now = steps_done(run, settings, last_step, resume=resume)
        if now != done:
            raise RunFolderError(
                f"another process has trained in {run.path} while this one started: {now:,} steps are done "
                f"now, {done:,} were then; start again, with --resume"
            )
    except RunFolderError:
        run.release()
        raise


def check_resumed(job: Job, run: RunFolder, world_size: int) -> str | None:
    """Compare the command line with the run it is to continue; what depends on the data is taken as it was.

    Returns:
        Why there is nothing left to do, in words; None where training goes on.

    Raises:
        RunFolderError: the folder cannot be used so. RobustzooError: as `robustzoo.registry.recipe`.
    """
    before = run.settings()
    then = begun_recipe(run)
    same_file = {} if job.init_file is None else {"init": then.init}  # its hash is compared later
    made = _on_the_images_of(then, recipe(job.name, (job.overrides | same_file) or None))
    of_data = {key: before["fixed"].get(key) for key in _FROM_DATA}
    fixed = fixed_settings(job, made, job.launch(made, world_size)) | of_data
    settings = {"fixed": fixed, "recipe": made.to_json()}
    last_step = job.last_step(made)
    done = steps_done(run, settings, last_step, resume=True)
    early = done < last_step and run.best(done).stops(job.early_stopping)
    if not (done == last_step or early) or not _exported(run.model, partial(made, steps=done)):
        return None
    again = shlex.join(["python", "training/export.py", str(run.path)])
    if not run.exported_intact():
        raise RunFolderError(
            f"{run.path} is finished, but the weights in {run.model} are not those that were exported "
            f"({hash_file(run.model).name} has their hash): `{again}` writes "
            "the model again from the last checkpoint"
        )
    what = f"was ended by --early-stopping after {done:,} steps" if early else f"has done its {done:,} steps"
    return (
        f"nothing to resume: {run.path} {what}, and its model is {run.model}. "
        f"`{again}` writes it again from the last checkpoint"
    )


def _on_the_images_of(then: Recipe, made: Recipe) -> Recipe:
    """`made` with the numbers of images that it leaves open, as they were counted when `then` began."""
    images, generated = made.training_images, None
    if not images and then.training_data == made.training_data:
        images = then.training_images
    if made.extra_data == "ddpm":
        generated = generated_images(then.extra_data)
    return partial(made, images=images or None, generated=generated or None)


def _exported(folder: Path, made: Recipe) -> bool:
    """Whether a model folder, which is written whole or not at all, is that of this recipe."""
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = document["robustzoo"]["recipe"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return name == made.name and (folder / "model.safetensors").is_file()
