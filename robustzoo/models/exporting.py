"""A model in the formats of other programs. Each takes pixels in [0, 1], its normalisation inside."""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch

from robustzoo.errors import RobustzooError
from robustzoo.models.pixel_model import PixelModel


def export_onnx(model: PixelModel, file: Path) -> None:
    """Write a graph of ONNX with input "pixels" (B, C, H, W) and output "logits" (B, K), any B.

    Raises:
        RobustzooError: the packages onnx and onnxscript are absent, or the model states no image size.
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise RobustzooError(f"export to ONNX needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    if model.input_shape is None:
        raise RobustzooError(f"{model.name} does not say its image size, which a graph of ONNX needs")
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
