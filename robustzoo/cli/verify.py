"""`robustzoo verify`: check what a card claims, by replaying its witnesses or by attacking again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from robustzoo.cli.json_errors import JsonErrors


@click.command(cls=JsonErrors)
@click.argument("models", nargs=-1, metavar="[MODEL]...")
@click.option(
    "--all", "every", is_flag=True, help="Every published model (also the default without a MODEL)."
)
@click.option("--mode", type=click.Choice(["replay", "full"]), default="replay", show_default=True)
@click.option("--card", type=click.Path(path_type=Path), help="Another card than the folder's README.md.")
@click.option(
    "--data-root", type=click.Path(path_type=Path), help="Folder of the dataset's files (digits needs none)."
)
@click.option(
    "--tolerance",
    type=click.IntRange(min=0),
    help="In images; default, and most: the larger of 1 % of N and 3.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), help="Seed of a full run; default: fresh system entropy, recorded."
)
@click.option("--same-seed", is_flag=True, help="Full run with the evidence's own seed.")
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Processes.")
@click.option(
    "--require", type=click.Choice(["confirmed"]), help="Exit 3 when the outcome is only consistent."
)
@click.option(
    "--log",
    type=click.Path(path_type=Path),
    help="Append one JSON line per verification to this file, in a folder that exists.",
)
@click.option("--json", "as_json", is_flag=True, help="Machine-readable reports, and errors.")
def verify(models: tuple[str, ...], every: bool, as_json: bool, **options) -> None:
    """Verify the claims of each MODEL (registry names or model folders).

    Exit code: 0 confirmed or consistent, 1 refuted, 2 bad input, 3 inconclusive, 4 not comparable;
    of several models, the worst.
    """
    from robustzoo.hub.verify import verify as run
    from robustzoo.registry import list_models

    names = list(models) or list_models(published_only=True)
    if options["card"] and len(names) != 1:
        raise click.UsageError("--card goes with exactly one MODEL")
    if not names:
        raise click.UsageError("no model is published, so there is nothing to verify; name a model folder")
    reports = []
    for name in names:
        reports.append(run(name, **options))
        if not as_json:
            click.echo(reports[-1].text() + "\n")
    if as_json:
        click.echo(json.dumps([r.to_json() for r in reports], indent=1))
    elif len(reports) > 1:
        click.echo("\n".join(f"{r.outcome:<14} {r.name}" for r in reports))
    # Refuted outranks not comparable, which outranks inconclusive.
    codes = {r.exit_code for r in reports}
    sys.exit(next((code for code in (2, 1, 4, 3) if code in codes), 0))
