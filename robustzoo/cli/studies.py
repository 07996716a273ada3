"""`robustzoo diagnose two-moons` and `lambda-sweep`: the paper's two studies."""

from __future__ import annotations

from pathlib import Path

import click

from robustzoo.cli.output import say
from robustzoo.studies.lambda_sweep import LAMBDAS, plan, run_sweep
from robustzoo.studies.lambda_sweep.runs import read_lambdas, read_losses


@click.command("two-moons")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the results."
)
@click.option("--epochs", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--seeds", type=click.IntRange(min=1), default=5, show_default=True, help="How many: 0, 1, ...")
@click.option(
    "--probes", type=click.IntRange(min=2), default=16, show_default=True, help="Hutchinson probes."
)
@click.option("--workers", type=click.IntRange(min=1), help="Processes; default: one per core.")
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="B",
    help="Instead of the figures: a table of the traces after training in batches of B; repeatable.",
)
def two_moons(
    out: Path, epochs: int, seeds: int, probes: int, workers: int | None, batch_sizes: tuple[int, ...]
) -> None:
    """The paper's two-moons study: traces and eigenvalue spreads over epochs, as two figures and CSV."""
    from robustzoo.studies import two_moons as study  # torch and matplotlib

    if batch_sizes:
        found = study.compare_batches(
            out,
            batch_sizes,
            seeds=range(seeds),
            epochs=epochs,
            workers=workers,
            on_run=lambda size, seed: say(f"batch size {size}, seed {seed} done", err=True),
        )
        say(study.batches_summary(found, epochs))
        say(f"wrote {out}")
        return
    rows = study.run_study(
        out,
        seeds=range(seeds),
        epochs=epochs,
        probes=probes,
        workers=workers,
        on_seed=lambda seed: say(f"seed {seed} done", err=True),
    )
    say(study.summary(rows))
    say(f"wrote {out}")


@click.command("lambda-sweep")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder for the results."
)
@click.option("--losses", default="at,trades", show_default=True, help="Comma-separated.")
@click.option(
    "--lambdas", metavar="L1,L2,...", help="Comma-separated; default: the values the paper searched."
)
@click.option(
    "--steps", type=click.IntRange(min=1), help="Optimizer steps of each run; default: the recipe's."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--resume", is_flag=True, help="Continue the sweep in --out.")
def lambda_sweep(
    out: Path, losses: str, lambdas: str | None, steps: int | None, seed: int, resume: bool
) -> None:
    """Train digits recipes with several lambdas and draw accuracy against lambda.

    Needs the extra `train` (DeepSpeed). Measured on images kept out of training, never on test images: a
    lambda may be chosen by the result.
    """
    chosen = LAMBDAS if lambdas is None else read_lambdas(lambdas)
    runs = plan(out, losses=read_losses(losses), lambdas=chosen, steps=steps, seed=seed)
    run_sweep(runs, resume=resume, say=say)
    say(f"wrote {out}")
