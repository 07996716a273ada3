"""`robustzoo evaluate`: clean and robust accuracy of a model, as Evidence."""

from __future__ import annotations

import json
from pathlib import Path

import click

from robustzoo.cli.json_errors import JsonErrors
from robustzoo.cli.models import open_model


@click.command(cls=JsonErrors)
@click.argument("model")
@click.option(
    "--data",
    "data",
    metavar="DATASET",
    help="Dataset name, or a folder of the model's dataset (for digits: one sub-folder of images per class); "
    "default: the model's own dataset.",
)
@click.option(
    "--data-root", type=click.Path(path_type=Path), help="Folder of the dataset's files (not for digits)."
)
@click.option("--threat-model", metavar="NORM:EPS", help="For example linf:8/255; default: the model's own.")
@click.option(
    "--protocol", default="aa-standard", show_default=True, help="aa-standard, apgd-ce+t, pgd-40, ..."
)
@click.option("--n", type=click.IntRange(min=1), help="Evaluate a fixed random subset of this many images.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of every draw.")
@click.option("--micro-batch", type=click.IntRange(min=1), help="Images per forward pass; recorded.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option("--device", help="cpu or cuda[:i]; default: cuda if there is one.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Folder for the evidence; default: the model folder."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the Evidence document instead of a report; errors as JSON too.",
)
def evaluate(
    model: str, data: str | None, out: Path | None, as_json: bool, micro_batch: int | None, **options
) -> None:
    """Attack MODEL and write Evidence.

    MODEL is a registry name, a model folder, timm:NAME, hf-hub:OWNER/REPO (in timm's layout), or
    FILE.py:FUNCTION for a model of your own: the function is run, without arguments, and returns a
    torch.nn.Module from pixels in [0, 1] to logits, in eval mode. Such models need --data and --threat-model.

    A bundled model's evidence is written only where --out says.
    """
    from robustzoo.evaluation.evaluator import evaluate as run
    from robustzoo.evaluation.report import report

    loaded = open_model(model)
    evidence = run(
        loaded.module,
        loaded.data(data),
        micro_batch_size=micro_batch,
        out=out or loaded.folder,
        name=loaded.name,
        **options,
    )
    click.echo(json.dumps(evidence.doc, indent=1, sort_keys=True) if as_json else report(evidence))
