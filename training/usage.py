"""Bad usage, refused before torch and DeepSpeed are loaded, which takes seconds."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from robustzoo.registry import IncompatibleName, RecipeError, UnknownName, recipe
from robustzoo.registry.catalog import DATASETS
from training.arguments import Job, parse
from training.launch import LaunchError
from training.progress import say
from training.run_folder import RunFolder, RunFolderError


class UsageError(ValueError):
    """A path on the command line that does not exist, or one that is missing."""


def refuse_bad_usage(argv: Sequence[str] | None = None) -> None:
    """Leave with status 2, the reason in words on rank 0, if the command line cannot start a run.

    What needs torch or an open data set is refused later, by train.py itself. Writes nothing.
    """
    try:
        check(parse(argv))
    except (IncompatibleName, LaunchError, RecipeError, RunFolderError, UnknownName, UsageError) as error:
        if os.environ.get("RANK", "0") == "0":
            say(f"error: {error}")
        sys.exit(2)


def check(job: Job) -> None:
    """The name, the changes to its recipe, the layout, and the paths.

    Raises:
        UnknownName, IncompatibleName, LaunchError, RecipeError, RunFolderError, UsageError: in words.
    """
    made = recipe(job.name, job.overrides or None)
    dataset = DATASETS[made.training_data]
    if job.init_file is not None and job.initial_weights is None:
        raise UsageError(
            f"--init {job.init_file}: no such file; expected a .safetensors file or a model folder"
        )
    if dataset.needs_files and job.data is None:
        raise UsageError(
            f"{dataset.key} needs its images: add --data DIR, the folder that holds them "
            f"(source: {dataset.source})"
        )
    if dataset.needs_files and not job.data.expanduser().exists():
        raise UsageError(f"no data at {job.data}; give the folder of {dataset.title} with --data DIR")
    if made.extra_data != "none" and job.extra_data is None:
        raise UsageError(
            f"{made.name} trains on generated images too ({made.extra_fraction:.0%} of a batch): give them "
            "with --extra-data FILE.npz (arrays image and label), or train without with --extra-data none, "
            "which is a changed recipe"
        )
    if made.extra_data == "none" and job.extra_data is not None:
        raise UsageError(
            f"{made.name} has no generated images: leave --extra-data out, or change the recipe with --set "
            "extra_data=ddpm --set extra_fraction=0.7"
        )
    if job.extra_data is not None and not job.extra_data.expanduser().is_file():
        raise UsageError(
            f"--extra-data {job.extra_data}: no such file; expected an .npz of images and labels"
        )
    job.launch(made, int(os.environ.get("WORLD_SIZE", "1")))
    if _one_machine():  # of several, only that of rank 0 need have the run folder
        RunFolder(job.run_folder).check_place(resume=job.resume)


def _one_machine() -> bool:
    neighbours = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    return os.environ.get("WORLD_SIZE", "1") == neighbours
