"""The command line of a training: what to train (a name and changes to its recipe) and on which hardware."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from robustzoo.errors import RobustzooError
from robustzoo.python_files import file_and_function
from robustzoo.registry.catalog import DATASETS
from robustzoo.registry.dataset_files import FILE, described
from robustzoo.registry.names import did_you_mean
from robustzoo.registry.overrides import parse_assignments
from robustzoo.training.launch import OFFLOADS, PRECISIONS
from robustzoo.training.metrics import LOGGERS

_UNKNOWN = "unrecognized arguments: "  # argparse's words


class Flags(argparse.Namespace):
    """A command line as it was read: science in the name and `overrides`, hardware in the other fields."""

    name: str  # registry name or a JSON recipe file
    out: Path | None  # run folder; None: runs/ and the name of what is trained
    data: Path | None  # root folder of the dataset; None for data that comes with a dependency (digits)
    extra_data: Path | None  # .npz file of generated images, for recipes that have them
    overrides: dict[str, str]  # recipe field -> text, from --set and from flags that change the science
    init_file: Path | None  # a local file or model folder in place of the recipe's initial checkpoint
    zero_stage: int  # 0 to 3
    precision: str  # see `launch.Launch`, which the next three are for too
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
    logger: str  # where metrics go beside metrics.jsonl, see `metrics`
    estimate: bool  # say what the training would cost here, after a few steps, and train nothing
    workers: int  # threads that read images ahead, per process


def read(argv: Sequence[str] | None = None) -> Flags:
    """Read a command line. `--help` prints and exits with status 0, as argparse does.

    Raises:
        RobustzooError: a flag that does not exist or has no such value, or flags that contradict each other.
    """
    flags = _parser().parse_args(argv, namespace=Flags())
    flags.overrides = parse_assignments(flags.set)
    if flags.batch_size is not None:
        size = str(flags.batch_size)
        if flags.overrides.get("batch_size", size) != size:
            raise RobustzooError(
                f"--batch-size {size} and --set batch_size={flags.overrides['batch_size']} contradict "
                "each other; leave one of them out"
            )
        flags.overrides["batch_size"] = size
    flags.data = _data(flags.data or "", flags.overrides)
    if flags.extra_data == "none":
        flags.overrides |= {"extra_data": "none", "extra_fraction": "0"}
    flags.extra_data = Path(flags.extra_data) if flags.extra_data not in (None, "none") else None
    if flags.init == "random":
        flags.overrides["init"] = "random"
    flags.init_file = None if flags.init in ("recipe", "random") else Path(flags.init)
    return flags


def _data(text: str, overrides: dict[str, str]) -> Path | None:
    """The folder of [KEY:]DIR; KEY, another dataset than the recipe's, goes into `overrides`. So does KEY
    alone, of a dataset without files, and so do one's own images, named by the dataset.json of their folder,
    or of that of FILE.py:FUNCTION."""
    if text in DATASETS and not DATASETS[text].needs_files and not Path(text).exists():
        overrides["training_data"] = text
        return None
    key, colon, folder = text.partition(":")
    place = text if file_and_function(text) is not None else folder
    if colon and key not in DATASETS and (found := described(place)) is not None:
        if place == folder and key != found.name:
            raise RobustzooError(f"--data {text}: the {FILE} there is about {found.name}:{folder}")
        overrides.setdefault("dataset", place)
        return Path(place)
    if colon and key in DATASETS:
        overrides["training_data"] = key
    else:
        folder = text
        if colon and len(key) > 1 and "/" not in key and not Path(text).exists():  # C:... is a path
            raise RobustzooError(
                f"--data {text}: {key!r} is no dataset; known: {', '.join(DATASETS)}"
                f"{did_you_mean(key, list(DATASETS))}"
            )
    return Path(folder) if folder else None


class _Parser(argparse.ArgumentParser):
    """argparse's, whose error is one line and not the usage of every flag above it."""

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix(_UNKNOWN).split() if message.startswith(_UNKNOWN) else []
        flags = [flag for action in self._actions for flag in action.option_strings]
        near = "".join(did_you_mean(word.partition("=")[0], flags) for word in unknown[:1])
        raise RobustzooError(f"{message}.{near} `robustzoo train --help` explains every argument")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="train.py",
        description="Adversarially train the model of a registry name with DeepSpeed and export it.",
        epilog="One process: python training/train.py NAME ...  Several: deepspeed [--num_accelerators N] "
        "training/train.py NAME ...  Names: robustzoo ls.",
    )
    one = _number(range(1, 10**18), "a whole number of at least 1")
    zero = _number(range(10**18), "a whole number of at least 0")
    stage = _number(range(4), "a ZeRO stage 0, 1, 2 or 3")
    seed = _number(range(2**63), "a whole number from 0 to 2^63 - 1")

    def add(flag: str, explained: str, **settings: object) -> None:
        parser.add_argument(flag, help=explained, **settings)  # type: ignore[arg-type]

    add("name", "registry name (architecture.dataset_threat.method) or a JSON recipe file", metavar="NAME")
    what = "run folder: config, log, checkpoints, model (default: runs/ and the name of the recipe)"
    add("--out", what, type=lambda text: Path(_path(text)), metavar="RUN")
    what = (
        "root folder of the dataset (not needed for digits); with KEY, such as cifar10jpg:DIR, that of "
        "another dataset of the same shape and number of classes, or with the name in DIR/dataset.json "
        "images of your own (`robustzoo data describe DIR`), which makes it a changed recipe"
    )
    add("--data", what, type=_path, metavar="[KEY:]DIR")
    what = (
        ".npz of generated images (arrays image and label) for recipes that mix them in; none: train "
        "without, a changed recipe"
    )
    add("--extra-data", what, type=_path, metavar="PATH|none")
    add("--zero", "ZeRO stage (default 1)", type=stage, default=1, metavar="0|1|2|3", dest="zero_stage")
    what = (
        "of matrix products and convolutions (default float32); weights, optimizer, losses, traces and "
        "pixels are float32 in all of them"
    )
    add("--precision", what, choices=PRECISIONS, default="float32")
    what = "recompute each block in the backward pass of the training pass: less memory, a forward more"
    add("--activation-checkpointing", what, action="store_true")
    what = "optimizer: its state in the memory of the host (ZeRO 1 to 3)"
    add("--offload", what, choices=OFFLOADS, default="none")
    add("--compile", "torch.compile of attack and training pass (ZeRO 0 to 2)", action="store_true")
    what = "samples per process and pass (default: all of them)"
    add("--micro-batch", what, type=one, metavar="B", dest="micro_batch_size")
    add("--batch-size", "global batch size (default: the recipe's)", type=one, metavar="N")
    add("--max-steps", "stop after N optimizer steps; the schedule is unchanged", type=one, metavar="N")
    what = "initial weights (default: recipe)"
    add("--init", what, type=_path, default="recipe", metavar="recipe|random|PATH")
    add("--set", "change the recipe", action="append", default=[], metavar="KEY=VALUE")
    add("--seed", "seed of everything random (default 0)", type=seed, default=0, metavar="K")
    what = "continue RUN from its newest checkpoint (from step 0 if it has none yet)"
    add("--resume", what, action="store_true")
    every = "optimizer steps (default: 1/20 of the recipe's, and at the end)"
    add("--checkpoint-every", every, type=one, metavar="N")
    add("--validate-every", every, type=one, metavar="N")
    add("--log-every", "optimizer steps (default 10)", type=one, default=10, metavar="N")
    what = "stop after N readings in a row without a higher robust accuracy on held-out images"
    add("--early-stopping", what, type=one, metavar="N")
    what = "name an image that cannot be read and take the next one (default: stop)"
    add("--skip-corrupt", what, action="store_true")
    what = "numbers in that program too, beside metrics.jsonl (extras of these names; default none)"
    add("--logger", what, choices=LOGGERS, default="none")
    what = "train a few steps, say what the whole costs on this machine, and keep nothing"
    add("--estimate", what, action="store_true")
    add("--workers", "threads that read images ahead (default 2)", type=zero, default=2, metavar="N")
    add("--local_rank", argparse.SUPPRESS, type=int)  # the deepspeed launcher's; LOCAL_RANK says the same
    return parser


def _path(text: str) -> str:
    if not text.strip():  # a shell variable that was not set; Path("") would be the working directory
        raise argparse.ArgumentTypeError(f"expected a path, got {text!r}")
    return text


def _number(numbers: range, words: str) -> Callable[[str], int]:
    """The reader of one of these numbers."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) not in numbers:
            raise argparse.ArgumentTypeError(f"expected {words}, got {text!r}")
        return int(text)

    return number
