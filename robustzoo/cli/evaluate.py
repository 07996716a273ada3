"""`robustzoo evaluate`: clean and robust accuracy of a model, as Evidence."""

from __future__ import annotations

import json
from pathlib import Path

import click

from robustzoo.cli.json_errors import JsonErrors


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
    """Attack MODEL (a registry name or a model folder) and write Evidence.

    A bundled model's evidence is written only where --out says.
    """
    from robustzoo.evaluation.evaluator import evaluate as run
    from robustzoo.evaluation.report import report
    from robustzoo.hub.load import load

    loaded = load(model)
    if out is None and Path(model.removeprefix("local-dir:")).is_dir():
        out = Path(model.removeprefix("local-dir:"))
    evidence = run(
        loaded,
        data or loaded.recipe.dataset,
        options.pop("threat_model") or loaded.threat_model,
        micro_batch_size=micro_batch,
        out=out,
        **options,
    )
    click.echo(json.dumps(evidence.doc, indent=1, sort_keys=True) if as_json else report(evidence))
