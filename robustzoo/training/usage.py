"""Bad usage refused, and a finished run left as it is, before torch and DeepSpeed are loaded (seconds)."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open

from robustzoo.errors import RobustzooError
from robustzoo.registry import IncompatibleName, UnknownName, recipe
from robustzoo.registry.catalog import DATASETS
from robustzoo.training.arguments import Job, parse
from robustzoo.training.launch import LaunchError
from robustzoo.training.launcher import check_environment, speaks
from robustzoo.training.progress import say
from robustzoo.training.resuming import check_resumed
from robustzoo.training.run_folder import RunFolder, RunFolderError

_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar")
_LFS_POINTER = b"version https://git-lfs"


class UsageError(ValueError):
    """A path on the command line that does not exist, or one that is missing."""


def leave_early(argv: Sequence[str] | None = None) -> None:
    """Leave with status 2 if the command line cannot start a run, with 0 if the run to resume is finished.

    The reason is told in words, on one rank. What needs torch or an open data set is refused later, by
    train.py itself. Writes nothing.
    """
    try:
        check_environment()
        finished = check(parse(argv))
    except (IncompatibleName, LaunchError, RobustzooError, RunFolderError, UnknownName, UsageError) as error:
        if speaks():
            say(f"error: {error}")
        sys.exit(2)
    if finished is not None:
        if speaks():
            say(finished)
        sys.exit(0)


def check(job: Job) -> str | None:
    """The name, the changes to its recipe, the layout, the paths, and the run that is to be resumed.

    Returns:
        Why there is nothing left to do, in words; None where training begins or goes on.

    Raises:
        UnknownName, IncompatibleName, LaunchError, RobustzooError, RunFolderError, UsageError: in words.
    """
    made = recipe(job.name, job.overrides or None)
    dataset = DATASETS[made.training_data]
    if job.init_file is not None and job.initial_weights is None:
        raise UsageError(
            f"--init {job.init_file}: no such file; expected a .safetensors file or a model folder"
        )
    if job.initial_weights is not None:
        _check_weights(job.initial_weights)
    if dataset.needs_files and job.data is None:
        raise UsageError(
            f"{dataset.key} needs its images: add --data DIR, the folder that holds them "
            f"(source: {dataset.source})"
        )
    if dataset.needs_files:
        _check_data(job.data.expanduser(), dataset.title)
    elif job.data is not None:
        raise UsageError(
            f"--data {job.data}: {dataset.key} come with a dependency and need no data folder, so leave "
            "it away"
        )
    if made.batch_size > dataset.train_size:
        raise UsageError(
            f"a batch of {made.batch_size:,} is more than the {dataset.train_size:,} training images of "
            f"{dataset.key}; choose a smaller --batch-size"
        )
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
    if job.extra_data is not None:
        _check_generated(job.extra_data.expanduser())
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    job.launch(made, world_size)
    if not _one_machine():  # only that of rank 0 need have the run folder
        return None
    run = RunFolder(job.run_folder)
    run.check_place(resume=job.resume)
    if not job.resume:
        return None
    if os.environ.get("RANK", "0") == "0":  # the other ranks would find it held by this one
        run.check_free()
    return check_resumed(job, run, world_size)


def _check_weights(file: Path) -> None:
    """Raise UsageError for a file that is no safetensors file; whether it fits is judged later."""
    if file.suffix == ".npz":
        return
    try:
        with safe_open(file, framework="numpy"):  # reads the header
            pass
    except (OSError, SafetensorError) as error:
        with file.open("rb") as stream:
            if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise UsageError(
                    f"--init {file} is a Git LFS pointer, not the weights: run `git lfs pull` where it lies"
                ) from error
        if file.suffix in _PICKLES:
            raise UsageError(
                f"--init {file} is a pickle by its name, and those can run code when opened: where "
                "you trust it, write its state dict with safetensors.torch.save_file, and give that"
            ) from error
        raise UsageError(
            f"--init {file} is not a readable safetensors file: {error}; give one, an .npz file of the "
            "original JAX release, or --init random"
        ) from error


def _check_generated(file: Path) -> None:
    """Raise UsageError for a file that is no .npz with both arrays; its reader judges what they hold."""
    if not file.is_file():
        raise UsageError(f"--extra-data {file}: no such file; expected an .npz of images and labels")
    try:
        with zipfile.ZipFile(file) as opened:
            found = [name.removesuffix(".npy") for name in opened.namelist()]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(
            f"--extra-data {file} is no whole .npz file ({error}); expected one with the arrays image and "
            "label, so fetch it again"
        ) from error
    if missing := [name for name in ("image", "label") if name not in found]:
        raise UsageError(
            f"--extra-data {file} has no array {' and '.join(missing)}: found "
            f"{', '.join(found) or 'nothing'}; expected image and label"
        )


def _check_data(root: Path, title: str) -> None:
    """Raise UsageError where nothing can be read; what is there is judged by whoever opens it."""
    give = f"give the folder of {title} with --data DIR"
    if not root.exists():
        raise UsageError(f"no data at {root}; {give}")
    try:
        if root.is_dir() and not any(root.iterdir()):
            raise UsageError(f"no data at {root}, which is empty; {give}")
    except OSError as error:
        raise UsageError(f"--data {root} cannot be read: {error}; {give}") from error


def _one_machine() -> bool:
    neighbours = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    return os.environ.get("WORLD_SIZE", "1") == neighbours
