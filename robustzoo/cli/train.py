"""`robustzoo train`, which is `python -m robustzoo.training` in one process, and `plot`: its curves."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import click

from robustzoo import atomic_files
from robustzoo.cli.options import FileToWrite
from robustzoo.cli.output import say
from robustzoo.errors import RobustzooError
from robustzoo.training import __main__ as training

Record = dict[str, Any]

ACCURACIES = ("clean_accuracy", "pgd10_accuracy", "train_clean_accuracy", "train_pgd10_accuracy")
GAP = "robust_gap"
# Numbers of a step that are no terms of its loss.
OTHERS = {"step", *ACCURACIES, GAP, "gradient_norm", "learning_rate", "trh_lambda", "epsilon"}
OTHERS |= {"images_per_second", "loss_scale"}


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def train(arguments: tuple[str, ...]) -> None:
    """Train a recipe with DeepSpeed and export its model (`robustzoo train --help`)."""
    training.main(lambda: training.train(arguments))


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=FileToWrite(".png"), metavar="PNG", help="default: RUN/curves.png")
def plot(run: Path, out: Path | None) -> None:
    """Draw the loss terms, accuracies and robust generalisation gap of the training in RUN."""
    records, title = read_log(run), _title(run)
    out = run / "curves.png" if out is None else out
    draw(records, title, out)
    say(f"{out}: {len(records)} records, steps {records[0]['step']} to {records[-1]['step']}")


def read_log(run: Path) -> list[Record]:
    """The records of RUN/metrics.jsonl in order; a line that is none, such as one that a killed process cut
    short, is left out.

    Raises:
        RobustzooError: no log there, or none with a record.
    """
    path = run / "metrics.jsonl"
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise RobustzooError(f"{run} is no run folder: {error}; give the --out of a training") from error
    records = [record for line in lines if (record := _record(line)) is not None]
    if not records:
        raise RobustzooError(f"{path} has no record yet; a training writes one every --log-every steps")
    return records


def loss_terms(records: list[Record]) -> list[str]:
    """Names of the terms of the loss, in the order of the log."""
    return [name for name in dict.fromkeys(name for r in records for name in r) if name not in OTHERS]


def curve(records: list[Record], name: str) -> tuple[list[int], list[float]]:
    """(steps, values) of the records that have this number."""
    points = [(record["step"], record[name]) for record in records if record.get(name) is not None]
    return [step for step, _ in points], [value for _, value in points]


def draw(records: list[Record], title: str, out: Path) -> None:
    """Write the picture: loss terms, accuracies, gap, and what drove the steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title.encode("utf-8", "replace").decode(), parse_math=False)
    panels = {
        "loss terms": loss_terms(records),
        "accuracy on held-out and on training images": ACCURACIES,
        "robust generalisation gap (training - held-out)": (GAP,),
        "gradient norm, learning rate": ("gradient_norm", "learning_rate"),
    }
    for axes, (heading, names) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        axes.set_title(heading, fontsize=10)
        axes.set_xlabel("optimizer step")
        values = []
        for name in names:
            steps, heights = curve(records, name)
            values += heights
            if steps:
                dashes = "--" if name.startswith("train_") else "-"
                marker = "." if len(steps) < 50 else None
                axes.plot(steps, heights, dashes, label=name, marker=marker, linewidth=1)
        if heading.startswith(("loss", "gradient")) and values and min(values) > 0:
            axes.set_yscale("log")
        if values:
            axes.legend(fontsize=8)
    stream = io.BytesIO()
    figure.savefig(stream, dpi=120, format="png")
    atomic_files.write_bytes(out, stream.getvalue())


def _record(line: bytes) -> Record | None:
    try:
        record = json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("step"), int) else None


def _title(run: Path) -> str:
    try:
        return json.loads((run / "config.json").read_text(encoding="utf-8"))["recipe"]["base_name"]
    except (OSError, ValueError, KeyError, TypeError):
        return run.name
