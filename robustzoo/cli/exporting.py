"""`robustzoo export`: a model in the formats of other programs, its numbers in those of leaderboards."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from robustzoo import atomic_files
from robustzoo.cli.models import open_model, refuse_unknown
from robustzoo.cli.options import FileToWrite, trust
from robustzoo.cli.output import say
from robustzoo.errors import RobustzooError

if TYPE_CHECKING:
    from torch import nn


@click.command()
@click.argument("model")
@click.option("--onnx", type=FileToWrite(".onnx"), help="Write a graph of ONNX: pixels in [0, 1] to logits.")
@click.option(
    "--to",
    "target",
    type=click.Choice(["eval-results", "robustbench", "every-eval-ever"]),
    help="Write the numbers of its evidence as another leaderboard takes them.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="With --to: the folder to write into; default: this one.",
)
@click.option("--repo", metavar="OWNER/NAME", help="With --to: where the model is on the Hub, to be linked.")
@trust
def export(
    model: str,
    onnx: Path | None,
    target: str | None,
    out: Path | None,
    repo: str | None,
    trust: Path | None,
) -> None:
    """Write MODEL for other programs, or its numbers for other leaderboards.

    A graph takes pixels in [0, 1] too; their range is not checked there. What only a model's authors can say
    is left empty in what is written for a leaderboard.
    """
    if (onnx is None) == (target is None):
        raise click.UsageError("name what to write: --onnx FILE, or --to and a leaderboard")
    if target is not None:
        _submit(model, target, Path() if out is None else out, repo)
        return
    if out is not None or repo is not None:
        raise click.UsageError("--out and --repo go with --to")
    assert onnx is not None
    _export_onnx(open_model(model, trust).module, onnx)
    say(f"wrote {onnx}")


def _submit(model: str, target: str, out: Path, repo: str | None) -> None:
    refuse_unknown(model)
    from robustzoo.hub.load import resolve_folder
    from robustzoo.hub.submissions import submission

    for name, text in submission(resolve_folder(model), target, repo).items():
        place = out / name
        place.parent.mkdir(parents=True, exist_ok=True)
        atomic_files.write_text(place, text)
        say(f"wrote {place}")


def _export_onnx(model: nn.Module, file: Path) -> None:
    """Write a graph of ONNX with input "pixels" (B, C, H, W) and output "logits" (B, K), any B.

    Raises:
        RobustzooError: the packages onnx and onnxscript are absent, or the model states no image size.
    """
    import torch

    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise RobustzooError(f"export to ONNX needs {' and '.join(missing)}: pip install 'robustzoo[onnx]'")
    if getattr(model, "input_shape", None) is None:  # a factory's may be any module
        raise RobustzooError(
            f"{getattr(model, 'name', 'the model')} does not say its image size, which a graph of ONNX needs"
        )
    pixels = torch.full((2, *model.input_shape), 0.5)
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        torch.onnx.export(
            model.eval(),
            (pixels,),
            made,
            dynamo=True,
            external_data=False,
            verbose=False,
            input_names=["pixels"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
        )
        made.replace(file)
