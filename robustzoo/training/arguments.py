"""The command line of train.py: what to train (a name and changes to its recipe) and on which hardware."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe, recipe
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.names import did_you_mean
from robustzoo.registry.overrides import parse_assignments
from robustzoo.training.launch import OFFLOADS, PRECISIONS, Launch
from robustzoo.training.launcher import speaks
from robustzoo.training.progress import say

INIT_FROM_RECIPE = "recipe"
RUNS = Path("runs")
_UNKNOWN = "unrecognized arguments: "  # argparse's words


@dataclass(frozen=True)
class Job:
    """One training run as asked for: science in the name and `overrides`, hardware in the other fields."""

    name: str  # registry name or a JSON recipe file
    out: Path | None  # run folder; None: see run_folder
    data: Path | None  # root folder of the dataset; None for data that comes with a dependency (digits)
    extra_data: Path | None  # .npz file of generated images, for recipes that have them
    overrides: dict[str, str]  # recipe field -> text, from --set and from flags that change the science
    init_file: Path | None  # a local .safetensors file in place of the recipe's initial checkpoint
    zero_stage: int  # 0 to 3
    precision: str  # see robustzoo.training.launch.Launch, which the next three are for too
    activation_checkpointing: bool
    offload: str
    compile: bool
    micro_batch_size: int | None  # samples per process and engine call; None: no accumulation
    max_steps: int | None  # optimizer steps after which to stop; the schedule keeps its length
    seed: int
    resume: bool
    checkpoint_every: int | None  # optimizer steps; None: a twentieth of the recipe's
    validate_every: int | None  # optimizer steps; None: a twentieth of the recipe's
    log_every: int  # optimizer steps
    early_stopping: int | None  # readings without a higher robust accuracy after which to stop; None: never
    skip_corrupt: bool  # the next readable image stands in for one that is broken
    workers: int  # threads that read images ahead, per process

    def recipe(self) -> Recipe:
        """The recipe to train, changes applied. Raises what `robustzoo.registry.recipe` raises."""
        changes = dict(self.overrides)
        if self.initial_weights is not None:
            changes["init"] = f"file:{sha256_file(self.initial_weights)}"
        return recipe(self.name, changes or None)

    def launch(self, recipe: Recipe, world_size: int) -> Launch:
        """The layout asked for, of this many processes. Raises LaunchError where it does not fit."""
        return Launch.fit(
            recipe,
            world_size,
            self.micro_batch_size,
            self.zero_stage,
            precision=self.precision,
            activation_checkpointing=self.activation_checkpointing,
            offload=self.offload,
            compile=self.compile,
        )

    def last_step(self, recipe: Recipe) -> int:
        """Optimizer steps after which the run is to end: the recipe's, or fewer where that was asked for."""
        steps = recipe.stop_after or recipe.total_steps
        return min(self.max_steps or steps, steps)

    @property
    def run_folder(self) -> Path:
        """Where the run is kept: --out, or runs/ and the name of what is trained."""
        return RUNS / self.recipe().name if self.out is None else self.out

    @property
    def initial_weights(self) -> Path | None:
        """The file that --init PATH means; None without one, and where there is no such file."""
        if self.init_file is None:
            return None
        file = self.init_file / "model.safetensors" if self.init_file.is_dir() else self.init_file
        return file if file.is_file() else None


def parse(argv: Sequence[str] | None = None) -> Job:
    """Read the command line; on a usage error print it and exit with status 2, as argparse does.

    Raises:
        RobustzooError: a --set that is not KEY=VALUE or has an unknown key.
    """
    given = _parser().parse_args(argv)
    overrides = parse_assignments(given.set)
    if given.batch_size is not None:
        if overrides.get("batch_size", str(given.batch_size)) != str(given.batch_size):
            raise RobustzooError(
                f"--batch-size {given.batch_size} and --set batch_size={overrides['batch_size']} contradict "
                "each other; leave one of them out"
            )
        overrides["batch_size"] = str(given.batch_size)
    key, colon, folder = (given.data or "").partition(":")
    if colon and key in DATASETS:  # another data set than the recipe's, asked for in words
        overrides["training_data"] = key
    else:
        folder = given.data
        if colon and len(key) > 1 and "/" not in key and not Path(given.data).exists():  # C:... is a path
            raise RobustzooError(
                f"--data {given.data}: {key!r} is no dataset; known: {', '.join(DATASETS)}"
                f"{did_you_mean(key, list(DATASETS))}"
            )
    if given.extra_data == "none":
        overrides |= {"extra_data": "none", "extra_fraction": "0"}
    init_file = None
    if given.init == "random":
        overrides["init"] = "random"
    elif given.init != INIT_FROM_RECIPE:
        init_file = Path(given.init)
    return Job(
        name=given.name,
        out=given.out,
        data=Path(folder) if folder else None,
        extra_data=Path(given.extra_data) if given.extra_data not in (None, "none") else None,
        overrides=overrides,
        init_file=init_file,
        zero_stage=given.zero,
        precision=given.precision,
        activation_checkpointing=given.activation_checkpointing,
        offload=given.offload,
        compile=given.compile,
        micro_batch_size=given.micro_batch,
        max_steps=given.max_steps,
        seed=given.seed,
        resume=given.resume,
        checkpoint_every=given.checkpoint_every,
        validate_every=given.validate_every,
        log_every=given.log_every,
        early_stopping=given.early_stopping,
        skip_corrupt=given.skip_corrupt,
        workers=given.workers,
    )


class _Parser(argparse.ArgumentParser):
    """argparse's, whose error is one line and not the usage of every flag above it, said by one rank."""

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix(_UNKNOWN).split() if message.startswith(_UNKNOWN) else []
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = "".join(did_you_mean(word.partition("=")[0], flags) for word in unknown[:1])
        if speaks():
            say(f"error: {message}.{near} `python training/train.py --help` explains every argument")
        sys.exit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="train.py",
        description="Adversarially train the model of a registry name with DeepSpeed and export it.",
        epilog="One process: python training/train.py NAME ...  Several: deepspeed [--num_accelerators N] "
        "training/train.py NAME ...  Names: robustzoo ls.",
    )
    add = parser.add_argument
    add(
        "name",
        metavar="NAME",
        help="registry name (architecture.dataset_threat.method) or a JSON recipe file",
    )
    add(
        "--out",
        type=_folder,
        metavar="RUN",
        help="run folder: config, log, checkpoints, model (default: runs/ and the name of the recipe)",
    )
    add(
        "--data",
        type=_path,
        metavar="[KEY:]DIR",
        help="root folder of the dataset (not needed for digits); with KEY, such as cifar10jpg:DIR, that of "
        "another dataset of the same shape and number of classes, which makes it a changed recipe",
    )
    add(
        "--extra-data",
        type=_path,
        metavar="PATH|none",
        help=".npz of generated images (arrays image and label) for recipes that mix them in; none: train "
        "without, a changed recipe",
    )
    add("--zero", type=_zero_stage, default=1, metavar="0|1|2|3", help="ZeRO stage (default 1)")
    add(
        "--precision",
        choices=PRECISIONS,
        default="float32",
        help="of matrix products and convolutions (default float32); weights, optimizer, losses, traces and "
        "pixels are float32 in all of them",
    )
    add(
        "--activation-checkpointing",
        action="store_true",
        help="recompute each block in the backward pass of the training pass: less memory, a forward more",
    )
    add(
        "--offload",
        choices=OFFLOADS,
        default="none",
        help="optimizer: its state in the memory of the host (ZeRO 1 to 3)",
    )
    add("--compile", action="store_true", help="torch.compile of attack and training pass (ZeRO 0 to 2)")
    add(
        "--micro-batch",
        type=_positive,
        metavar="B",
        help="samples per process and pass (default: all of them)",
    )
    add("--batch-size", type=_positive, metavar="N", help="global batch size (default: the recipe's)")
    add(
        "--max-steps",
        type=_positive,
        metavar="N",
        help="stop after N optimizer steps; the schedule is unchanged",
    )
    add(
        "--init",
        type=_path,
        default=INIT_FROM_RECIPE,
        metavar="recipe|random|PATH",
        help="initial weights (default: recipe)",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    add("--seed", type=_seed, default=0, metavar="K", help="seed of everything random (default 0)")
    add(
        "--resume",
        action="store_true",
        help="continue RUN from its newest checkpoint (from step 0 if it has none yet)",
    )
    every = "optimizer steps (default: 1/20 of the recipe's, and at the end)"
    add("--checkpoint-every", type=_positive, metavar="N", help=every)
    add("--validate-every", type=_positive, metavar="N", help=every)
    add("--log-every", type=_positive, default=10, metavar="N", help="optimizer steps (default 10)")
    add(
        "--early-stopping",
        type=_positive,
        metavar="N",
        help="stop after N readings in a row without a higher robust accuracy on held-out images",
    )
    add(
        "--skip-corrupt",
        action="store_true",
        help="name an image that cannot be read and take the next one (default: stop)",
    )
    add("--workers", type=_count, default=2, metavar="N", help="threads that read images ahead (default 2)")
    add(
        "--local_rank", type=int, help=argparse.SUPPRESS
    )  # the deepspeed launcher passes it; LOCAL_RANK is used
    return parser


def _folder(text: str) -> Path:
    return Path(_path(text))


def _path(text: str) -> str:
    if not text.strip():  # a shell variable that was not set; Path("") would be the working directory
        raise argparse.ArgumentTypeError(f"expected a path, got {text!r}")
    return text


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 0, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdigit() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2^63 - 1, got {text!r}")
    return int(text)


def _zero_stage(text: str) -> int:
    if text not in ("0", "1", "2", "3"):
        raise argparse.ArgumentTypeError(f"expected a ZeRO stage 0, 1, 2 or 3, got {text!r}")
    return int(text)
