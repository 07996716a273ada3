"""`robustzoo export`: a model in the formats of other programs."""

from __future__ import annotations

from pathlib import Path

import click

from robustzoo.cli.models import open_model
from robustzoo.cli.options import FileToWrite, trust
from robustzoo.cli.output import say


@click.command()
@click.argument("model")
@click.option("--onnx", type=FileToWrite(".onnx"), help="Write a graph of ONNX: pixels in [0, 1] to logits.")
@trust
def export(model: str, onnx: Path | None, trust: Path | None) -> None:
    """Write MODEL for other programs. It takes pixels in [0, 1] there too; their range is not checked."""
    if onnx is None:
        raise click.UsageError("name what to write: --onnx FILE")
    from robustzoo.models.exporting import export_onnx

    export_onnx(open_model(model, trust).module, onnx)
    say(f"wrote {onnx}")
