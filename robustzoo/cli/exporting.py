"""`robustzoo export`: a model in the formats of other programs."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from robustzoo.cli.models import open_model
from robustzoo.cli.options import FileToWrite, trust
from robustzoo.cli.output import say
from robustzoo.errors import RobustzooError

if TYPE_CHECKING:
    from torch import nn


@click.command()
@click.argument("model")
@click.option("--onnx", type=FileToWrite(".onnx"), help="Write a graph of ONNX: pixels in [0, 1] to logits.")
@trust
def export(model: str, onnx: Path | None, trust: Path | None) -> None:
    """Write MODEL for other programs. It takes pixels in [0, 1] there too; their range is not checked."""
    if onnx is None:
        raise click.UsageError("name what to write: --onnx FILE")
    _export_onnx(open_model(model, trust).module, onnx)
    say(f"wrote {onnx}")


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
