"""The command line of train.py: what to train (a name and changes to its recipe) and on which hardware."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from robustzoo.models import sha256_file
from robustzoo.registry import Recipe, recipe
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.names import did_you_mean
from robustzoo.registry.overrides import parse_assignments

INIT_FROM_RECIPE = "recipe"


class ExtraDataError(ValueError):
    """Generated images that the recipe asks for and the command line does not give, or the reverse."""


@dataclass(frozen=True)
class Job:
    """One training run as asked for: science in the name and `overrides`, hardware in the other fields."""

    name: str  # registry name or a JSON recipe file
    out: Path  # run folder
    data: Path | None  # root folder of the dataset; None for data that comes with a dependency (digits)
    extra_data: Path | None  # .npz file of generated images
    overrides: dict[str, str]  # recipe field -> text, from --set and the flags that change the recipe
    init_file: Path | None  # a local .safetensors file in place of the recipe's initial checkpoint
    zero_stage: int  # 0, 1 or 2
    micro_batch_size: int | None  # samples per process and engine call; None: no accumulation
    max_steps: int | None  # optimizer steps after which to stop; the schedule keeps its length
    seed: int
    resume: bool
    checkpoint_every: int | None  # optimizer steps; None: a twentieth of the run
    validate_every: int | None  # optimizer steps; None: a twentieth of the run
    log_every: int  # optimizer steps
    workers: int  # threads that read images ahead, per process

    def recipe(self) -> Recipe:
        """The recipe to train, changes applied. Raises what `robustzoo.registry.recipe` raises."""
        return recipe(self.name, self.overrides or None)


def parse(argv: Sequence[str] | None = None) -> Job:
    """Read the command line; on a usage error print it and exit with status 2, as argparse does.

    Raises:
        RecipeError: a --set that is not KEY=VALUE or has an unknown key.
    """
    given = _parser().parse_args(argv)
    overrides = parse_assignments(given.set)
    if given.batch_size is not None:
        overrides["batch_size"] = str(given.batch_size)
    key, data = given.data
    if key is not None:
        overrides["training_data"] = key
    extra_data = None
    if given.extra_data == "none":
        overrides |= {"extra_data": "none", "extra_fraction": "0"}
    elif given.extra_data is not None:
        extra_data = Path(given.extra_data)
    init_file = None
    if given.init == "random":
        overrides["init"] = "random"
    elif given.init != INIT_FROM_RECIPE:
        init_file = Path(given.init)
        weights = init_file / "model.safetensors" if init_file.is_dir() else init_file
        if weights.is_file():  # a missing one is refused, in words, when it is read
            overrides["init"] = f"file:{sha256_file(weights)}"
    return Job(
        name=given.name,
        out=given.out,
        data=data,
        extra_data=extra_data,
        overrides=overrides,
        init_file=init_file,
        zero_stage=given.zero,
        micro_batch_size=given.micro_batch,
        max_steps=given.max_steps,
        seed=given.seed,
        resume=given.resume,
        checkpoint_every=given.checkpoint_every,
        validate_every=given.validate_every,
        log_every=given.log_every,
        workers=given.workers,
    )


def check_extra_data(job: Job, recipe: Recipe) -> None:
    """Whether generated images are given if, and only if, the recipe mixes them in.

    Raises:
        ExtraDataError: they are not, with the ways out.
    """
    if recipe.extra_data != "none" and job.extra_data is None:
        raise ExtraDataError(
            f"{recipe.name} mixes generated images into every batch (extra_data {recipe.extra_data}, share "
            f"{recipe.extra_fraction:g}): give their .npz file with --extra-data FILE, or train without them "
            "with --extra-data none (a changed recipe, with a name of its own)"
        )
    if recipe.extra_data == "none" and job.extra_data is not None:
        raise ExtraDataError(
            f"{recipe.name} has no generated images, but --extra-data {job.extra_data} gives some: leave it "
            "out, or add --set extra_data=ddpm --set extra_fraction=SHARE (a changed recipe)"
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
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
    add("--out", type=Path, required=True, metavar="RUN", help="run folder: config, log, checkpoints, model")
    add(
        "--data",
        type=_data,
        default=(None, None),
        metavar="[KEY:]DIR",
        help="root folder of the dataset (not needed for digits); KEY: another dataset of the same shape, "
        "such as cifar10jpg:DIR",
    )
    add(
        "--extra-data",
        metavar="FILE|none",
        help=".npz file of generated images (image, label) that the recipe mixes in; none: do without",
    )
    add("--zero", type=_zero_stage, default=1, metavar="0|1|2", help="ZeRO stage (default 1)")
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
        default=INIT_FROM_RECIPE,
        metavar="recipe|random|PATH",
        help="initial weights (default: recipe)",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    add("--seed", type=_seed, default=0, metavar="K", help="seed of everything random (default 0)")
    add("--resume", action="store_true", help="continue RUN from its newest whole checkpoint")
    add("--checkpoint-every", type=_positive, metavar="N", help="optimizer steps (default: 1/20 of the run)")
    add("--validate-every", type=_positive, metavar="N", help="optimizer steps (default: 1/20 of the run)")
    add("--log-every", type=_positive, default=10, metavar="N", help="optimizer steps (default 10)")
    add("--workers", type=_count, default=2, metavar="N", help="threads that read images ahead (default 2)")
    add(
        "--local_rank", type=int, help=argparse.SUPPRESS
    )  # the deepspeed launcher passes it; LOCAL_RANK is used
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdigit() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2^63 - 1, got {text!r}")
    return int(text)


def _data(text: str) -> tuple[str | None, Path]:
    """[KEY:]DIR -> the key of the catalog, if one is given, and the folder."""
    key, colon, folder = text.partition(":")
    if not colon or Path(text).exists() or not key.isidentifier():
        return None, Path(text)
    if key not in DATASETS:
        raise argparse.ArgumentTypeError(
            f"no dataset {key!r} in {text!r}.{did_you_mean(key, DATASETS)} Expected DIR or KEY:DIR, with KEY "
            f"one of {', '.join(DATASETS)}"
        )
    if not folder:
        raise argparse.ArgumentTypeError(f"no folder in {text!r}: expected {key}:DIR")
    return key, Path(folder)


def _zero_stage(text: str) -> int:
    if text == "3":
        raise argparse.ArgumentTypeError(
            "ZeRO stage 3 is not in this version; use --zero 2 (stage 1 is enough for a ViT-L: its optimizer "
            "state is what is large, and stage 3 gathers the weights again in every pass of the attack)"
        )
    if text not in ("0", "1", "2"):
        raise argparse.ArgumentTypeError(f"expected a ZeRO stage 0, 1 or 2, got {text!r}")
    return int(text)
