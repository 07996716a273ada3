"""What is trained, on what and how: made once from a command line, before torch and DeepSpeed are loaded.

Bad usage is refused here, and a finished run found (seconds). What needs torch or an open data set is refused
later, by `train`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe, recipe
from robustzoo.registry.dataset_files import FILE, described, is_own
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.extensions import versions
from robustzoo.registry.recipes import partial
from robustzoo.registry.rules import generated_images
from robustzoo.training.flags import Flags, read
from robustzoo.training.launch import Launch, Launcher
from robustzoo.training.metrics import check_logger
from robustzoo.training.run_folder import RunFolder, export_command, hash_file

_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".tar")
_LFS_POINTER = b"version https://git-lfs"
# Of what must not change on --resume, known once the data are open.
_FROM_DATA = ("training_images", "generated_images", "training_data_digest", "generated_data_digest")


@dataclass(frozen=True)
class Plan:
    """A training as asked for.

    Attributes:
        recipe: with its changes; `data.open_training_data` makes another of it where other data are at hand.
        finished: why there is nothing left to do, in words; None where training begins or goes on.
    """

    flags: Flags
    recipe: Recipe
    launch: Launch
    run: RunFolder
    finished: str | None = None

    @property
    def last_step(self) -> int:
        """Optimizer steps after which the run is to end: the recipe's, or fewer where that was asked for."""
        steps = self.recipe.stop_after or self.recipe.total_steps
        return min(self.flags.max_steps or steps, steps)

    @property
    def checkpoint_every(self) -> int:
        """Optimizer steps; a twentieth of the recipe's where nothing was asked for."""
        return self.flags.checkpoint_every or max(self.recipe.total_steps // 20, 1)

    @property
    def validate_every(self) -> int:
        """Optimizer steps; a twentieth of the recipe's where nothing was asked for."""
        return min(self.flags.validate_every or max(self.recipe.total_steps // 20, 1), self.last_step)

    def fixed(self, made: Recipe) -> dict[str, Any]:
        """What must not change on --resume, as far as the command line tells. made: the recipe trained."""
        return {
            "recipe_digest": made.digest,
            "initial_weights": str(self.flags.init_file or made.init),
            "seed": self.flags.seed,
            "processes": self.launch.world_size,
            "micro_batch_size": self.launch.micro_batch_size,
            "zero_stage": self.launch.zero_stage,
            "precision": self.launch.precision,
            "activation_checkpointing": self.launch.activation_checkpointing,
            "offload": self.launch.offload,
            "compile": self.launch.compile,
            "skip_corrupt": self.flags.skip_corrupt,
        }


def make_plan(argv: Sequence[str] | None = None) -> Plan:
    """Read the command line; refuse what cannot start a run. Writes nothing.

    Raises:
        RobustzooError: what is wrong with the environment, a flag, the name, a change to its recipe, the
            layout, a path, or the run that is to be resumed.
    """
    launcher = Launcher.read()
    flags = read(argv)
    changes = flags.overrides
    if flags.init_file is not None:
        changes = changes | {"init": f"file:{sha256_file(_weights(flags.init_file))}"}
    made = recipe(flags.name, changes or None)
    versions(made.science)  # refuses a package that is not there, before anything of it is imported
    check_logger(flags.logger)
    _check_data(flags, made)
    _check_generated(flags, made)
    launch = Launch.fit(
        made,
        launcher.world_size,
        flags.micro_batch_size,
        flags.zero_stage,
        precision=flags.precision,
        activation_checkpointing=flags.activation_checkpointing,
        offload=flags.offload,
        compile=flags.compile,
    )
    plan = Plan(flags, made, launch, RunFolder(flags.out or Path("runs", made.name)))
    if (
        launcher.world_size != launcher.neighbours
    ):  # of several machines that of rank 0 alone has the run folder
        return plan
    if flags.estimate:  # writes nothing there
        return plan
    plan.run.check_place(resume=flags.resume)
    if not flags.resume:
        return plan
    if launcher.rank == 0:  # the other ranks would find it held by this one
        plan.run.check_free()
    return replace(plan, finished=_nothing_left(plan))


def _weights(init: Path) -> Path:
    """The file that --init PATH means, if it is one of weights; whether they fit is judged later."""
    file = init / "model.safetensors" if init.is_dir() else init
    if not file.is_file():
        raise RobustzooError(f"--init {init}: no such file; expected a .safetensors file or a model folder")
    if file.suffix == ".npz":
        return file
    try:
        with safe_open(file, framework="numpy"):  # reads the header
            return file
    except (OSError, SafetensorError) as error:
        with file.open("rb") as stream:
            if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
                raise RobustzooError(
                    f"--init {file} is a Git LFS pointer, not the weights: run `git lfs pull` where it lies"
                ) from error
        if file.suffix in _PICKLES:
            raise RobustzooError(
                f"--init {file} is a pickle by its name, and those can run code when opened: where "
                "you trust it, write its state dict with safetensors.torch.save_file, and give that"
            ) from error
        raise RobustzooError(
            f"--init {file} is not a readable safetensors file: {error}; give one, an .npz file of the "
            "original JAX release, or --init random"
        ) from error


def _check_data(flags: Flags, made: Recipe) -> None:
    """Whether there is something to read; what it is, is judged by whoever opens it."""
    dataset = made.trained_on
    if made.batch_size > dataset.train_size:
        raise RobustzooError(
            f"a batch of {made.batch_size:,} is more than the {dataset.train_size:,} training images of "
            f"{dataset.key}; choose a smaller --batch-size"
        )
    if not dataset.needs_files:
        if flags.data is not None:
            raise RobustzooError(
                f"--data {flags.data}: {dataset.key} come with a dependency and need no data folder, so "
                "leave it away"
            )
        return
    if is_own(dataset.key):
        _check_own(flags, made)
        return
    if flags.data is None:
        raise RobustzooError(
            f"{dataset.key} needs its images: add --data DIR, the folder that holds them "
            f"(source: {dataset.source})"
        )
    root, give = flags.data.expanduser(), f"give the folder of {dataset.title} with --data DIR"
    if not root.exists():
        raise RobustzooError(f"no data at {root}; {give}")
    try:
        if root.is_dir() and not any(root.iterdir()):
            raise RobustzooError(f"no data at {root}, which is empty; {give}")
    except OSError as error:
        raise RobustzooError(f"--data {root} cannot be read: {error}; {give}") from error


def _check_own(flags: Flags, made: Recipe) -> None:
    """Whether --data holds the images of the recipe, as far as their dataset.json says."""
    found = None if flags.data is None else described(flags.data)
    if found is None:
        raise RobustzooError(
            f"{made.training_data} needs the folder of its images with their {FILE}: add --data DIR"
            f"{'' if flags.data is None else f'; {flags.data} has none'}"
        )
    wanted = {key: getattr(made, key) for key in ("dataset", "classes", "image_size", "channels")}
    for key, value in wanted.items():
        if found.recipe_values()[key] != value:
            raise RobustzooError(
                f"--data {flags.data}: its {FILE} has {key} {str(found.recipe_values()[key])[:80]}, and "
                f"{made.name} is a training on {str(value)[:80]}: give those images"
            )


def _check_generated(flags: Flags, made: Recipe) -> None:
    """Whether there is an .npz with both arrays where the recipe needs one; its reader judges them."""
    if made.extra_data == "none":
        if flags.extra_data is not None:
            raise RobustzooError(
                f"{made.name} has no generated images: leave --extra-data out, or change the recipe with "
                "--set extra_data=ddpm --set extra_fraction=0.7"
            )
        return
    if flags.extra_data is None:
        raise RobustzooError(
            f"{made.name} trains on generated images too ({made.extra_fraction:.0%} of a batch): give them "
            "with --extra-data FILE.npz (arrays image and label), or train without with --extra-data none, "
            "which is a changed recipe"
        )
    file = flags.extra_data.expanduser()
    if not file.is_file():
        raise RobustzooError(f"--extra-data {file}: no such file; expected an .npz of images and labels")
    try:
        with zipfile.ZipFile(file) as opened:
            found = [name.removesuffix(".npy") for name in opened.namelist()]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise RobustzooError(
            f"--extra-data {file} is no whole .npz file ({error}); expected one with the arrays image and "
            "label, so fetch it again"
        ) from error
    if missing := [name for name in ("image", "label") if name not in found]:
        raise RobustzooError(
            f"--extra-data {file} has no array {' and '.join(missing)}: found "
            f"{', '.join(found) or 'nothing'}; expected image and label"
        )


def _nothing_left(plan: Plan) -> str | None:
    """Compare with the run that is to go on, what depends on the data taken as it was: `Plan.finished`."""
    run, then = plan.run, plan.run.recipe()
    made = _on_the_images_of(then, plan.recipe)
    before = run.settings()["fixed"]
    fixed = plan.fixed(made) | {key: before.get(key) for key in _FROM_DATA}
    done = run.check({"fixed": fixed, "recipe": made.to_json()}, plan.last_step, resume=True)
    early = done < plan.last_step and run.best(done).stops(plan.flags.early_stopping)
    if not (done == plan.last_step or early) or not _exported(run.model, partial(made, steps=done)):
        return None
    again = export_command(run.path)
    if not run.exported_intact():
        raise RobustzooError(
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
    images = made.training_images
    if not images and then.training_data == made.training_data:
        images = then.training_images
    generated = generated_images(then.extra_data) if made.extra_data == "ddpm" else None
    return partial(made, images=images or None, generated=generated or None)


def _exported(folder: Path, made: Recipe) -> bool:
    """Whether a model folder, which is written whole or not at all, is that of this recipe."""
    try:
        document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = document["robustzoo"]["recipe"]["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return name == made.name and (folder / "model.safetensors").is_file()
