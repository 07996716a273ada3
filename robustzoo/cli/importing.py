"""`robustzoo import`: a checkpoint that others published becomes a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from robustzoo.cli.models import say_running
from robustzoo.cli.output import say
from robustzoo.data import evaluation_subset, open_data
from robustzoo.errors import RobustzooError
from robustzoo.models.importing import import_checkpoint
from robustzoo.python_files import file_and_function


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--architecture",
    required=True,
    metavar="timm:NAME|FILE.py:FUNCTION",
    help="The network that the weights are of. FILE.py is run, and copied into the folder: FUNCTION takes no "
    "arguments and returns the network of normalised images.",
)
@click.option(
    "--model-args",
    metavar="JSON",
    help='Arguments of timm\'s create_model, for example \'{"img_size": 32, "patch_size": 4}\'.',
)
@click.option(
    "--mean", metavar="M[,M,M]", help="The network's input is (pixels - mean) / std, pixels in [0, 1]."
)
@click.option("--std", metavar="S[,S,S]")
@click.option(
    "--from-claim",
    metavar="PERCENT",
    help="Instead of mean and std: the clean accuracy that its authors state. The usual normalisation "
    "that gives "
    "it on the images of --data, to the digits stated, is taken; where none or several do, the "
    "import is refused.",
)
@click.option("--threat-model", required=True, metavar="NORM:EPS", help="That it was trained against.")
@click.option("--data", metavar="NAME:DIR|DIR", help="The images that it classifies.")
@click.option("--n", type=click.IntRange(min=1), help="Count on a fixed random subset of this many images.")
@click.option("--image-size", type=click.IntRange(min=1), help="Pixels, where neither timm nor --data says.")
@click.option("--key", help="Which weights of the file, where several fit, for example state_dict_ema.")
@click.option("--name", help='What to call it, behind "import:"; default: the name of the file.')
@click.option("--license", default="unknown", show_default=True, help="Of the weights, an SPDX identifier.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder to write.")
@click.option("--overwrite", is_flag=True, help="Replace the model folder that is there.")
def import_(
    file: Path,
    architecture: str,
    model_args: str | None,
    mean: str | None,
    std: str | None,
    data: str | None,
    n: int | None,
    out: Path,
    **options: Any,
) -> None:
    """Make a model folder from FILE, weights that others trained (.safetensors, .pt, .pth or .ckpt).

    Nothing but tensors is read of FILE. The folder is one like any other: `robustzoo evaluate`, `card` and
    `verify` work on it (with --trust where FILE.py builds its network).
    """
    options |= {
        "mean": _numbers("--mean", mean),
        "std": _numbers("--std", std),
        "model_args": _object(model_args),
    }
    if (code := file_and_function(architecture)) is not None:
        say_running(code[0])
    images = None if data is None else open_data(data)
    chosen = None if images is None or n is None else evaluation_subset(images, n).indices
    made = import_checkpoint(file, architecture, out, data=images, indices=chosen, **options)
    say(f"{made.name}: {made.part} of {made.file}, for images of {' x '.join(map(str, made.input_shape))}")
    say(f"normalised by mean {_text(made.mean)} and std {_text(made.std)}: {made.normalisation}")
    trust = "" if made.code_file is None else f" --trust {out / made.code_file}"
    say(f"wrote {out}; next: robustzoo evaluate {out}{'' if data is None else f' --data {data}'}{trust}")


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise click.UsageError(
            f"{option} {text}: expected numbers with commas between, one per channel"
        ) from error


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        found = None if text is None else json.loads(text)
    except ValueError as error:
        raise click.UsageError(f"--model-args {text}: no JSON ({error})") from error
    if found is not None and not isinstance(found, dict):
        raise RobustzooError(f"--model-args {text}: expected a JSON object of keyword arguments")
    return found


def _text(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:g}" for value in values)
